"""Folding: embeddings of posted faces go from the catalog into shards, and vectors of removed faces out of them.

Files first, then one transaction for each shard, then what the shard replaces is unlinked. Between two transactions
other commits go on, so a face may be removed while its new shard is written: the next fold takes it out again.

A new shard is `folded-<face>.parquet`, after the lowest of its faces: a fold that is repeated after a crash writes
the same file again.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol, TypeVar

import pyarrow as pa

from pipeline.store.catalog.connection import Catalog
from pipeline.store.commits.rewriting import SHARD_ROWS, commit_rewriting, plan_rewritings, rewrite
from pipeline.store.files import matrix
from pipeline.store.files.durable import Folder, disk_errors
from pipeline.store.files.shards import WrittenFile, embedding_metadata, vectors_of_bytes, write_embeddings
from pipeline.store.records import StoreIdentity, embeddings_schema

T = TypeVar("T")


class Submit(Protocol):
    """Does work with the catalog, on its thread."""

    def __call__(self, work: Callable[[Catalog], T], /) -> T: ...


def fold(submit: Submit, folder: Folder, identity: StoreIdentity, generation: int, min_pending: int) -> int:
    """Does all of it; returns how many embeddings moved. One at a time. Raises StoreDamaged, StoreFull."""
    moved = 0
    waiting = submit(lambda catalog: count_pending(catalog))
    while moved < waiting and waiting >= min_pending:
        table = submit(lambda catalog: pending(catalog))
        if table.num_rows == 0:  # the rest was removed meanwhile
            break
        written = write_pending(folder, identity, generation, table)
        submit(partial(commit_pending, table=table, file=written))
        moved += table.num_rows
    for planned in submit(lambda catalog: plan_rewritings(catalog)):
        rewritten = rewrite(folder, identity, generation, planned)
        submit(partial(commit_rewriting, rewriting=planned, file=rewritten))
    submit(lambda catalog: blank_matrices(catalog))
    return moved


def sweep(catalog: Catalog) -> None:
    """At opening: removes the embedding files that no row speaks of. A commit that was cut off left them; repeated,
    it would write the same file again, but a vector in it may be of somebody who is deleted before that."""
    spoken_of = {file for (file,) in catalog.rows("SELECT file FROM core.embedding_shards")}
    root = catalog.folder.root
    with disk_errors(root):
        found = [path.relative_to(root).as_posix() for path in root.glob("embeddings/*/*") if path.is_file()]
    for file in set(found) - spoken_of:
        catalog.folder.unlink(file)


def count_pending(catalog: Catalog) -> int:
    """How many embeddings wait for `fold`."""
    return int(catalog.one("SELECT count(*) FROM core.pending_embeddings WHERE generation = ?", [catalog.generation]))


def pending(catalog: Catalog) -> pa.Table:
    """Up to SHARD_ROWS pending embeddings, the oldest faces first, as the rows of an embedding shard."""
    table = catalog.read(
        "SELECT face_id, embedding FROM core.pending_embeddings WHERE generation = ? ORDER BY face_id LIMIT ?",
        [catalog.generation, SHARD_ROWS],
    )
    size = catalog.identity.embedding_size
    vectors = vectors_of_bytes(table["embedding"], size)
    column = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1), pa.float32()), size)
    return pa.table([table["face_id"].combine_chunks(), column], schema=embeddings_schema(size))


def write_pending(folder: Folder, identity: StoreIdentity, generation: int, table: pa.Table) -> WrittenFile:
    """Raises StoreFull, StoreUnwritable."""
    file = f"embeddings/g{generation:04d}/folded-{table['face_id'][0]}.parquet"
    return write_embeddings(folder, file, table, embedding_metadata(identity, generation))


def commit_pending(catalog: Catalog, table: pa.Table, file: WrittenFile) -> None:
    """The transaction: these embeddings are in the shard from now on."""
    generation = catalog.generation
    with catalog.tables(folded=table.select(["face_id"])), catalog.transaction("fold"):
        shard_id = int(catalog.one("SELECT coalesce(max(embedding_shard_id), 0) + 1 FROM core.embedding_shards"))
        catalog.insert(
            "embedding_shards",
            [
                {
                    "embedding_shard_id": shard_id,
                    "generation": generation,
                    "file": file.file,
                    "rows": file.rows,
                    "bytes": file.bytes,
                    "sha256": file.sha256,
                }
            ],
        )
        these = "generation = ? AND face_id IN (SELECT face_id FROM folded)"
        catalog.execute(
            f"INSERT INTO core.embeddings SELECT generation, face_id, ? FROM core.pending_embeddings WHERE {these}",
            [shard_id, generation],
        )
        catalog.execute(f"DELETE FROM core.pending_embeddings WHERE {these}", [generation])


def blank_matrices(catalog: Catalog) -> None:
    """Overwrites what the reference matrices hold of references that are gone."""
    for (directory,) in catalog.rows("SELECT directory_id FROM core.directories ORDER BY 1"):
        current = catalog.read(
            "SELECT r.seq FROM core.reference_faces r JOIN core.persons p ON p.person_id = r.person_id"
            " WHERE r.generation = ? AND p.directory_id = ?",
            [catalog.generation, directory],
        )
        stem, size = matrix.stem(catalog.generation, directory), catalog.identity.embedding_size
        matrix.blank(catalog.folder, stem, current["seq"].to_numpy(), size)
