"""Compaction: moves embeddings of posted faces, and of those that a regroup admitted, from the catalog into shards, and
merges small shards.

Each shard is written first, then one transaction names it. Other commits may come between two transactions, so a face
may be removed while its new shard is written: `compact` takes its vector out at the end.

A new shard is `folded-<face>.parquet`, named by the lowest of its faces, or `folded-<face>-2` if that name was used
before. So a compaction that is repeated after a crash writes the same file again.
"""

from __future__ import annotations

import pyarrow as pa

from pipeline.store import erasure
from pipeline.store.catalog.connection import Catalog, OpenStore
from pipeline.store.catalog.references import add_embedding_shard
from pipeline.store.files import shards

# 8 MiB of 512 float32: written in a moment, so that a server's commits never wait long.
SHARD_ROWS = 4096
_SMALL_SHARDS = 16  # so many are merged: each vector is written about once more for as many compactions


def compact(store: OpenStore, min_pending: int) -> int:
    """Moves the embeddings into shards if at least `min_pending` wait, and merges small shards if there are many.

    Returns how many embeddings moved. One compaction at a time. Raises StoreDamaged, StoreFull, StoreUnwritable.
    """
    metadata = shards.embedding_metadata(store.identity, store.generation)
    moved = 0
    waiting = store.submit(count_pending)
    while moved < waiting and waiting >= min_pending:
        table = store.submit(_pending)
        if table.num_rows == 0:  # the rest was removed meanwhile
            break
        file = store.submit(_new_file, table["face_id"][0].as_py())
        written = shards.write_embeddings(store.folder, file, table, metadata)
        store.submit(_commit_pending, table, written)
        moved += table.num_rows
    small = store.submit(_small_shards)
    if len(small) >= _SMALL_SHARDS:
        erasure.rewrite_shards(store, small)
    erasure.rewrite_stale_shards(store)
    return moved


def count_pending(catalog: Catalog) -> int:
    """How many embeddings wait for compaction."""
    return int(catalog.one("SELECT count(*) FROM core.pending_embeddings WHERE generation = ?", [catalog.generation]))


def _pending(catalog: Catalog) -> pa.Table:
    """Up to SHARD_ROWS pending embeddings, the oldest faces first, as the rows of an embedding shard."""
    table = catalog.read(
        "SELECT face_id, embedding FROM core.pending_embeddings WHERE generation = ? ORDER BY face_id LIMIT ?",
        [catalog.generation, SHARD_ROWS],
    )
    vectors = shards.vectors_of_bytes(table["embedding"], catalog.identity.embedding_size)
    return shards.embedding_rows(table["face_id"].to_numpy(), vectors)


def _new_file(catalog: Catalog, face_id: int) -> str:
    """The name of a shard whose lowest face is this one. It is not in use, nor being deleted: a face that an undo
    rejected again may come a second time."""
    stem = f"embeddings/g{catalog.generation:04d}/folded-{face_id}"
    named = "SELECT file FROM core.embedding_shards UNION ALL SELECT path FROM core.pending_deletes"
    names = catalog.column(f"SELECT * FROM ({named}) t(name) WHERE starts_with(name, ?)", [stem])
    taken = set(map(shards.embedding_stem, names))
    return next(s for s in (stem, *(f"{stem}-{n}" for n in range(2, len(taken) + 3))) if s not in taken) + ".parquet"


def _commit_pending(catalog: Catalog, table: pa.Table, file: shards.WrittenFile) -> None:
    """The transaction: these embeddings are in the shard from now on."""
    generation = catalog.generation
    with catalog.tables(moved=table.select(["face_id"])), catalog.transaction("fold"):
        shard_id = add_embedding_shard(catalog, file)
        these = "generation = ? AND face_id IN (SELECT face_id FROM moved)"
        catalog.execute(
            f"INSERT INTO core.embeddings SELECT generation, face_id, ? FROM core.pending_embeddings WHERE {these}",
            [shard_id, generation],
        )
        catalog.execute(f"DELETE FROM core.pending_embeddings WHERE {these}", [generation])


def _small_shards(catalog: Catalog) -> list[erasure.ShardRow]:
    """Shards of posted images, the oldest first, that fit into one."""
    return catalog.rows(
        "SELECT embedding_shard_id, file, sha256 FROM core.embedding_shards"
        ' WHERE generation = ? AND run_id IS NULL AND "rows" <= ?'
        ' QUALIFY sum("rows") OVER (ORDER BY embedding_shard_id) <= ? ORDER BY 1',
        [catalog.generation, SHARD_ROWS // 2, SHARD_ROWS],
    )
