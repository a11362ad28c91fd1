"""Re-extracts rejected faces, of which the store has no vector, for a regroup by a gate that would admit them."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from functools import cache
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
from pipeline.jobs.models import load_extractor
from pipeline.jobs.shard_progress import ShardProgress, loading_models
from pipeline.jobs.store import Store
from pipeline.matching.identical_images import SAME_FACE_IOU, box_iou
from pipeline.people.decide import failed_measures
from pipeline.store import DECODED_SCHEMA, vector_bytes
from pipeline.types import QUALITIES, Progress

_PICTURE_BYTES: Final = 2**28  # of pictures in memory; further faces are cut from the photos when needed
_Photo: TypeAlias = tuple[str, str]  # SHA-256, path


def decode_rejected(store: Store, settings: Settings, rejected: pa.Table, progress: Progress, stop: Event) -> pa.Table:
    """Extracts the rejected faces (`rejected_faces`) that the settings' gate would admit: DECODED_SCHEMA.

    Each photo is read once, at its first path that still has it. Raises Interrupted once `stop` is set, StoreMismatch,
    ModelError, DeviceError.
    """
    boxes: dict[str, dict[int, Sequence[float]]] = defaultdict(dict)
    paths: dict[str, dict[str, None]] = defaultdict(dict)  # in the order of the store
    for face in rejected.to_pylist():
        if not failed_measures([face[name] for name in QUALITIES], settings.match):
            boxes[face["sha256"]][face["ordinal"]] = [face[name] for name in ("x1", "y1", "x2", "y2")]
            paths[face["sha256"]][face["path"]] = None
    shown, identity = ShardProgress(progress, stop), store.identity

    @cache
    def load() -> BatchExtractor:
        with loading_models(stop), shown.meanwhile("loading the models"):
            return load_extractor(settings, identity, store.path, NETWORK_THREADS)

    pixel_hash = PixelHash(identity.pixel_key)
    engine = LocalEngine(settings, identity.embedding_size, Decoder(settings.decode), pixel_hash, load)
    left = {sha256: iter(own) for sha256, own in paths.items()}
    faces: list[dict[str, Any]] = []
    room = _PICTURE_BYTES
    photos = [(sha256, next(own)) for sha256, own in left.items()]
    while photos:
        again = []
        shown.start("decode", len(photos))
        for row in _extracted(engine, photos, settings.run.shard_rows, shown, stop):
            sha256 = row.manifest["sha256"]
            other = next(left[sha256], None) if row.sha256 is None else None
            if other is not None:
                again.append((sha256, other))
                continue
            for face in _faces(row, boxes[sha256]):
                if room <= 0:
                    face["crop"] = None
                room -= len(face.get("crop") or b"")
                faces.append(face | {"model": identity.model})
        photos = again
    return pa.Table.from_pylist(faces, DECODED_SCHEMA)


def _extracted(
    engine: LocalEngine, photos: Sequence[_Photo], size: int, shown: ShardProgress, stop: Event
) -> Iterator[ExtractedRow]:
    """Yields each photo's extraction, in order. The engine checks file hashes."""
    shards = [_manifest(start, photos[start : start + size]) for start in range(0, len(photos), size)]
    with closing(engine.run_shards(enumerate(shards), shown.advance)) as results:
        for number, extracted in results:
            if stop.is_set():
                raise Interrupted(detail="nothing was changed")
            yield from read_rows(shards[number], extracted)


def _faces(row: ExtractedRow, boxes: Mapping[int, Sequence[float]]) -> Iterator[dict[str, Any]]:
    """Yields a photo's faces at these boxes (ordinal -> xyxy), as DECODED_SCHEMA rows."""
    for ordinal, box in boxes.items():
        face = {"sha256": row.manifest["sha256"], "ordinal": ordinal}
        found = row.faces[ordinal] if ordinal < len(row.faces) else None
        if found is None or box_iou(found.box, box) < SAME_FACE_IOU:
            yield {**face, "reason": _reason(row)}
        else:
            yield {**face, "embedding": vector_bytes(found.embedding), "crop": found.crop}


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
