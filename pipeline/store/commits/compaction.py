"""Compaction: moves pending embeddings (posted faces, faces that a regroup admitted) into shards, and merges small
shards.

Each shard is written, then named by one transaction. Vectors of faces removed meanwhile are removed from it at the end.
Its name has its lowest face, so repeating after a crash writes the same file again.
"""

from __future__ import annotations

import pyarrow as pa

from pipeline.store import erasure
from pipeline.store.catalog.connection import Catalog, OpenStore
from pipeline.store.catalog.references import add_embedding_shard
from pipeline.store.files import shards

# 8 MiB of 512 float32: short enough that a server's commits never wait long.
SHARD_ROWS = 4096
_SMALL_SHARDS = 16  # number that triggers a merge: each vector is written about once more per so many compactions


def compact(store: OpenStore, min_pending: int) -> int:
    """Moves embeddings into shards if at least `min_pending` are pending, and merges small shards if there are many.

    Returns the number moved. Must not run concurrently. Raises StoreDamaged, StoreFull, StoreUnwritable.
    """
    moved = 0
    waiting = store.submit(count_pending)
    while moved < waiting and waiting >= min_pending:
        table = store.submit(_pending)
        if table.num_rows == 0:  # the rest was removed
            break
        file = store.submit(_new_file, table["face_id"][0].as_py())
        written = shards.write_embeddings(store.folder, file, table, store.generations[store.generation])
        store.submit(_commit_pending, table, written)
        moved += table.num_rows
    small = store.submit(_small_shards)
    if len(small) >= _SMALL_SHARDS:
        erasure.rewrite_shards(store, small)
    erasure.rewrite_stale_shards(store)
    return moved


def count_pending(catalog: Catalog) -> int:
    """The number of pending embeddings."""
    return int(catalog.one("SELECT count(*) FROM core.pending_embeddings WHERE generation = ?", [catalog.generation]))


def _pending(catalog: Catalog) -> pa.Table:
    """Up to SHARD_ROWS pending embeddings, lowest face ids first, as `embeddings_schema`."""
    table = catalog.read(
        "SELECT face_id, embedding FROM core.pending_embeddings WHERE generation = ? ORDER BY face_id LIMIT ?",
        [catalog.generation, SHARD_ROWS],
    )
    vectors = shards.vectors_of_bytes(table["embedding"], catalog.identity.embedding_size)
    return shards.embedding_rows(table["face_id"].to_numpy(), vectors)


def _new_file(catalog: Catalog, face_id: int) -> str:
    """An unused name for a shard with this lowest face, not one being deleted either: a face that an undo rejected may
    return."""
    stem = f"embeddings/g{catalog.generation:04d}/folded-{face_id}"
    named = "SELECT file FROM core.embedding_shards UNION ALL SELECT path FROM core.pending_deletes"
    names = catalog.column(f"SELECT * FROM ({named}) t(name) WHERE starts_with(name, ?)", [stem])
    taken = set(map(shards.embedding_stem, names))
    return next(s for s in (stem, *(f"{stem}-{n}" for n in range(2, len(taken) + 3))) if s not in taken) + ".parquet"


def _commit_pending(catalog: Catalog, table: pa.Table, file: shards.WrittenFile) -> None:
    """The transaction that moves these embeddings to the shard."""
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
    """Small shards that are not of runs, oldest first, that fit into one."""
    return catalog.rows(
        "SELECT embedding_shard_id, file, sha256 FROM core.embedding_shards"
        ' WHERE generation = ? AND run_id IS NULL AND "rows" <= ?'
        ' QUALIFY sum("rows") OVER (ORDER BY embedding_shard_id) <= ? ORDER BY 1',
        [catalog.generation, SHARD_ROWS // 2, SHARD_ROWS],
    )
