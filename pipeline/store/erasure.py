"""Erasing from files what transactions removed from the catalog.

files that a transaction listed                  are deleted
index segments with references that are erased   are rewritten without them
embedding shards with vectors of removed faces   are rewritten without them

A shard with more rows than the catalog has faces in it needs no list, and a segment has its tombstones. So nothing that
a crash interrupts is forgotten. `erase` runs when a store is opened, before each compaction (`LocalStore.fold`: after a
command, or while a server has little to do), and before `check`.

Callers of a store that others use hold its `embeddings_lock`.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.errors import StoreError
from pipeline.store import segments
from pipeline.store.catalog.connection import Catalog, OpenStore, each_generation
from pipeline.store.cleanup import delete_later, pending_files, unlink_pending
from pipeline.store.files import shards

ShardRow = tuple[int, str, str]  # of core.embedding_shards: id, file, SHA-256
_log = logging.getLogger(__name__)


def left_to_erase(catalog: Catalog) -> list[str]:
    """The files, segments and shards that still have what transactions removed."""
    left = pending_files(catalog)
    for part in each_generation(catalog):
        left += [*part.submit(segments.to_erase), *(file for _, file, _ in part.submit(_stale_shards))]
    return left


def erase(store: OpenStore) -> None:
    """Removes from the files what transactions removed from the catalog. Raises StoreDamaged, StoreFull,
    StoreUnwritable."""
    unlink_pending(store)
    for part in each_generation(store):
        segments.rewrite(part)
        rewrite_stale_shards(part)


def finish(catalog: Catalog) -> None:
    """At opening: does what an earlier process did not finish. If that fails, the store can be used, and the next
    opening tries again."""
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
