"""The embeddings of an experiment, read from a store or computed; and its photos, decoded in batches.

A photo's face is the one with its box's centre nearest the photo's centre, as is usual for LFW.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.config import Settings
from pipeline.errors import ImageRejected
from pipeline.evaluation.report import NOT_KEPT, unusable
from pipeline.extraction.extractor import BatchExtractor
from pipeline.extraction.images.decode import decode_image
from pipeline.extraction.images.files import read_file
from pipeline.jobs.models import load_extractor
from pipeline.jobs.store import Store, store_at
from pipeline.jobs.store_identity import make_identity, resolve_threshold, settings_of_store
from pipeline.matching.references import check_embeddings
from pipeline.runtime.threads import thread_count
from pipeline.store import StoreIdentity, damaged_file, read_embeddings, vectors_of
from pipeline.types import BoolArray, DecodedImage, FloatArray, Progress, boxes_of


@dataclass(frozen=True)
class Portraits:
    """n photos, and the face nearest the centre of each. Raises EmbeddingInvalid for a vector that is neither of norm 1
    nor all NaN."""

    paths: Sequence[str]  # [n] distinct, as in the store and reports
    embeddings: FloatArray  # [n, d] float32 of norm 1; all NaN without a face
    skipped: dict[str, str]  # path -> reason, of the photos left out

    def __post_init__(self) -> None:
        check_embeddings(self.embeddings[self.has_face], self.embeddings.shape[1])

    @cached_property
    def row(self) -> dict[str, int]:
        """path -> row."""
        return {path: row for row, path in enumerate(self.paths)}

    @cached_property
    def has_face(self) -> BoolArray:
        """[n]"""
        # A partly NaN vector is broken, and does not stand for a missing face.
        return np.asarray(~np.isnan(self.embeddings).all(axis=1))


def embed_photos(
    files: Mapping[str, Path], settings: Settings, store: Path | Store | None, command: str, progress: Progress
) -> tuple[Portraits, StoreIdentity, Settings]:
    """Returns the faces of the photos `files` (path in the store -> file), from `store` or computed; their model; and
    its settings.

    Raises StoreError (StoreMismatch if the settings name another model than the store's), ModelError, DeviceError,
    UsageError.
    """
    if store is not None:
        with store_at(store, command) as opened:
            settled = settings_of_store(settings, opened.identity, opened.path, opened.other_identity())
            return stored_portraits(opened, list(files)), opened.identity, settled
    identity = make_identity(settings)
    settled = resolve_threshold(settings, identity)
    progress.start("loading the models", None)
    extractor = load_extractor(settled, identity, Path())
    progress.start("embedding", len(files))
    portraits = extract_portraits(extractor, files, progress.advance)
    return portraits, identity, settled


def extract_portraits(
    extractor: BatchExtractor, files: Mapping[str, Path], advance: Callable[[int], None] = lambda _count: None
) -> Portraits:
    """Decodes and extracts the photos `files` (path -> file); `advance(n)` reports n as done.

    A photo that cannot be read or decoded is in `skipped` with its reason. Raises DeviceOutOfMemory.
    """
    skipped: dict[str, str] = {}
    kept: list[str] = []
    vectors = [np.empty((0, extractor.embedder.embedding_size), np.float32)]
    for batch in decoded_batches(files, extractor.settings, skipped.__setitem__, advance):
        tables = extractor.extract([image for _, image in batch])
        kept += [name for name, _ in batch]
        for (_, image), faces in zip(batch, tables, strict=True):
            vectors.append(_central(faces, image, vectors[0].shape[1]))
        advance(len(batch))
    return Portraits(kept, np.concatenate(vectors), skipped)


def _central(faces: pa.Table, image: DecodedImage, size: int) -> FloatArray:
    """The embedding [1, size] of the face nearest the centre; NaN without a face."""
    if not len(faces):
        return np.full((1, size), np.nan, np.float32)
    corners = boxes_of(faces).astype(np.float64)
    offsets = corners[:, :2] + corners[:, 2:] - np.array([image.width, image.height])
    row = int((offsets**2).sum(axis=1).argmin())
    return vectors_of(faces["embedding"], size)[row : row + 1]


def stored_portraits(store: Store, paths: Sequence[str]) -> Portraits:
    """The embeddings of the photos at `paths` in the store's current generation, in any directory.

    `skipped` has photos that the store lacks or could not read, those of deleted people, and those with a face rejected
    by the quality gate, of which the store has no embedding. Raises StoreDamaged if an embedding is unexpectedly
    missing, and EmbeddingInvalid.
    """
    photos = {photo["path"]: photo for photo in store.photos("central_faces", paths=list(paths)).to_pylist()}
    skipped: dict[str, str] = {}
    kept: dict[str, dict[str, Any]] = {}
    for path in dict.fromkeys(paths):
        reason = unusable(photos.get(path))
        if reason is not None:
            skipped[path] = reason
        elif photos[path]["face_id"] is not None and photos[path]["file"] is None:
            skipped[path] = NOT_KEPT
        else:
            kept[path] = photos[path]
    faces = [(photo["face_id"], photo["file"]) for photo in kept.values()]
    return Portraits(list(kept), shard_vectors(store, faces, store.identity.embedding_size), skipped)


def shard_vectors(store: Store, faces: Sequence[tuple[int, str | None]], size: int) -> FloatArray:
    """[n, size] the embeddings of faces (id, shard); NaN without a shard. Raises StoreDamaged, EmbeddingInvalid."""
    vectors = np.full((len(faces), size), np.nan, np.float32)
    rows_of: dict[str, list[int]] = {}
    for row, (_, file) in enumerate(faces):
        if file is not None:
            rows_of.setdefault(file, []).append(row)
    for file, rows in rows_of.items():
        ids, stored = read_embeddings(store.folder, file, size)
        place = {face: k for k, face in enumerate(ids.tolist())}
        missing = [faces[row][0] for row in rows if faces[row][0] not in place]
        if missing:
            raise damaged_file(store.folder, file, f"it has no embedding of face {missing[0]}")
        vectors[rows] = stored[[place[faces[row][0]] for row in rows]]
        check_embeddings(vectors[rows], size)  # NaN would stand for a photo without a face
    return vectors


def decoded_batches(
    files: Mapping[str, Path], settings: Settings, skip: Callable[[str, str], None], advance: Callable[[int], None]
) -> Iterator[list[tuple[str, DecodedImage]]]:
    """Yields batches of (path, image) in the order of `files` (path -> file).

    Calls `skip(path, reason)` and `advance(1)` for a photo that cannot be decoded.
    """
    batch: list[tuple[str, DecodedImage]] = []
    limits, pixels = settings.run, 0
    for path, image in _read(files, settings):
        if isinstance(image, ImageRejected):
            skip(path, f"{image.status}: {image.reason}")
            advance(1)
            continue
        size = image.width * image.height
        if batch and (len(batch) >= limits.batch_images or pixels + size > limits.batch_pixels):
            yield batch
            batch, pixels = [], 0
        batch.append((path, image))
        pixels += size
    if batch:
        yield batch


def _read(files: Mapping[str, Path], settings: Settings) -> Iterator[tuple[str, DecodedImage | ImageRejected]]:
    """Yields the photos in order, decoding one per thread at a time."""

    def decode(file: Path) -> DecodedImage | ImageRejected:
        try:
            return decode_image(read_file(file, settings.decode.max_bytes), settings.decode)
        except ImageRejected as problem:
            return problem

    paths, threads = list(files), thread_count(settings.run.threads)
    with ThreadPoolExecutor(threads, thread_name_prefix="decode") as pool:
        for start in range(0, len(paths), threads):
            part = paths[start : start + threads]
            yield from zip(part, pool.map(decode, [files[path] for path in part]), strict=True)
