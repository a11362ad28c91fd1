"""Growing a directory's reference matrix after a shard's commit: a cache, so nobody waits for it, and in pieces, so
that others commit in between. The shard's own vectors are at hand; reading them back would hold the others up."""

from __future__ import annotations

from functools import partial

import numpy as np

from pipeline.store.catalog import Catalog
from pipeline.store.commit import PreparedShard
from pipeline.store.directories import directory_id
from pipeline.store.fold import Submit
from pipeline.store.references import NewRows, append_rows, new_rows
from pipeline.store.shards import vectors_of
from pipeline.types import FloatArray, IntArray


def grow_matrices(submit: Submit, prepared: PreparedShard, size: int) -> None:
    """Adds to the matrices of the directories in which the committed shard inserted persons."""
    embeddings = prepared.tables["embeddings"].sort_by("face_id")
    held: IntArray = embeddings["face_id"].to_numpy()
    vectors = vectors_of(embeddings["embedding"], size)
    for name in prepared.tables["persons"]["directory"].unique().to_pylist():
        plan = partial(_next_rows, prepared=prepared, size=size, name=name, held=held)
        while (rows := submit(plan)) is not None:
            submit(partial(append_rows, rows=rows, vectors=_filled(rows, held, vectors)))
            if rows.last:
                break


def _next_rows(catalog: Catalog, prepared: PreparedShard, size: int, name: str, held: IntArray) -> NewRows | None:
    """None where the directory is gone again."""
    directory = directory_id(catalog, prepared.commit.account_id, name)
    return None if directory is None else new_rows(catalog, prepared.generation, size, directory, held)


def _filled(rows: NewRows, held: IntArray, vectors: FloatArray) -> FloatArray:
    own = np.flatnonzero(np.isin(rows.faces, held))
    filled: FloatArray = rows.vectors.copy()
    filled[own] = vectors[np.searchsorted(held, rows.faces[own])]
    return filled
