"""Named fault points: places where a crash must lose nothing.

Every write, fsync, rename and commit of durable data calls `point(name)`, a no-op in production. Tests `install` a hook
that kills the process at the n-th call of one of `FAULT_POINTS`, run the command again and compare the stores.
"""

from __future__ import annotations

from collections.abc import Callable

# Kinds of files, each written by `Folder` in four steps. `catalog`: a new catalog file; its fsync_folder also makes the
# name of a new DuckDB log durable. `commits`: also written in place by each transaction.
FILE_KINDS = (
    "catalog",
    "current",
    "commits",
    "manifest",
    "shard",
    "sums",
    "embeddings",
    "object",
    "segment",
    "report",
    "export",
)
FILE_STEPS = ("write", "fsync", "rename", "fsync_folder")
# Catalog transactions, each in three steps.
TRANSACTIONS = (
    "create",
    "count_commits",
    "begin_run",
    "plan_run",
    "note_scan",
    "note_labels",
    "commit_shard",
    "note_page",
    "finish_run",
    "account",
    "clear_deletes",
    "migrate",
    "change",
    "fold",
    "reindex_begin",
    "reindex_shard",
    "reindex_complete",
    "reindex_switch",
    "reindex_drop",
)
TRANSACTION_STEPS = ("begin", "commit", "committed")
# Unlinking an unneeded file; quarantining one that no transaction names.
OTHER = ("unlink", "set_aside")

FAULT_POINTS: tuple[str, ...] = (
    *(f"{kind}.{step}" for kind in FILE_KINDS for step in FILE_STEPS),
    *(f"{name}.{step}" for name in TRANSACTIONS for step in TRANSACTION_STEPS),
    *OTHER,
)
_DECLARED = frozenset(FAULT_POINTS)
_hook: Callable[[str], None] | None = None


def point(name: str) -> None:
    """The moment just before the step `name` (`committed`: just after). With a hook, raises KeyError if undeclared."""
    if _hook is not None:
        if name not in _DECLARED:
            raise KeyError(name)
        _hook(name)


def install(hook: Callable[[str], None] | None) -> None:
    """Sets the hook of all fault points; None removes it. For tests."""
    global _hook
    _hook = hook
