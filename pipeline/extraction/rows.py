"""Extracted rows as objects: what the engine wrote of each manifest row, joined with the manifest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.types import FloatArray

_PLAIN = ("x1", "y1", "x2", "y2", "landmarks", "confidence")
_QUALITIES = ("center_pose_quality", "sharpness_quality", "contrast_quality")
FACE_COLUMNS = (*_PLAIN, *_QUALITIES)


@dataclass(frozen=True)
class ExtractedFace:
    """One face; `fields` are FACE_COLUMNS, `crop` the image to store (None: to be cut from the file)."""

    fields: Mapping[str, Any]
    embedding: FloatArray  # [d] float32
    crop: bytes | None

    @property
    def box(self) -> tuple[float, float, float, float]:
        f = self.fields
        return f["x1"], f["y1"], f["x2"], f["y2"]


@dataclass
class ExtractedRow:
    """One manifest row (`manifest`: its columns), what became of its image, and its faces, largest first."""

    manifest: Mapping[str, Any]
    status: str
    reason: str | None
    sha256: str | None
    image: dict[str, Any]  # pixel_sha256, width, height, format: None where nothing was decoded
    faces: Sequence[ExtractedFace] = field(default_factory=tuple)
    duplicate_of: int | None = None  # the media_id whose faces these are


IMAGE_COLUMNS = ("pixel_sha256", "width", "height", "format")


def read_rows(manifest: pa.Table, shard: pa.Table) -> list[ExtractedRow]:
    """Joins a shard's manifest rows with its extraction (engines' shard schema), row by row."""
    faces = faces_of_rows(shard)
    plain = shard.drop_columns(["faces"]).to_pylist()
    return [
        ExtractedRow(m, r["status"], r["reason"], r["sha256"], {k: r[k] for k in IMAGE_COLUMNS}, f)
        for m, r, f in zip(manifest.to_pylist(), plain, faces, strict=True)
    ]


def faces_of_rows(shard: pa.Table) -> list[list[ExtractedFace]]:
    """The faces of each row of a shard."""
    column = shard["faces"].combine_chunks()
    flat = faces_of_table(pa.Table.from_struct_array(column.flatten()))
    counts = [0 if c is None else c for c in column.value_lengths().to_pylist()]
    ends = np.cumsum(counts).tolist()
    return [flat[end - count : end] for count, end in zip(counts, ends, strict=True)]


def faces_of_table(table: pa.Table) -> list[ExtractedFace]:
    """A table with FACE_COLUMNS, `embedding` and perhaps `crop` as objects."""
    if len(table) == 0:
        return []
    embeddings = embedding_matrix(table["embedding"])
    crops = table["crop"].to_pylist() if "crop" in table.column_names else [None] * len(table)
    fields = table.select(FACE_COLUMNS).to_pylist()
    return [ExtractedFace(f, e, c) for f, e, c in zip(fields, embeddings, crops, strict=True)]


def embedding_matrix(column: pa.ChunkedArray) -> FloatArray:
    """A column of fixed-size lists as [n, d] float32, a copy: Arrow's own memory is read-only, which torch refuses."""
    array = column.combine_chunks()
    numbers: FloatArray = array.flatten().to_numpy(zero_copy_only=False)
    return np.array(numbers, dtype=np.float32).reshape(len(array), -1)
