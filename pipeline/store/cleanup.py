"""What crashes and transactions leave behind in a store, and who removes it when. `sweep` runs when a store is opened.

half-written files (`*.tmp`)                 the failing write; after a crash `sweep`
transferred faces, the admin port's token    their writer; after a crash `sweep`
unnamed embedding shards, index segments     `sweep`
what DuckDB spilled (catalog-*.duckdb.tmp/)  DuckDB; after a crash `open_catalog`
images of a failed transaction               `discard_images`, immediately
images of a transaction lost in a crash      `quarantine_images`, when the store is opened or closed
files that a transaction made unneeded       `unlink_after_commit`, immediately; otherwise `erasure.erase`
vectors of removed faces                     `erasure.erase`
quarantined files                            `sweep`, after seven days
shards that cluster workers wrote            `ShardFolder.clear`, once imported, and when a build ends; after a
                                               crash `remove_builds`, at the next build
an interrupted creation of the store         `create_store`, when called again
any other file that no row names             `check --repair` quarantines it

Unneeded files are listed in core.pending_deletes within the transaction. Guids of images are logged in INTENTS before
the images are written. That log is not synced: it only has to outlive the process. After a power cut, `check` finds the
images.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import PurePosixPath
from typing import Final

import pyarrow as pa

from pipeline.errors import StoreError
from pipeline.store.catalog.connection import Catalog, OpenStore
from pipeline.store.catalog.opening import CURRENT_NAME, INTENTS_NAME
from pipeline.store.files import shards
from pipeline.store.files.commit_count import COMMITS_NAME
from pipeline.store.files.durable import NO_LINK, PRIVATE_FILE, QUARANTINE, TEMPORARY, Folder, disk_errors
from pipeline.store.files.lock import TOKEN_NAME
from pipeline.store.files.objects import is_guid, object_file
from pipeline.types import utc_now

_log = logging.getLogger(__name__)

_QUARANTINE_S = 7 * 24 * 3600.0
_HANDOVER_S: Final = 3600.0  # no call takes as long
OF_RUNS: Final = ("runs/*/*", "runs/*/shards/*")
_AT_ONCE: Final = 500  # files; requests run in between
# Other folders are never touched, whatever the table says.
_DELETABLE = frozenset({"embeddings", "objects", "references", "runs"})
_NAMED: Final = "SELECT file FROM core.embedding_shards UNION ALL SELECT file FROM core.segments"


# Listing


def delete_later(catalog: Catalog, files: Sequence[str]) -> None:
    """Inside a transaction: lists files to delete after its commit."""
    if files:
        catalog.execute("INSERT INTO core.pending_deletes SELECT unnest(?::VARCHAR[]), ?", [list(files), utc_now()])


def pending_files(catalog: Catalog) -> list[str]:
    """The listed files."""
    return catalog.column("SELECT path FROM core.pending_deletes ORDER BY path")


def is_deletable(relative: str) -> bool:
    """Whether a listed path is relative and inside a part of the store."""
    parts = PurePosixPath(relative).parts
    return len(parts) > 1 and parts[0] in _DELETABLE and ".." not in parts


# Right after a commit


def unlink_after_commit(store: Catalog | OpenStore) -> None:
    """Deletes the listed files. Errors are only logged: the commit must not be reported as failed."""
    try:
        unlink_pending(store)
    except StoreError as exc:
        _log.warning("files that are no longer needed could not be deleted yet: %s", exc)


def unlink_pending(store: Catalog | OpenStore) -> None:
    """Deletes the listed files. Raises StoreFull, StoreUnwritable."""
    while store.submit(_unlink_some):
        pass


def _unlink_some(catalog: Catalog) -> bool:
    """Returns whether more files may remain."""
    files = catalog.column("SELECT path FROM core.pending_deletes LIMIT ?", [_AT_ONCE])  # a million may be listed
    for file in filter(is_deletable, files):
        path = catalog.folder.path(file)
        if path.is_dir() and not path.is_symlink():  # made by somebody else
            catalog.folder.quarantine(file)
        else:
            catalog.folder.unlink(file)
    if files:
        cleared = "DELETE FROM core.pending_deletes WHERE path IN (SELECT unnest(?::VARCHAR[]))"
        with catalog.transaction("clear_deletes"):
            catalog.execute(cleared, [files])
    return len(files) == _AT_ONCE


# Images before their transaction

_declaring: Final = threading.Lock()


def declare_images(folder: Folder, guids: Iterable[str]) -> None:
    """Logs that these images are about to be written. Thread-safe."""
    with _declaring:
        _declare(folder, guids)


def _declare(folder: Folder, guids: Iterable[str]) -> None:
    # Begins a new line: a full disk may have cut off the last one.
    lines = "".join(f"\n{guid}" for guid in guids).encode() + b"\n"
    if lines == b"\n":
        return
    with disk_errors(folder.root):
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | NO_LINK
        fd = os.open(folder.path(INTENTS_NAME), flags, PRIVATE_FILE)
        try:
            if os.write(fd, lines) < len(lines):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        finally:
            os.close(fd)


def declared_images(folder: Folder) -> set[str]:
    """The guids logged since the store was opened."""
    path = folder.path(INTENTS_NAME)
    if not path.exists():
        return set()
    with disk_errors(folder.root):
        return {line for line in path.read_text("ascii", errors="replace").split("\n") if is_guid(line)}


@contextmanager
def discarding_images(store: OpenStore, guids: Sequence[str]) -> Iterator[None]:
    """Discards these images if the block fails."""
    try:
        yield
    except BaseException:
        discard_images(store, guids)
        raise


def discard_images(store: OpenStore, guids: Sequence[str]) -> None:
    """After a failed commit: deletes its images that no row names. `quarantine_images` handles the rest."""

    def work(catalog: Catalog) -> None:
        for guid in _unnamed_images(catalog, guids):
            catalog.folder.unlink(object_file(guid))

    with suppress(StoreError):
        store.submit(work)


def quarantine_images(catalog: Catalog) -> int:
    """At opening and closing: quarantines logged images that no row names, then deletes the log. Returns the number
    moved."""
    folder = catalog.folder
    if catalog.read_only or not folder.path(INTENTS_NAME).exists():
        return 0
    pending = set(pending_files(catalog))  # deliberately removed: deleted, not kept
    moved = 0
    for file in map(object_file, _unnamed_images(catalog, declared_images(folder))):
        folder.unlink(file + TEMPORARY)  # an interrupted write
        if file not in pending:
            moved += folder.quarantine(file)
    folder.unlink(INTENTS_NAME)
    return moved


def _unnamed_images(catalog: Catalog, guids: Iterable[str]) -> list[str]:
    unnamed = "SELECT image_guid FROM written WHERE image_guid NOT IN (SELECT image_guid FROM core.objects)"
    with catalog.tables(written=pa.table({"image_guid": pa.array(sorted(set(guids)), pa.string())})):
        return catalog.column(unnamed)


# At opening


def sweep(catalog: Catalog) -> None:
    """At opening: removes leftovers of earlier processes. Raises StoreFull, StoreUnwritable."""
    if catalog.read_only:
        return
    _remove_leftovers(catalog.folder)
    quarantine_images(catalog)
    # A repeated commit writes the same file again, but a person in it may be deleted before that.
    for file in unnamed_files(catalog):
        catalog.folder.unlink(file)


def remove_traces(catalog: Catalog) -> None:
    """Deletes what may be of deleted people: quarantined files, faces whose transfer was interrupted, and guids in
    INTENTS but for written images that no row names yet (`check` finds one that is written after this, if its commit
    fails)."""
    folder, long_ago = catalog.folder, time.time() - _HANDOVER_S
    with disk_errors(folder.root):
        stale = [path for path in folder.path(shards.HANDOVER).glob("*") if path.lstat().st_mtime < long_ago]
        for path in (*stale, *folder.path(QUARANTINE).rglob("*")):
            if path.is_file() and folder.holds(path):
                path.unlink(missing_ok=True)
    with _declaring:
        declared = _unnamed_images(catalog, declared_images(folder))
        folder.unlink(INTENTS_NAME)
        _declare(folder, [guid for guid in declared if folder.path(object_file(guid)).exists()])


def _remove_leftovers(folder: Folder) -> None:
    """Only in cheap places: `check` finds half-written objects."""
    leftovers = [folder.path(name) for name in (CURRENT_NAME + TEMPORARY, COMMITS_NAME + TEMPORARY, TOKEN_NAME)]
    leftovers += folder.path(shards.HANDOVER).glob("*")
    remove_half_written(folder, ("references/*/*", *OF_RUNS))
    with disk_errors(folder.root):
        quarantined = [path for path in folder.path(QUARANTINE).rglob("*") if path.is_file()]
        # ctime: when it was renamed
        leftovers += [path for path in quarantined if path.lstat().st_ctime < time.time() - _QUARANTINE_S]
        for path in filter(folder.holds, leftovers):
            path.unlink(missing_ok=True)


def remove_half_written(folder: Folder, patterns: Sequence[str]) -> None:
    """Deletes what failed writes left; nobody must write such files meanwhile."""
    with disk_errors(folder.root):
        for pattern in patterns:
            for path in filter(folder.holds, folder.root.glob(pattern + TEMPORARY)):
                path.unlink(missing_ok=True)


def unnamed_files(catalog: Catalog) -> set[str]:
    """Embedding shards and index segments that no row names, including half-written ones."""
    root = catalog.folder.root
    with disk_errors(root):
        paths = [path for part in ("embeddings", "references") for path in root.glob(f"{part}/*/*")]
        files = [path for path in paths if path.is_file() and catalog.folder.holds(path)]
    found = {path.relative_to(root).as_posix() for path in files}
    return found.difference(catalog.column(_NAMED), pending_files(catalog))


def discard_unnamed(catalog: Catalog, file: str) -> None:
    """After a commit that may have failed: deletes its embedding shard or index segment if no row names it."""
    if not catalog.rows(f"SELECT 1 FROM ({_NAMED}) WHERE file = ?", [file]):
        with suppress(StoreError):
            catalog.folder.unlink(file)
