"""Named fault points: the places where a crash must lose nothing.

Every write, fsync, rename and commit of durable data calls `point(name)` with a name declared below. In production
that does nothing. Tests list `FAULT_POINTS`, `install` a hook that kills the process at the n-th call of one of them,
run the same command again and compare the stores.
"""

from __future__ import annotations

from collections.abc import Callable

# Kinds of files, each written by `Folder` in four steps. (`catalog`: a new catalog file; its fsync_folder also follows
# a transaction that begins DuckDB's log, for the log's name. `commits`: also each transaction, in place.)
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
# The transactions of the catalog, each in three steps.
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
# Unlinking a file that a transaction made needless; moving one that no transaction names into quarantine.
OTHER = ("unlink", "set_aside")

FAULT_POINTS: tuple[str, ...] = (
    *(f"{kind}.{step}" for kind in FILE_KINDS for step in FILE_STEPS),
    *(f"{name}.{step}" for name in TRANSACTIONS for step in TRANSACTION_STEPS),
    *OTHER,
)
_DECLARED = frozenset(FAULT_POINTS)
_hook: Callable[[str], None] | None = None


def point(name: str) -> None:
    """Marks the moment just before the step `name` (for `committed`: just after). Raises KeyError if undeclared."""
    if _hook is not None:
        if name not in _DECLARED:
            raise KeyError(name)
        _hook(name)


def install(hook: Callable[[str], None] | None) -> None:
    """Sets what happens at every fault point; None switches it off. For tests."""
    global _hook
    _hook = hook
