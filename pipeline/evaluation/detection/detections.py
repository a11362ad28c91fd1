"""The faces that the detector finds on annotated images, or that a store has of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa
import torch

from pipeline.config import Settings
from pipeline.errors import InputError
from pipeline.evaluation.detection.annotations import AnnotatedImage
from pipeline.evaluation.detection.measures import DetectedFaces
from pipeline.evaluation.photos.decoded import decoded_batches
from pipeline.evaluation.photos.skipped import NOT_IN_STORE, Skipped, unusable
from pipeline.extraction.detection.cascade import MtcnnDetector
from pipeline.extraction.detection.networks import load_networks
from pipeline.extraction.images.batch import ImageBatch
from pipeline.extraction.images.decode import Decoder
from pipeline.models.weights import detector_files
from pipeline.runtime.device import halving, resolve_device
from pipeline.runtime.threads import set_threads
from pipeline.store.operations import Store
from pipeline.types import DecodedImage, FloatArray


def load_detector(settings: Settings) -> MtcnnDetector:
    """The detector alone, on the settings' device. Raises DeviceMissing, ModelError."""
    device = resolve_device(settings.run.device)
    set_threads(settings.run.threads)
    return MtcnnDetector(load_networks(detector_files(), device), settings.detect)


def detect_faces(
    images: Sequence[AnnotatedImage],
    detector: MtcnnDetector,
    settings: Settings,
    skipped: Skipped,
    advance: Callable[[int], None],
) -> tuple[list[AnnotatedImage], list[DetectedFaces]]:
    """Runs `detector` over the images. Returns those that can be read, and the faces on each, clipped to the image.

    Counts the others in `skipped`; `advance(n)` reports n images as done.
    """
    kept: list[AnnotatedImage] = []
    detected: list[DetectedFaces] = []
    by_path = {image.path: image for image in images}
    files = {image.path: image.file for image in images}
    for batch in decoded_batches(
        files, Decoder(settings.decode), settings.run, lambda path, reason: skipped.add(reason, path), advance
    ):
        kept += [by_path[path] for path, _ in batch]
        detected += halving(lambda part: _detect(detector, part), [decoded for _, decoded in batch])
        advance(len(batch))
    return kept, detected


def _detect(detector: MtcnnDetector, images: Sequence[DecodedImage]) -> list[DetectedFaces]:
    batch = ImageBatch([image.pixels for image in images], detector.networks.device)
    faces = detector(batch)
    limits = batch.sizes[faces.image_index].flip(1).repeat(1, 2).float()
    boxes: FloatArray = torch.minimum(faces.boxes.clamp(min=0), limits).cpu().numpy()
    confidence, index = faces.scores.cpu().numpy(), faces.image_index.cpu().numpy()
    return [DetectedFaces(boxes[index == i], confidence[index == i]) for i in range(len(images))]


def stored_faces(
    store: Store, account_id: int, directory: str, images: Sequence[AnnotatedImage], skipped: Skipped
) -> tuple[list[AnnotatedImage], list[DetectedFaces]]:
    """The images whose paths are in a directory of the store, and their faces in it, rejected ones too.

    Counts the others in `skipped`, also images of deleted people. Raises StoreError, and InputError where the directory
    has none of the images.
    """
    table = store.detected_faces(account_id, directory)
    rows = _rows_of(table["path"].to_pylist())
    states = list(zip(*(table[name].to_pylist() for name in ("status", "reason", "deleted")), strict=True))
    numbers = np.stack([_floats(table[name]) for name in ("x1", "y1", "x2", "y2", "confidence")], axis=1)
    kept, detected = [], []
    for image in images:
        reason = unusable(*states[rows[image.path].start]) if image.path in rows else NOT_IN_STORE
        if reason is not None:
            skipped.add(reason, image.path)
            continue
        faces = numbers[rows[image.path]]
        faces = faces[~np.isnan(faces[:, 0])]  # a row without a face
        kept.append(image)
        detected.append(DetectedFaces(faces[:, :4], faces[:, 4]))
    if not any(image.path in rows for image in images):
        raise InputError(
            message=f'The directory "{directory}" of the store {store.path} holds none of the {len(images):,} '
            f"annotated images (such as {images[0].path}). --images says where they are, --directory names another one."
        )
    return kept, detected


def _rows_of(paths: Sequence[str]) -> dict[str, slice]:
    """The rows of each path, which are consecutive."""
    rows: dict[str, slice] = {}
    for k, path in enumerate(paths):
        rows[path] = slice(rows[path].start if path in rows else k, k + 1)
    return rows


def _floats(column: pa.ChunkedArray) -> FloatArray:
    """A column as float32, NaN for null."""
    values: FloatArray = column.to_numpy().astype(np.float32)
    return values
