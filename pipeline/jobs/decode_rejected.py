"""Rejected faces, extracted again from their photos: for a regroup by a gate that would admit them.

The store has no vector of a rejected face. This module loads torch.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from threading import Event
from typing import Any, Final, TypeAlias

import pyarrow as pa

from pipeline.config import Settings
from pipeline.errors import ImageChanged, Interrupted
from pipeline.extraction.engine import NETWORK_THREADS, LocalEngine
from pipeline.extraction.extractor import BatchExtractor
from pipeline.extraction.images.decode import Decoder
from pipeline.extraction.images.pixel_hash import PixelHash
from pipeline.extraction.rows import EXTRACT, MANIFEST_SCHEMA, ExtractedRow, read_rows
from pipeline.extraction.stored_picture import HeldPictures, encode_reference_image
from pipeline.jobs.models import load_extractor
from pipeline.jobs.shard_progress import ShardProgress
from pipeline.jobs.store import Store
from pipeline.matching.identical_images import SAME_FACE_IOU, box_iou
from pipeline.people.decide import failed_measures
from pipeline.store import DECODED_SCHEMA, vector_bytes
from pipeline.types import QUALITIES, Progress

_PICTURE_BYTES: Final = 2**28  # of pictures that are kept; those of further faces are cut from the photos when needed
_Photo: TypeAlias = tuple[str, str]  # SHA-256, path
_Boxes: TypeAlias = Mapping[int, Sequence[float]]  # of a photo's faces: place among them -> xyxy


def decode_rejected(store: Store, settings: Settings, rejected: pa.Table, progress: Progress, stop: Event) -> pa.Table:
    """Extracts those of the rejected faces (`rejected_faces`) that the settings' gate would admit: DECODED_SCHEMA.

    A photo with several paths is read once: at the next path where a file is gone, or another one now. Raises
    Interrupted once `stop` is set, StoreMismatch, ModelError, DeviceError.
    """
    boxes: dict[str, dict[int, Sequence[float]]] = defaultdict(dict)
    paths: dict[str, dict[str, None]] = defaultdict(dict)  # in the order of the store
    for face in rejected.to_pylist():
        if not failed_measures([face[name] for name in QUALITIES], settings.match):
            boxes[face["sha256"]][face["ordinal"]] = [face[name] for name in ("x1", "y1", "x2", "y2")]
            paths[face["sha256"]][face["path"]] = None
    left = {sha256: iter(own) for sha256, own in paths.items()}
    reading = _Reading(store, settings, progress, stop)
    faces: list[dict[str, Any]] = []
    photos = [(sha256, next(own)) for sha256, own in left.items()]
    while photos:
        again = []
        for sha256, row, pictures in reading.rows(photos):
            other = next(left[sha256], None) if row.sha256 is None else None
            if other is None:
                faces += reading.faces(sha256, boxes[sha256], row, pictures)
            else:
                again.append((sha256, other))
        photos = again
    return pa.Table.from_pylist(faces, DECODED_SCHEMA)


class _Reading:
    """Photos on their way through the engine."""

    def __init__(self, store: Store, settings: Settings, progress: Progress, stop: Event) -> None:
        self._store = store
        self._settings = settings
        self._progress = ShardProgress(progress, stop)
        self._stop = stop
        self._held = HeldPictures()
        self._extractor: BatchExtractor | None = None
        self._room = _PICTURE_BYTES

    def rows(self, photos: Sequence[_Photo]) -> Iterator[tuple[str, ExtractedRow, Sequence[Any] | None]]:
        """SHA-256 of each photo in order, what extraction makes of it, and the pixels of its faces' pictures if they
        are held. The engine compares the hash of each file."""
        identity, size = self._store.identity, self._settings.run.shard_rows
        engine = LocalEngine(
            self._settings,
            identity.embedding_size,
            Decoder(self._settings.decode),
            PixelHash(identity.pixel_key),
            self._load,
            held=self._held,
        )
        shards = [_manifest(start, photos[start : start + size]) for start in range(0, len(photos), size)]
        self._progress.start("decode", len(photos))
        with closing(engine.run_shards(enumerate(shards), self._progress.advance)) as results:
            for number, extracted in results:
                if self._stop.is_set():
                    raise Interrupted(detail="nothing was changed")
                for row in read_rows(shards[number], extracted):
                    yield row.manifest["sha256"], row, self._held.of_row(row.manifest["row"])
                self._held.forget(shards[number]["row"].to_pylist())

    def _load(self) -> BatchExtractor:
        if self._extractor is None:
            with self._progress.meanwhile("loading the models"):
                self._extractor = load_extractor(
                    self._settings, self._store.identity, self._store.path, NETWORK_THREADS
                )
        return self._extractor

    def faces(
        self, sha256: str, boxes: _Boxes, row: ExtractedRow, pictures: Sequence[Any] | None
    ) -> Iterator[dict[str, Any]]:
        """The rows of DECODED_SCHEMA of a photo's faces at these boxes."""
        for ordinal, box in boxes.items():
            found = row.faces[ordinal] if ordinal < len(row.faces) else None
            if found is None or box_iou(found.box, box) < SAME_FACE_IOU:
                yield {"sha256": sha256, "ordinal": ordinal, "reason": _reason(row)}
                continue
            crop = None
            if self._room > 0:
                crop = found.crop if pictures is None else encode_reference_image(pictures[ordinal])
                self._room -= len(crop or b"")
            yield {"sha256": sha256, "ordinal": ordinal, "embedding": vector_bytes(found.embedding), "crop": crop}


def _manifest(first: int, photos: Sequence[_Photo]) -> pa.Table:
    plain = {**dict.fromkeys(MANIFEST_SCHEMA.names), "directory": "", "action": EXTRACT}
    rows = [
        {**plain, "row": row, "path": path, "file": os.fsencode(path), "sha256": sha256}
        for row, (sha256, path) in enumerate(photos, first)
    ]
    return pa.Table.from_pylist(rows, MANIFEST_SCHEMA)


def _reason(row: ExtractedRow) -> str:
    if row.status == ImageChanged.status:
        return "it is another file now"
    return row.reason or "the face is not found at its place again"
