"""The tables that other programs read, in memory or exported; FORMAT.md promises their columns."""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa

from pipeline.errors import UsageError
from pipeline.store.catalog.connection import Catalog
from pipeline.store.catalog.references import load_embeddings
from pipeline.store.records import embeddings_schema

_ORDER: Final = {"media": "media_id", "faces": "face_id", "persons": "added_at, person_id"}


def view_query(view: str) -> str:
    """The SQL that reads a public view in its order. Raises UsageError where there is none of that name."""
    if view not in _ORDER:
        raise UsageError(message=f"There is no table {view}. There are: {', '.join(_ORDER)}.")
    return f"SELECT * FROM main.{view} ORDER BY {_ORDER[view]}"


def view_table(catalog: Catalog, view: str) -> pa.Table:
    """All rows of the public view `media`, `faces` or `persons`. Raises UsageError for another name."""
    return catalog.read(view_query(view))


def embeddings_table(catalog: Catalog, after: int, limit: int) -> pa.Table:
    """The embeddings (`embeddings_schema`) of the first `limit` faces whose id is above `after`, by id."""
    faces = catalog.read(
        "SELECT face_id FROM core.embeddings WHERE generation = $1 AND face_id > $2"
        " UNION SELECT face_id FROM core.pending_embeddings WHERE generation = $1 AND face_id > $2"
        " ORDER BY face_id LIMIT $3",
        [catalog.generation, after, limit],
    )["face_id"].to_numpy()
    size = catalog.identity.embedding_size
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(np.ravel(load_embeddings(catalog, faces))), size)
    return pa.table([pa.array(faces), vectors], schema=embeddings_schema(size))
