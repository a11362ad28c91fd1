"""Extraction's input manifest, output table, and both joined as objects.

The manifest is complete before decoding starts. The engine writes one row of `shard_schema` per manifest row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa

from pipeline.types import QUALITIES, FloatArray, Measured

# Actions for manifest rows.
EXTRACT: Final = "extract"  # decode the image and find its faces
REUSE_ROW: Final = "reuse_row"  # same bytes as an earlier row of this run: copy its faces
REUSE_MEDIA: Final = "reuse_media"  # same bytes as an image in the store: copy its faces
SKIP: Final = "skip"  # nothing to extract: rejected by the scan, or repeated

MANIFEST_SCHEMA = pa.schema(
    [
        pa.field("row", pa.int64(), nullable=False),  # from 0
        pa.field("path", pa.string(), nullable=False),  # as shown
        pa.field("file", pa.binary(), nullable=False),  # as opened: the file system's bytes
        pa.field("directory", pa.string(), nullable=False),
        pa.field("name", pa.string()),
        pa.field("external_id", pa.string()),
        pa.field("extra", pa.string()),  # the source's other columns, a JSON object
        pa.field("sha256", pa.string()),
        pa.field("bytes", pa.int64()),
        # Null if they would not reveal a change after hashing.
        pa.field("mtime_ns", pa.int64()),
        pa.field("ctime_ns", pa.int64()),
        pa.field("inode", pa.int64()),
        pa.field("pixels", pa.int64()),  # of EXTRACT: from the header, or an estimate
        pa.field("action", pa.string(), nullable=False),
        pa.field("source_row", pa.int64()),  # of REUSE_ROW
        pa.field("source_media", pa.int64()),  # of REUSE_MEDIA
        pa.field("status", pa.string()),  # of SKIP
        pa.field("reason", pa.string()),
        pa.field("replaces", pa.list_(pa.int64())),  # media of the path's previous content, if this is usable
    ]
)

PLACE_COLUMNS = ("x1", "y1", "x2", "y2", "landmarks", "confidence")
FACE_COLUMNS = (*PLACE_COLUMNS, *QUALITIES)
CROP = pa.field("crop", pa.binary())
IMAGE_COLUMNS = ("pixel_hash", "width", "height", "format", "taken_at")  # null if no image was decoded


# The face's measurements by another model (`Measured`), if any.
OTHER = pa.field(
    "other",
    pa.struct(
        [
            ("model", pa.string()),
            ("qualities", pa.list_(pa.float32(), len(QUALITIES))),
            ("embedding", pa.list_(pa.float32())),
        ]
    ),
)


MODEL: Final = "model"  # metadata of face tables: `StoreIdentity.model`


def face_schema(embedding_size: int) -> pa.Schema:
    """Columns of an extracted face; boxes are clipped to the image, landmarks are not."""
    numbers = pa.list_(pa.float32(), 10), pa.list_(pa.float32(), embedding_size)
    kinds = dict.fromkeys(FACE_COLUMNS, pa.float32()) | {"landmarks": numbers[0], "embedding": numbers[1]}
    return pa.schema([*kinds.items(), OTHER])


# A manifest with known faces: the PLACE_COLUMNS of faces to rate and embed again.
PLACES = pa.field("faces", pa.list_(pa.struct([field for field in face_schema(0) if field.name in PLACE_COLUMNS])))
PLACES_SCHEMA = pa.schema([*PLACES.type.value_type])
KNOWN_FACES_SCHEMA = MANIFEST_SCHEMA.append(PLACES)


def shard_schema(embedding_size: int) -> pa.Schema:
    """Extraction's output per manifest row. `faces` is null if no image was decoded.

    `sha256` is null if the file changed or vanished after the scan; the next run retries. `crop` is the picture if the
    face becomes a reference; null: still to be cut from the photo.
    """
    face = [*face_schema(embedding_size), CROP]
    columns = [
        ("row", pa.int64()),
        ("status", pa.string()),
        ("reason", pa.string()),
        ("sha256", pa.string()),
        ("pixel_hash", pa.string()),
        ("width", pa.int32()),
        ("height", pa.int32()),
        ("format", pa.string()),
        ("taken_at", pa.timestamp("us")),
        ("faces", pa.list_(pa.struct(face))),
    ]
    return pa.schema(columns)


@dataclass(frozen=True)
class ExtractedFace:
    """One face: FACE_COLUMNS in `fields`, and its picture (None: still to be cut from the photo)."""

    fields: Mapping[str, Any]
    embedding: FloatArray  # [d] float32
    crop: bytes | None
    other: Measured | None = None

    @property
    def box(self) -> tuple[float, float, float, float]:
        f = self.fields
        return f["x1"], f["y1"], f["x2"], f["y2"]

    @property
    def qualities(self) -> list[float]:
        """In the order of QUALITIES."""
        return [self.fields[name] for name in QUALITIES]


def as_measured_by(model: str, face: ExtractedFace, first: str) -> ExtractedFace | None:
    """The face with `model`'s measurements, swapped with those of `first` if needed; None if `model` has none."""
    other = face.other
    if first in ("", model):  # "": the extractor has no name
        return face
    if other is None or other.model != model or other.embedding is None:
        return None
    fields = {**face.fields, **dict(zip(QUALITIES, other.qualities, strict=True))}
    measured = Measured(first, face.qualities, face.embedding)
    return replace(face, fields=fields, embedding=other.embedding, other=measured)


@dataclass
class ExtractedRow:
    """A manifest row, its image's outcome, and its faces, largest first."""

    manifest: Mapping[str, Any]
    status: str
    reason: str | None
    sha256: str | None
    image: dict[str, Any]  # IMAGE_COLUMNS
    faces: Sequence[ExtractedFace] = field(default_factory=tuple)
    duplicate_of: int | None = None  # media_id of these faces


def read_rows(manifest: pa.Table, shard: pa.Table) -> list[ExtractedRow]:
    """Joins a shard's manifest rows with their extraction (`shard_schema`)."""
    lists = shard["faces"].combine_chunks()
    faces = faces_of_table(pa.Table.from_struct_array(lists.flatten()))
    counts = [count or 0 for count in lists.value_lengths().to_pylist()]
    ends = np.cumsum(counts).tolist()
    # Older run shards name the hash differently, and have no date.
    names = ["pixel_hash" if name == "pixel_sha256" else name for name in shard.column_names]
    plain = shard.rename_columns(names).drop_columns(["faces"]).to_pylist()
    return [
        ExtractedRow(
            m, r["status"], r["reason"], r["sha256"], {k: r.get(k) for k in IMAGE_COLUMNS}, faces[end - n : end]
        )
        for m, r, n, end in zip(manifest.to_pylist(), plain, counts, ends, strict=True)
    ]


def faces_of_table(table: pa.Table) -> list[ExtractedFace]:
    """Objects from a table with FACE_COLUMNS, `embedding`, and optionally `crop` and `other`."""
    if len(table) == 0:
        return []
    column = table["embedding"].combine_chunks()
    numbers = column.flatten().to_numpy(zero_copy_only=False)
    # A copy: torch refuses Arrow's read-only memory.
    embeddings = np.array(numbers, dtype=np.float32).reshape(len(table), -1)
    nothing = [None] * len(table)
    crops = table["crop"].to_pylist() if "crop" in table.column_names else nothing
    # Older run shards lack it.
    others = table[OTHER.name].to_pylist() if OTHER.name in table.column_names else nothing
    fields = table.select(FACE_COLUMNS).to_pylist()
    return [
        ExtractedFace(
            f, e, c, None if o is None else Measured(**o | {"embedding": np.array(o["embedding"], np.float32)})
        )
        for f, e, c, o in zip(fields, embeddings, crops, others, strict=True)
    ]


def fixed_lists(rows: FloatArray) -> pa.FixedSizeListArray:
    """[n, d] float32 as an Arrow array of n fixed-size lists."""
    return pa.FixedSizeListArray.from_arrays(pa.array(rows.ravel()), rows.shape[1])
