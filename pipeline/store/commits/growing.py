"""Growing a directory's reference matrix after a shard's commit: a cache, so nobody waits for it, and in pieces, so
that others commit in between. The shard's own vectors are at hand; reading them back would hold the others up."""

from __future__ import annotations

from functools import partial

import pyarrow as pa

from pipeline.store.catalog.connection import Catalog
from pipeline.store.catalog.directories import directory_id
from pipeline.store.catalog.references import NewRows, append_rows, new_rows
from pipeline.store.commits.fold import Submit
from pipeline.store.commits.shard import PreparedShard
from pipeline.store.files.shards import vectors_of


def grow_matrices(submit: Submit, prepared: PreparedShard) -> None:
    """Adds to the matrices of the directories in which the committed shard inserted persons."""
    embeddings = prepared.tables["embeddings"].sort_by("face_id")
    for name in prepared.tables["persons"]["directory"].unique().to_pylist():
        plan = partial(_next_rows, prepared=prepared, name=name, embeddings=embeddings)
        while (rows := submit(plan)) is not None:
            submit(partial(append_rows, rows=rows))
            if rows.last:
                break


def _next_rows(catalog: Catalog, prepared: PreparedShard, name: str, embeddings: pa.Table) -> NewRows | None:
    """None where the directory is gone again."""
    directory = directory_id(catalog, prepared.commit.account_id, name)
    if directory is None:
        return None
    held, vectors = (
        embeddings["face_id"].to_numpy(),
        vectors_of(embeddings["embedding"], catalog.identity.embedding_size),
    )
    return new_rows(catalog, directory, held, vectors)
