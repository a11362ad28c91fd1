"""Clean-up: what a crash or a transaction leaves behind in a store, who removes it, and when.

half-written files (`*.tmp`)                    the write that fails; after a crash `sweep`, when the store is opened
transferred faces, the token of the admin port  the process that wrote them; after a crash `sweep`
embedding shards and index segments whose
  transaction never came                        `sweep`
images whose transaction failed                 `discard_images`, at once
images whose transaction never came             `quarantine_images`, when the store is closed or opened
files that a transaction made needless          `unlink_after_commit`, at once; what is left then, `erasure.erase`
vectors of removed faces                        `erasure.erase`
quarantined files                               `sweep`, when they are seven days old
shards that cluster workers wrote               `ShardFolder.clear`, when the run has them, and at the end of a
                                                  build; after a crash of a build `remove_builds`, at the next one
an unfinished creation of the store             `create_store`, when it is called again
any other file that no row names                `check --repair` quarantines it

A transaction lists needless files in core.pending_deletes, so no crash makes the store forget them.

An image is written before the transaction that names it, so its guid is logged in INTENTS first. The log is not synced:
it has to outlive the process only. After a power cut `check` finds what was left.
"""

from __future__ import annotations

import errno
import logging
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import PurePosixPath
from typing import Final

import pyarrow as pa

from pipeline.errors import StoreError
from pipeline.store.catalog.connection import Catalog, OpenStore
from pipeline.store.catalog.opening import CURRENT_NAME, INTENTS_NAME, utc_now
from pipeline.store.files import shards
from pipeline.store.files.commit_count import COMMITS_NAME
from pipeline.store.files.durable import NO_LINK, PRIVATE_FILE, QUARANTINE, TEMPORARY, Folder, disk_errors
from pipeline.store.files.lock import TOKEN_NAME
from pipeline.store.files.objects import is_guid, object_file

_log = logging.getLogger(__name__)

_QUARANTINE_S = 7 * 24 * 3600.0
_AT_ONCE: Final = 500  # files: requests come in between
# Only files in these folders are ever deleted, whatever the table says.
_DELETABLE = frozenset({"embeddings", "objects", "references", "runs"})


# What a transaction lists


def delete_later(catalog: Catalog, files: Sequence[str]) -> None:
    """Inside a transaction: lists files to be deleted once it is committed."""
    if files:
        catalog.execute("INSERT INTO core.pending_deletes SELECT unnest(?::VARCHAR[]), ?", [list(files), utc_now()])


def pending_files(catalog: Catalog) -> list[str]:
    """The files that wait to be deleted."""
    return catalog.column("SELECT path FROM core.pending_deletes ORDER BY path")


def is_deletable(relative: str) -> bool:
    """Whether a path of core.pending_deletes is a relative path to a file inside a part of the store."""
    parts = PurePosixPath(relative).parts
    return len(parts) > 1 and parts[0] in _DELETABLE and ".." not in parts


# Right after a commit


def unlink_after_commit(store: OpenStore) -> None:
    """Deletes the listed files. An error is only logged, because the commit must not be reported as failed."""
    try:
        unlink_pending(store)
    except StoreError as exc:
        _log.warning("files that are no longer needed could not be deleted yet: %s", exc)


def unlink_pending(store: OpenStore) -> None:
    """Deletes the listed files. Raises StoreFull, StoreUnwritable."""
    while store.submit(_unlink_some):
        pass


def _unlink_some(catalog: Catalog) -> bool:
    """Returns whether more files are listed."""
    files = pending_files(catalog)
    for file in filter(is_deletable, files[:_AT_ONCE]):
        path = catalog.folder.path(file)
        if path.is_dir() and not path.is_symlink():  # made by somebody else in its place
            catalog.folder.quarantine(file)
        else:
            catalog.folder.unlink(file)
    _clear(catalog, files[:_AT_ONCE])
    return len(files) > _AT_ONCE


def _clear(catalog: Catalog, paths: Sequence[str]) -> None:
    if paths:
        with catalog.transaction("clear_deletes"):
            catalog.execute("DELETE FROM core.pending_deletes WHERE path IN (SELECT unnest(?::VARCHAR[]))", [paths])


# Images before their transaction


def declare_images(folder: Folder, guids: Iterable[str]) -> None:
    """Logs that these images are about to be written. May be called from any thread."""
    # Begins a new line: the last one may have been cut off by a full disk.
    lines = "".join(f"\n{guid}" for guid in guids).encode() + b"\n"
    if lines == b"\n":
        return
    with disk_errors(folder.root):
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | NO_LINK
        fd = os.open(folder.path(INTENTS_NAME), flags, PRIVATE_FILE)
        try:
            if os.write(fd, lines) < len(lines):  # one call: lines of several threads never mix
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        finally:
            os.close(fd)


def declared_images(folder: Folder) -> set[str]:
    """The guids that were logged since the store was opened."""
    path = folder.path(INTENTS_NAME)
    if not path.exists():
        return set()
    with disk_errors(folder.root):
        return {line for line in path.read_text("ascii", errors="replace").split("\n") if is_guid(line)}


@contextmanager
def discarding_images(store: OpenStore, guids: Sequence[str]) -> Iterator[None]:
    """If the block fails, discards the images that were written for it."""
    try:
        yield
    except BaseException:
        discard_images(store, guids)
        raise


def discard_images(store: OpenStore, guids: Sequence[str]) -> None:
    """After a failed commit: deletes its images that no row names. `quarantine_images` moves what is left."""

    def work(catalog: Catalog) -> None:
        for guid in _unnamed_images(catalog, guids):
            catalog.folder.unlink(object_file(guid))

    with suppress(StoreError):
        store.submit(work)


def quarantine_images(catalog: Catalog) -> int:
    """At closing and opening: moves the logged images that no row names into quarantine, then deletes the log. Returns
    how many it moved."""
    folder = catalog.folder
    if catalog.read_only or not folder.path(INTENTS_NAME).exists():
        return 0
    pending = set(pending_files(catalog))  # of somebody, on purpose: these are deleted, not kept
    moved = 0
    for file in map(object_file, _unnamed_images(catalog, declared_images(folder))):
        folder.unlink(file + TEMPORARY)  # a write that was cut off
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
    """At opening: removes what earlier processes left. Raises StoreFull, StoreUnwritable."""
    if catalog.read_only:
        return
    _remove_leftovers(catalog.folder)
    quarantine_images(catalog)
    # A repeated commit writes the same file again. But a person in it may be deleted before that.
    for file in unnamed_files(catalog):
        catalog.folder.unlink(file)


def _remove_leftovers(folder: Folder) -> None:
    """Where it is cheap to look: `check` finds half-written files among objects."""
    leftovers = [folder.path(name) for name in (CURRENT_NAME + TEMPORARY, COMMITS_NAME + TEMPORARY, TOKEN_NAME)]
    leftovers += folder.path(shards.HANDOVER).glob("*")
    for pattern in ("references/*/*", "runs/*/*", "runs/*/shards/*"):
        leftovers.extend(folder.root.glob(pattern + TEMPORARY))
    with disk_errors(folder.root):
        quarantined = [path for path in folder.path(QUARANTINE).rglob("*") if path.is_file()]
        # Its ctime is that of its renaming.
        leftovers += [path for path in quarantined if path.lstat().st_ctime < time.time() - _QUARANTINE_S]
        for path in filter(folder.holds, leftovers):
            path.unlink(missing_ok=True)


def unnamed_files(catalog: Catalog) -> set[str]:
    """The embedding shards and index segments that no row names, half-written ones as well."""
    root = catalog.folder.root
    with disk_errors(root):
        paths = [path for part in ("embeddings", "references") for path in root.glob(f"{part}/*/*")]
        files = [path for path in paths if path.is_file() and catalog.folder.holds(path)]
    found = {path.relative_to(root).as_posix() for path in files}
    named = catalog.column("SELECT file FROM core.embedding_shards UNION ALL SELECT file FROM core.segments")
    return found.difference(named, pending_files(catalog))
