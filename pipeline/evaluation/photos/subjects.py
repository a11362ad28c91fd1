"""Where the embeddings of an evaluation come from: a store that has them already, or the models.

Of each photo it is the face whose box's centre lies nearest the photo's centre, as is usual for LFW.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.evaluation.photos.decoded import decoded_batches
from pipeline.evaluation.photos.stored import NOT_IN_STORE, NOT_KEPT, unusable
from pipeline.extraction.extractor import FaceExtractor
from pipeline.extraction.images.decode import Decoder
from pipeline.extraction.images.files import shown
from pipeline.extraction.rows import QUALITIES
from pipeline.matching.references import check_embeddings
from pipeline.store.files.shards import damaged_file, read_embeddings, vectors_of
from pipeline.store.operations import Store
from pipeline.types import BoolArray, DecodedImage, FloatArray


@dataclass(frozen=True)
class Portraits:
    """n photos, and the face nearest the centre of each. Raises EmbeddingInvalid for a vector that is neither of norm
    1 nor all NaN."""

    paths: Sequence[str]  # [n] as the store and reports show them; none stands twice
    embeddings: FloatArray  # [n, d] float32 of norm 1; all NaN where no face was found
    quality: FloatArray  # [n, 3] in [0, 1] as `extract.QUALITIES`; NaN where no face was found
    skipped: dict[str, str]  # the other paths that were asked for -> why nothing can be said of them

    def __post_init__(self) -> None:
        check_embeddings(self.embeddings[self.has_face], self.embeddings.shape[1])

    @cached_property
    def row(self) -> dict[str, int]:
        """Where each path stands."""
        return {path: row for row, path in enumerate(self.paths)}

    @cached_property
    def has_face(self) -> BoolArray:
        """[n]"""
        # A vector that is NaN in part is no missing face but a broken one.
        return np.asarray(~np.isnan(self.embeddings).all(axis=1))


def from_images(
    extractor: FaceExtractor,
    decoder: Decoder,
    paths: Sequence[Path],
    advance: Callable[[int], None] = lambda _count: None,
) -> Portraits:
    """Decodes and extracts the photos, each once; `advance(n)` as n of them are done.

    A photo that cannot be read or decoded is in `skipped` with its reason. Raises DeviceOutOfMemory.
    """
    files = {shown(path): path for path in paths}
    skipped: dict[str, str] = {}
    kept: list[str] = []
    vectors = [np.empty((0, extractor.embedder.embedding_size), np.float32)]
    qualities = [np.empty((0, len(QUALITIES)), np.float32)]
    for batch in decoded_batches(files, decoder, extractor.settings.run, skipped.__setitem__, advance):
        tables = extractor.extract([image for _, image in batch])
        kept += [name for name, _ in batch]
        for (_, image), faces in zip(batch, tables, strict=True):
            vector, quality = _central(faces, image, vectors[0].shape[1])
            vectors.append(vector)
            qualities.append(quality)
        advance(len(batch))
    return Portraits(kept, np.concatenate(vectors), np.concatenate(qualities), skipped)


def _central(faces: pa.Table, image: DecodedImage, size: int) -> tuple[FloatArray, FloatArray]:
    """The embedding [1, size] and the qualities [1, 3] of the face nearest the centre; NaN without a face."""
    if not len(faces):
        return np.full((1, size), np.nan, np.float32), np.full((1, len(QUALITIES)), np.nan, np.float32)
    corners = np.stack([faces[name].to_numpy() for name in ("x1", "y1", "x2", "y2")], axis=1).astype(np.float64)
    offsets = corners[:, :2] + corners[:, 2:] - np.array([image.width, image.height])
    row = int((offsets**2).sum(axis=1).argmin())
    quality = np.array([[faces[name][row].as_py() for name in QUALITIES]], np.float32)
    return vectors_of(faces["embedding"], size)[row : row + 1], quality


def from_store(store: Store, paths: Sequence[str]) -> Portraits:
    """What the store's current generation has of the photos at `paths`, in whatever directory; nothing is computed.

    In `skipped`: photos that the store does not know, that it could not read, of persons who were deleted, and those
    whose face its quality gate rejected, for of these it keeps no embedding. Raises StoreDamaged where an embedding
    that should be there is not, and EmbeddingInvalid.
    """
    table = store.central_faces(list(paths))
    position = {path: row for row, path in enumerate(table["path"].to_pylist())}
    columns = {name: table[name].to_pylist() for name in ("status", "reason", "face_id", "file", "deleted")}
    skipped: dict[str, str] = {}
    kept: list[str] = []
    for path in dict.fromkeys(paths):
        problem = _why_not(columns, position.get(path))
        if problem is None:
            kept.append(path)
        else:
            skipped[path] = problem
    rows = np.array([position[path] for path in kept], dtype=np.int64)
    picked = table.take(pa.array(rows))
    quality = np.stack([picked[name].to_numpy().astype(np.float32) for name in QUALITIES], axis=1)
    return Portraits(kept, _stored_vectors(store, picked), quality, skipped)


def _why_not(columns: dict[str, list[Any]], row: int | None) -> str | None:
    """Why nothing can be said of the photo at `row`; None where it has an embedding, or no face."""
    if row is None:
        return NOT_IN_STORE
    reason = unusable(columns["status"][row], columns["reason"][row], columns["deleted"][row])
    gated = columns["face_id"][row] is not None and columns["file"][row] is None
    return NOT_KEPT if reason is None and gated else reason


def _stored_vectors(store: Store, table: pa.Table) -> FloatArray:
    """[n, d] the embeddings of the faces in `table`, NaN where it has no face."""
    size = store.identity.embedding_size
    vectors = np.full((table.num_rows, size), np.nan, np.float32)
    faces, files = table["face_id"].to_pylist(), table["file"].to_pylist()
    rows_of: dict[str, list[int]] = {}
    for row, file in enumerate(files):
        if file is not None:
            rows_of.setdefault(file, []).append(row)
    for file, rows in rows_of.items():
        ids, stored = read_embeddings(store.folder, file, size)
        place = {face: k for k, face in enumerate(ids.tolist())}
        missing = [faces[row] for row in rows if faces[row] not in place]
        if missing:
            raise damaged_file(store.folder, file, f"it has no embedding of face {missing[0]}")
        vectors[rows] = stored[[place[faces[row]] for row in rows]]
        check_embeddings(vectors[rows], size)  # one of NaN would pass for a photo without a face
    return vectors
