"""`facepipe evaluate detection`: compares annotated boxes with detected faces, as a report.

The faces are those that the detector finds now, or those that a store has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from operator import itemgetter
from pathlib import Path

import numpy as np
import pyarrow.compute as pc
import torch

from pipeline.config import Settings
from pipeline.errors import InputError
from pipeline.evaluation.detection.annotations import AnnotatedImage, read_boxes
from pipeline.evaluation.detection.measures import IOU, DetectedFaces, DetectionResult, evaluate_detection
from pipeline.evaluation.photos.portraits import decoded_batches
from pipeline.evaluation.pictures import line_plot
from pipeline.evaluation.report import Report, Skipped, unusable
from pipeline.extraction.detection.cascade import MtcnnDetector
from pipeline.extraction.detection.networks import load_networks
from pipeline.extraction.images.batch import ImageBatch
from pipeline.extraction.images.decode import Decoder
from pipeline.extraction.images.files import shown
from pipeline.jobs.accounts import find_account
from pipeline.jobs.store import Store, open_store
from pipeline.jobs.store_settings import settings_of_store
from pipeline.models.registry import DETECTOR
from pipeline.models.weights import detector_files
from pipeline.report.page import Row, Section, Table
from pipeline.runtime.device import FittingBatches, resolve_device
from pipeline.runtime.threads import set_threads
from pipeline.types import DecodedImage, FloatArray, Progress

_RIGHT = (
    f"A detection is right where it overlaps an annotated face by {IOU:g} or more (intersection over union), and no "
    "detection with a higher confidence does."
)
_AP = "The average precision: the area under the curve of precision over recall (all points, Pascal VOC 2010)."


@dataclass(frozen=True)
class DetectionRequest:
    """Compare `boxes` (files or folders of annotations) with the faces in `store`, or with those that the detector
    finds now."""

    boxes: Sequence[Path]
    images: Path | None  # where relative paths of images start
    settings: Settings
    min_px: float = 0
    store: Path | None = None
    account: str | None = None
    directory: str = "main"


def report_detection(request: DetectionRequest, progress: Progress) -> Report[DetectionResult]:
    """Reads the boxes, detects the faces or reads them from the store, and compares them.

    Raises SourceMissing, BoxesInvalid, InputError where nothing can be compared, StoreError, DeviceError, ModelError.
    """
    skipped = Skipped()
    images = read_boxes(request.boxes, request.images)
    settings = request.settings
    if request.store is None:
        device = resolve_device(settings.run.device)
        set_threads(settings.run.threads)
        detector = MtcnnDetector(load_networks(detector_files(), device), settings.detect)
        progress.start("detecting", len(images))
        kept, detections = detect_faces(images, detector, settings, skipped, progress.advance)
    else:
        with open_store(request.store, command="evaluate detection") as store:
            settings = settings_of_store(settings, store.identity, request.store)
            _, account_id = find_account(store, request.account)
            kept, detections = stored_faces(store, account_id, request.directory, images, skipped)
    with skipped.explaining():
        result = evaluate_detection(kept, detections, request.min_px)
    sections = [
        Section("Faces to find", _rows(result), parts=_plots(result)),
        Section("Images with the most errors", parts=[_worst_table(result)]),
        skipped.section(),
    ]
    figures = {
        **asdict(result),
        "f": result.f,
        "weights": DETECTOR,
        "boxes": [shown(file) for file in request.boxes],
        "faces_from": "the detector" if request.store is None else shown(request.store),
        "iou": IOU,
        "min_px": request.min_px,
        "min_confidence": settings.detect.min_confidence,
        "min_face_px": settings.detect.min_face_px,
        **skipped.as_dict(),
    }
    return Report(result, figures, sections)


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
    fitting = FittingBatches[DecodedImage](lambda image: image.width * image.height)
    for batch in decoded_batches(
        files, Decoder(settings.decode), settings.run, lambda path, reason: skipped.add(reason, path), advance
    ):
        kept += [by_path[path] for path, _ in batch]
        detected += fitting(lambda part: _detect(detector, part), [decoded for _, decoded in batch])
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
    table = store.photos("detected_faces", account_id, directory)
    table = table.filter(pc.field("path").isin([image.path for image in images]))
    photos = {path: list(rows) for path, rows in groupby(table.to_pylist(), itemgetter("path"))}
    if not photos:
        raise InputError(
            message=f'The directory "{directory}" of the store {store.path} holds none of the {len(images):,} '
            f"annotated images (such as {images[0].path}). --images says where they are, --directory names another one."
        )
    numbers = itemgetter("x1", "y1", "x2", "y2", "confidence")
    kept, detected = [], []
    for image in images:
        rows = photos.get(image.path, [])
        reason = unusable(rows[0] if rows else None)
        if reason is not None:
            skipped.add(reason, image.path)
            continue
        faces = np.array([numbers(row) for row in rows if row["x1"] is not None], np.float32).reshape(-1, 5)
        kept.append(image)
        detected.append(DetectedFaces(faces[:, :4], faces[:, 4]))
    return kept, detected


def _rows(r: DetectionResult) -> list[Row]:
    to_ignore = f" (and {r.ignored_faces:,} to ignore)" if r.ignored_faces else ""
    images = f"{r.images:,} with {r.faces:,} faces{to_ignore}"
    ignored = "They belong to faces to ignore, or are too small."
    return [
        Row("images", images, "Faces to ignore count neither as found nor as missed."),
        Row("recall", f"{r.recall:.2%} ({r.found:,} found)", _RIGHT),
        Row("precision", f"{r.precision:.2%} ({r.false_alarms:,} false alarms)"),
        Row("F", f"{r.f:.4f}", "The harmonic mean of precision and recall.", detail=True),
        Row("AP", f"{r.average_precision:.4f} at an overlap of {IOU:g}", _AP),
        Row("left out", f"{r.ignored_detections:,} detections", ignored, detail=True),
    ]


def _plots(r: DetectionResult) -> Iterator[str]:
    if r.recalls:
        limits = {"xlim": (0.0, 1.0), "ylim": (0.0, 1.02)}
        yield line_plot("Precision over recall", r.recalls, r.precisions, xlabel="recall", ylabel="precision", **limits)


def _worst_table(result: DetectionResult) -> Table:
    rows = [(errors.path, errors.faces, errors.missed, errors.false_alarms) for errors in result.worst_images]
    return Table(("image", "faces", "missed", "false alarms"), rows)
