"""Clean-up: what a crash or a transaction leaves behind in a store, who removes it, and when.

half-written files (`*.tmp`)                    the write that fails; after a crash `sweep`, when the store is opened
transferred faces, the token of the admin port  the process that wrote them; after a crash `sweep`
embedding shards whose transaction never came   `sweep`
images whose transaction failed                 `discard_images`, at once
images whose transaction never came             `quarantine_images`, when the store is closed or opened
files that a transaction made needless          `unlink_after_commit`, at once; what is left then, `erase`
vectors of removed references in matrices       `erase`
vectors of removed faces in embedding shards    `erase`
quarantined files                               `sweep`, when they are seven days old
shards that cluster workers wrote               `ShardFolder.clear`, when the run has them
an unfinished creation of the store             `create_store`, when it is called again
any other file that no row names                `check --repair` quarantines it

A transaction lists needless files and matrices in core.pending_deletes, so no crash makes the store forget them. A
shard with more rows than the catalog has faces in it needs no list. `erase` runs when the store is opened, before each
compaction (`LocalStore.fold`: after a command, or while a server has little to do), and before `check`.

An image is written before the transaction that names it, so its guid is logged in INTENTS first. The log is not synced:
it has to outlive the process only. After a power cut `check` finds what was left.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import PurePosixPath
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.errors import StoreError
from pipeline.store.catalog.connection import Catalog, OpenStore
from pipeline.store.catalog.opening import CURRENT_NAME, INTENTS_NAME, utc_now
from pipeline.store.files import matrix, shards
from pipeline.store.files.commit_count import COMMITS_NAME
from pipeline.store.files.durable import NO_LINK, PRIVATE_FILE, QUARANTINE, TEMPORARY, Folder, disk_errors
from pipeline.store.files.lock import TOKEN_NAME
from pipeline.store.files.objects import is_guid, object_file

_log = logging.getLogger(__name__)

ShardRow = tuple[int, str, str]  # of core.embedding_shards: id, file, SHA-256
_QUARANTINE_S = 7 * 24 * 3600.0
_AT_ONCE: Final = 500  # files: requests come in between
# Only files in these folders are ever deleted, whatever the table says.
_DELETABLE = frozenset({"embeddings", "objects", "references", "runs"})
_MATRIX: Final = re.compile(r"references/g\d+/\d+")  # its path in core.pending_deletes: without an ending


# What a transaction lists


def delete_later(catalog: Catalog, files: Sequence[str]) -> None:
    """Inside a transaction: lists files to be deleted once it is committed."""
    if files:
        catalog.execute("INSERT INTO core.pending_deletes SELECT unnest(?::VARCHAR[]), ?", [list(files), utc_now()])


def blank_matrix_later(catalog: Catalog, directory: int) -> None:
    """Inside a transaction: lists a matrix whose removed rows are to be overwritten once it is committed."""
    stem = matrix.stem(catalog.generation, directory)
    if not catalog.rows("SELECT 1 FROM core.pending_deletes WHERE path = ?", [stem]):
        delete_later(catalog, [stem])


def pending_files(catalog: Catalog) -> list[str]:
    """The files that wait to be deleted."""
    return [path for path in _pending(catalog) if not _MATRIX.fullmatch(path)]


def is_deletable(relative: str) -> bool:
    """Whether a path of core.pending_deletes is a relative path to a file inside a part of the store."""
    parts = PurePosixPath(relative).parts
    return len(parts) > 1 and parts[0] in _DELETABLE and ".." not in parts


def _pending(catalog: Catalog) -> list[str]:
    return catalog.column("SELECT path FROM core.pending_deletes ORDER BY path")


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
    pending = set(_pending(catalog))  # of somebody, on purpose: these are deleted, not kept
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
    """At opening: removes what earlier processes left. If an erasure fails, the store can be used, and the next opening
    tries again. Raises StoreFull, StoreUnwritable."""
    if not catalog.read_only:
        _remove_leftovers(catalog.folder)
        quarantine_images(catalog)
        # A repeated commit writes the same file again. But a person in it may be deleted before that.
        for file in unnamed_embeddings(catalog):
            catalog.folder.unlink(file)
    root = catalog.folder.root
    if not left_to_erase(catalog):
        return
    if catalog.read_only:
        _log.warning("An erasure in the store %s is not finished: the next command that can write there does it.", root)
        return
    try:
        erase(catalog)
    except StoreError as exc:
        _log.warning("An erasure in the store %s could not be finished, and is tried again: %s", root, exc)
    else:
        _log.warning("Finished an erasure in the store %s that was interrupted.", root)


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


def unnamed_embeddings(catalog: Catalog) -> set[str]:
    """The embedding files that no row names, half-written ones as well."""
    root = catalog.folder.root
    with disk_errors(root):
        paths = [path for path in root.glob("embeddings/*/*") if path.is_file() and catalog.folder.holds(path)]
    found = {path.relative_to(root).as_posix() for path in paths}
    return found.difference(catalog.column("SELECT file FROM core.embedding_shards"))


# Erasing what transactions removed. Callers of a store that others use hold its `embeddings_lock`


def left_to_erase(catalog: Catalog) -> list[str]:
    """The files, matrices and shards that still have what transactions removed."""
    return [*_pending(catalog), *(file for _, file, _ in _stale_shards(catalog))]


def erase(store: OpenStore) -> None:
    """Removes from the files what transactions removed from the catalog. Raises StoreDamaged, StoreFull,
    StoreUnwritable."""
    unlink_pending(store)
    store.submit(_blank_matrices)
    rewrite_stale_shards(store)


def _blank_matrices(catalog: Catalog) -> None:
    """Overwrites the rows of removed references."""
    listed = [path for path in _pending(catalog) if _MATRIX.fullmatch(path)]
    for directory in catalog.column("SELECT directory_id FROM core.directories ORDER BY 1"):
        current = catalog.read(
            "SELECT r.seq FROM core.reference_faces r JOIN core.persons p ON p.person_id = r.person_id"
            " WHERE r.generation = ? AND p.directory_id = ?",
            [catalog.generation, directory],
        )
        stem, size = matrix.stem(catalog.generation, directory), catalog.identity.embedding_size
        matrix.blank(catalog.folder, stem, current["seq"].to_numpy(), size)
    _clear(catalog, listed)


def _stale_shards(catalog: Catalog) -> list[ShardRow]:
    """The shards with more rows than the catalog has faces in them. If there is none, equal sums tell it at once."""
    rows = catalog.one("SELECT coalesce(sum(rows), 0) FROM core.embedding_shards")
    if rows == catalog.one("SELECT count(*) FROM core.embeddings"):
        return []
    return catalog.rows(
        "SELECT embedding_shard_id, file, sha256 FROM core.embedding_shards s WHERE generation = ? AND rows >"
        " (SELECT count(*) FROM core.embeddings e WHERE e.embedding_shard_id = s.embedding_shard_id) ORDER BY 1",
        [catalog.generation],
    )


def rewrite_stale_shards(store: OpenStore) -> None:
    """Takes the vectors of removed and of rejected faces out of the shards. Raises as `erase`."""
    for shard in store.submit(_stale_shards):
        rewrite_shards(store, [shard])


def rewrite_shards(store: OpenStore, rows: Sequence[ShardRow]) -> None:
    """Replaces shards by one that has only the faces that the catalog has in them, or by none if it has none.

    The file is written first, then the transaction is committed, then the old files are deleted. A face that is removed
    in between stays in the file until the next `erase`. Repeated after a crash, it writes the same file again.
    """
    ids, files, hashes = map(list, zip(*rows, strict=True))
    faces = store.submit(_faces_in, ids)
    written = None
    if len(faces):
        for file, sha256 in zip(files, hashes, strict=True):
            # A damaged file must not become a new file whose hash is right.
            shards.require_hash(store.folder, file, sha256)
        table = pa.concat_tables([shards.read_parquet(store.folder, file) for file in files])
        kept = table.filter(pc.is_in(table["face_id"], faces))
        metadata = shards.embedding_metadata(store.identity, store.generation)
        written = shards.write_embeddings(store.folder, shards.rewritten_file(files[0]), kept, metadata)
    store.submit(_replace_shards, ids, files, written)
    unlink_pending(store)


def _faces_in(catalog: Catalog, shard_ids: Sequence[int]) -> pa.Array:
    sql = "SELECT face_id FROM core.embeddings WHERE list_contains(?, embedding_shard_id)"
    return catalog.read(sql, [shard_ids])["face_id"].combine_chunks()


def _replace_shards(
    catalog: Catalog, shard_ids: Sequence[int], files: Sequence[str], written: shards.WrittenFile | None
) -> None:
    """The transaction: the first shard is the new file, the others are removed; without a file all are."""
    removed = shard_ids[1:] if written else shard_ids
    with catalog.transaction("fold"):
        if written:
            catalog.execute(
                'UPDATE core.embedding_shards SET file = ?, "rows" = ?, bytes = ?, sha256 = ?'
                " WHERE embedding_shard_id = ?",
                [written.file, written.rows, written.bytes, written.sha256, shard_ids[0]],
            )
        if removed:
            catalog.execute(
                "UPDATE core.embeddings SET embedding_shard_id = ? WHERE list_contains(?, embedding_shard_id)",
                [shard_ids[0], removed],
            )
            catalog.execute("DELETE FROM core.embedding_shards WHERE list_contains(?, embedding_shard_id)", [removed])
        delete_later(catalog, files)
