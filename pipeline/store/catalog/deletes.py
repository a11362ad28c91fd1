"""Pending deletes: files that a transaction made needless, and reference matrices with rows of references that it
removed. They are unlinked and overwritten after it, or by the next opening."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Final

from pipeline.errors import StoreError
from pipeline.store.catalog.connection import Catalog
from pipeline.store.catalog.opening import CURRENT_NAME, utc_now
from pipeline.store.files import matrix
from pipeline.store.files.commit_count import COMMITS_NAME
from pipeline.store.files.durable import QUARANTINE, TEMPORARY, Folder, disk_errors
from pipeline.store.files.handover import HANDOVER
from pipeline.store.files.lock import TOKEN_NAME

_log = logging.getLogger(__name__)

_QUARANTINE_S = 7 * 24 * 3600.0
# Only files in these folders are ever deleted, whatever the table says.
_DELETABLE = frozenset({"embeddings", "objects", "references", "runs"})
_MATRIX: Final = re.compile(r"references/g\d+/\d+")  # the path of one in the table: without an ending


def is_deletable(relative: str) -> bool:
    """Whether a path of core.pending_deletes is a relative path to a file inside a part of the store."""
    parts = PurePosixPath(relative).parts
    return len(parts) > 1 and parts[0] in _DELETABLE and ".." not in parts


def add(catalog: Catalog, paths: Sequence[str]) -> None:
    """Inside a transaction: lists these files, to be deleted once it is committed."""
    if paths:
        catalog.execute("INSERT INTO core.pending_deletes SELECT unnest(?::VARCHAR[]), ?", [list(paths), utc_now()])


def add_matrix(catalog: Catalog, directory: int) -> None:
    """Inside a transaction: lists the matrix of a directory, to be blanked once it is committed."""
    stem = matrix.stem(catalog.generation, directory)
    if not catalog.rows("SELECT 1 FROM core.pending_deletes WHERE path = ?", [stem]):
        add(catalog, [stem])


def is_matrix(path: str) -> bool:
    """Whether a path of core.pending_deletes is that of a matrix to be blanked."""
    return _MATRIX.fullmatch(path) is not None


def clear(catalog: Catalog, paths: Sequence[str]) -> None:
    """Takes these paths from the list."""
    if paths:
        with catalog.transaction("clear_deletes"):
            catalog.execute("DELETE FROM core.pending_deletes WHERE path IN (SELECT unnest(?::VARCHAR[]))", [paths])


def pending(catalog: Catalog) -> list[str]:
    """The paths of the files that wait to be deleted, and of the matrices that wait to be blanked."""
    return [path for (path,) in catalog.rows("SELECT path FROM core.pending_deletes ORDER BY path")]


def pending_files(catalog: Catalog) -> list[str]:
    """Those of the files alone."""
    return [path for path in pending(catalog) if not is_matrix(path)]


def replay(catalog: Catalog, most: int | None = None) -> int:
    """Unlinks every pending file, or the first `most`, then clears the list of them; returns how many there were."""
    paths = pending_files(catalog)[:most]
    for path in paths:
        if is_deletable(path):
            catalog.folder.unlink(path)
    clear(catalog, paths)
    return len(paths)


def replay_committed(catalog: Catalog, most: int | None = None) -> bool:
    """The same after a commit, which must not be reported as failed: what cannot be deleted now is tried again by the
    next replay, at the latest when the store is opened. Returns whether there may be more."""
    try:
        return replay(catalog, most) == most
    except StoreError as exc:
        _log.warning("files that are no longer needed could not be deleted yet: %s", exc)
        return False


def sweep(folder: Folder) -> None:
    """Removes what a crash left behind, where it is cheap to look for: half-written files (`check` finds those among
    objects and embeddings), the token of a server's admin port and what was handed over to it, and what was in
    quarantine long enough."""
    leftovers = [folder.path(name) for name in (CURRENT_NAME + TEMPORARY, COMMITS_NAME + TEMPORARY, TOKEN_NAME)]
    leftovers += folder.path(HANDOVER).glob("*")
    for pattern in ("references/*/*", "runs/*/*", "runs/*/shards/*"):
        leftovers.extend(folder.root.glob(pattern + TEMPORARY))
    with disk_errors(folder.root):
        aside = [path for path in folder.path(QUARANTINE).rglob("*") if path.is_file()]
        # The time of its renaming, not that of its writing.
        leftovers += [path for path in aside if path.lstat().st_ctime < time.time() - _QUARANTINE_S]
        for path in filter(folder.holds, leftovers):
            path.unlink(missing_ok=True)
