"""Appends a committed shard's references to the reference matrices of its directories.

A matrix is a cache, so nobody waits for it: it grows in pieces, and other commits go on in between. The shard's own
vectors are in memory; reading them back would hold the others up.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa

from pipeline.store.catalog.connection import Catalog, Submit
from pipeline.store.catalog.directories import directory_id
from pipeline.store.catalog.references import load_embeddings
from pipeline.store.commits.shard import PreparedShard
from pipeline.store.files import matrix
from pipeline.store.files.shards import vectors_of
from pipeline.types import FloatArray, IntArray

_PIECE_ROWS = 2048  # 4 MiB of 512 float32


@dataclass(frozen=True)
class NewRows:
    """References that a directory's matrix lacks, in the order of their numbers; at most _PIECE_ROWS."""

    name: str  # of the matrix
    seq: IntArray  # [m]
    vectors: FloatArray  # [m, d]


def grow_matrices(submit: Submit, prepared: PreparedShard) -> None:
    """Adds to the matrices of the directories in which the committed shard inserted persons. Raises StoreDamaged."""
    embeddings = prepared.tables["embeddings"].sort_by("face_id")
    for directory in prepared.tables["persons"]["directory"].unique().to_pylist():
        account_id = prepared.commit.account_id
        plan = partial(_new_rows, account_id=account_id, directory=directory, embeddings=embeddings)
        while (rows := submit(plan)) is not None:
            submit(partial(append_rows, rows=rows))
            if len(rows.seq) < _PIECE_ROWS:
                break


def _new_rows(catalog: Catalog, account_id: int, directory: str, embeddings: pa.Table) -> NewRows | None:
    """What follows the last row of the directory's matrix; None where the directory is gone again.

    `embeddings`: face ids, ascending, and vectors that need not be read.
    """
    number = directory_id(catalog, account_id, directory)
    if number is None:
        return None
    size, name = catalog.identity.embedding_size, matrix.stem(catalog.generation, number)
    table = catalog.read(
        "SELECT r.seq, r.face_id FROM core.reference_faces r JOIN core.persons p ON p.person_id = r.person_id"
        " WHERE r.generation = ? AND r.seq > ? AND p.directory_id = ? ORDER BY r.seq LIMIT ?",
        [catalog.generation, _last(catalog, name), number, _PIECE_ROWS],
    )
    faces: IntArray = table["face_id"].to_numpy()
    in_memory = embeddings["face_id"].to_numpy()
    own = np.isin(faces, in_memory)
    vectors = np.empty((len(faces), size), np.float32)
    vectors[own] = vectors_of(embeddings["embedding"], size)[np.searchsorted(in_memory, faces[own])]
    if not own.all():
        vectors[~own] = load_embeddings(catalog, faces[~own])
    return NewRows(name, table["seq"].to_numpy(), vectors)


def append_rows(catalog: Catalog, rows: NewRows) -> None:
    """Adds the rows but for those that the matrix got meanwhile, and those that were deleted meanwhile: nothing would
    take these out of the matrix of a directory that is gone."""
    if not len(rows.seq):
        return
    current = catalog.read(
        "SELECT seq FROM core.reference_faces WHERE generation = ? AND seq BETWEEN ? AND ?",
        [catalog.generation, int(rows.seq[0]), int(rows.seq[-1])],
    )
    lacking = np.isin(rows.seq, current["seq"].to_numpy()) & (rows.seq > _last(catalog, rows.name))
    if lacking.any():
        vectors = rows.vectors[lacking]
        matrix.append(catalog.folder, rows.name, rows.seq[lacking], vectors.shape[1], lambda part: vectors[part])


def _last(catalog: Catalog, name: str) -> int:
    """The highest number in a matrix."""
    return int(matrix.numbers(catalog.folder, name, catalog.identity.embedding_size).max(initial=0))
