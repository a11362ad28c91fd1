"""Erases from files what transactions removed from the catalog: deletes listed files, rewrites index segments and
embedding shards that contain removed references or vectors, and in time the catalog itself (`catalog.rewriting`).

A shard has more rows than the catalog has faces in it, a segment has tombstones, core.store has the time of the first
removal since the catalog was rewritten: no crash makes the store forget them. `erase` runs when a store is opened,
before each compaction (`LocalStore.fold`: after a command, or while a server is idle), and before `check`. If others
use the store, callers must hold its `embeddings_lock`.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.errors import StoreError
from pipeline.store import segments
from pipeline.store.catalog import rewriting
from pipeline.store.catalog.connection import Catalog, OpenStore, each_generation
from pipeline.store.catalog.opening import spill_folders
from pipeline.store.catalog.runs import give_up_runs
from pipeline.store.cleanup import delete_later, pending_files, remove_traces, unlink_pending
from pipeline.store.commits import removal
from pipeline.store.files import shards

ShardRow = tuple[int, str, str]  # core.embedding_shards: id, file, SHA-256
_log = logging.getLogger(__name__)


def left_to_erase(catalog: Catalog) -> list[str]:
    """Files, segments and shards that still contain removed data, catalogs of an interrupted rewriting, and what killed
    processes spilled."""
    left = [*pending_files(catalog), *rewriting.other_catalogs(catalog)]
    if catalog.read_only:  # otherwise the opening deleted them, and DuckDB may be using one
        left += [path.name for path in spill_folders(catalog.folder)]
    for generation in catalog.generations:
        with catalog.at(generation):
            left += [*segments.to_erase(catalog), *(file for _, file, _ in _stale_shards(catalog))]
    return left


def erase(store: OpenStore) -> None:
    """Erases all removed data, but for what is left in the catalog's file. Raises StoreDamaged, StoreFull,
    StoreUnwritable."""
    unlink_pending(store)
    store.submit(rewriting.remove_others)
    for part in each_generation(store):
        segments.rewrite(part)
        rewrite_stale_shards(part)


def erase_catalog(store: OpenStore) -> None:
    """Erases it from the catalog's file, too, and what interrupted runs and repairs keep of it. Raises as `erase`."""
    give_up_runs(store)
    store.submit(remove_traces)
    store.submit(removal.blank_leftovers)
    rewriting.rewrite(store)


def finish(store: OpenStore, *, read_only: bool, within_h: float) -> None:
    """At opening: completes an interrupted or overdue erasure. If that fails, the store is usable, and the next opening
    tries again."""
    root = store.folder.root
    interrupted = bool(store.submit(rewriting.other_catalogs))
    due = store.submit(rewriting.is_due, 0.0 if interrupted else within_h)
    if not due and not store.submit(left_to_erase):
        if read_only and (since := store.submit(rewriting.waits_since)):
            by = f"{rewriting.due_at(since, within_h):%F %T}"
            _log.warning(
                "In the store %s deleted data waits to be erased from the catalog's file, by %s UTC.", root, by
            )
        return
    if read_only:
        _log.warning("An erasure in the store %s is not finished: the next command that can write there does it.", root)
        return
    try:
        erase(store)
        if due:
            erase_catalog(store)
    except StoreError as exc:
        _log.warning("An erasure in the store %s could not be finished, and is tried again: %s", root, exc)
    else:
        _log.warning("Finished an erasure in the store %s that was interrupted or due.", root)


def _stale_shards(catalog: Catalog) -> list[ShardRow]:
    """Shards with more rows than the catalog has faces in them. Equal sums show at once that there are none."""
    rows = catalog.one("SELECT coalesce(sum(rows), 0) FROM core.embedding_shards")
    if rows == catalog.one("SELECT count(*) FROM core.embeddings"):
        return []
    return catalog.rows(
        "SELECT embedding_shard_id, file, sha256 FROM core.embedding_shards s WHERE generation = ? AND rows >"
        " (SELECT count(*) FROM core.embeddings e WHERE e.embedding_shard_id = s.embedding_shard_id) ORDER BY 1",
        [catalog.generation],
    )


def rewrite_stale_shards(store: OpenStore) -> None:
    """Removes vectors of removed and rejected faces from shards. Raises as `erase`."""
    for shard in store.submit(_stale_shards):
        rewrite_shards(store, [shard])


def rewrite_shards(store: OpenStore, rows: Sequence[ShardRow]) -> None:
    """Replaces shards by one with only the catalog's faces, or by none if none is left.

    Writes the file, commits the transaction, then deletes the old files. A face removed meanwhile stays in the file
    until the next `erase`. Repeating after a crash writes the same file again.
    """
    ids, files, hashes = map(list, zip(*rows, strict=True))
    faces = store.submit(_faces_in, ids)
    written = None
    if len(faces):
        for file, sha256 in zip(files, hashes, strict=True):
            # Damaged data must not get a new, correct hash.
            shards.require_hash(store.folder, file, sha256)
        table = pa.concat_tables([shards.read_parquet(store.folder, file) for file in files])
        kept = table.filter(pc.is_in(table["face_id"], faces))
        generation = store.generations[store.generation]
        written = shards.write_embeddings(store.folder, shards.rewritten_file(files[0]), kept, generation)
    store.submit(_replace_shards, ids, files, written)
    unlink_pending(store)


def _faces_in(catalog: Catalog, shard_ids: Sequence[int]) -> pa.Array:
    sql = "SELECT face_id FROM core.embeddings WHERE list_contains(?, embedding_shard_id)"
    return catalog.read(sql, [shard_ids])["face_id"].combine_chunks()


def _replace_shards(
    catalog: Catalog, shard_ids: Sequence[int], files: Sequence[str], written: shards.WrittenFile | None
) -> None:
    """The transaction: the first shard becomes the new file; the others, or without a file all, are removed."""
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
