"""`facepipe evaluate detection`: compares annotated boxes with detected faces, as a report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pipeline.config import Settings
from pipeline.evaluation.detection.annotations import AnnotatedImage, read_boxes
from pipeline.evaluation.detection.detections import detect_faces, load_detector, stored_faces
from pipeline.evaluation.detection.measures import IOU, DetectedFaces, DetectionResult, evaluate_detection
from pipeline.evaluation.pages.plots import Axis, Series, line_plot
from pipeline.evaluation.pages.report import Report, Row, Section, Table, values_of
from pipeline.evaluation.photos.skipped import Skipped
from pipeline.extraction.images.files import shown
from pipeline.jobs.accounts import find_account
from pipeline.jobs.stores import settings_of_store
from pipeline.store.connect import open_store
from pipeline.types import Progress


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


_RIGHT = (
    f"A detection is right where it overlaps an annotated face by {IOU:g} or more (intersection over union), and no "
    "detection with a higher confidence does."
)
_AP = "The average precision: the area under the curve of precision over recall (all points, Pascal VOC 2010)."


def report_detection(request: DetectionRequest, progress: Progress) -> Report[DetectionResult]:
    """Reads the boxes, detects the faces or reads them from the store, and compares them.

    Raises SourceMissing, BoxesInvalid, InputError where nothing can be compared, StoreError, DeviceError, ModelError.
    """
    skipped = Skipped()
    images = read_boxes(request.boxes, request.images)
    kept, detections, settings = _faces(request, images, skipped, progress)
    with skipped.explaining():
        result = evaluate_detection(kept, detections, request.min_px)
    worst = [Row(values={"worst_images": [asdict(errors) for errors in result.worst_images]})]
    sections = [
        Section("Faces to find", _rows(result), plots=lambda: _plots(result)),
        Section("Images with the most errors", worst, listing=lambda: _worst_table(result)),
        Section("Origin", [Row(values=_origin(request, settings))]),
        skipped.section(),
    ]
    return Report(result, sections)


def _rows(r: DetectionResult) -> list[Row]:
    to_ignore = f" (and {r.ignored_faces:,} to ignore)" if r.ignored_faces else ""
    return [
        Row(
            "images",
            f"{r.images:,} with {r.faces:,} faces{to_ignore}",
            values_of(r, "images", "faces", "ignored_faces"),
            "Faces to ignore count neither as found nor as missed.",
        ),
        Row("recall", f"{r.recall:.2%} ({r.found:,} found)", values_of(r, "recall", "found"), _RIGHT),
        Row(
            "precision",
            f"{r.precision:.2%} ({r.false_alarms:,} false alarms)",
            values_of(r, "precision", "false_alarms"),
        ),
        Row("F", f"{r.f:.4f}", values_of(r, "f"), "The harmonic mean of precision and recall.", detail=True),
        Row("AP", f"{r.average_precision:.4f} at an overlap of {IOU:g}", values_of(r, "average_precision"), _AP),
        Row(
            "left out",
            f"{r.ignored_detections:,} detections",
            values_of(r, "ignored_detections"),
            "They belong to faces to ignore, or are too small.",
            detail=True,
        ),
        Row(values=values_of(r, "confidences", "recalls", "precisions")),
    ]


def _plots(result: DetectionResult) -> list[str]:
    if not result.recalls:
        return []
    curve = Series("detector", result.recalls, result.precisions)
    axes = Axis("recall", low=0.0, high=1.0), Axis("precision", low=0.0, high=1.02)
    return [line_plot("Precision over recall", [curve], *axes)]


def _worst_table(result: DetectionResult) -> Table:
    rows = [(errors.path, errors.faces, errors.missed, errors.false_alarms) for errors in result.worst_images]
    return Table(("image", "faces", "missed", "false alarms"), rows)


def _origin(request: DetectionRequest, settings: Settings) -> dict[str, Any]:
    return {
        "boxes": [shown(file) for file in request.boxes],
        "faces_from": "the detector" if request.store is None else shown(request.store),
        "iou": IOU,
        "min_px": request.min_px,
        "min_confidence": settings.detect.min_confidence,
        "min_face_px": settings.detect.min_face_px,
    }


def _faces(
    request: DetectionRequest, images: Sequence[AnnotatedImage], skipped: Skipped, progress: Progress
) -> tuple[list[AnnotatedImage], list[DetectedFaces], Settings]:
    if request.store is None:
        detector = load_detector(request.settings)
        progress.start("detecting", len(images))
        return *detect_faces(images, detector, request.settings, skipped, progress.advance), request.settings
    with open_store(request.store, command="evaluate detection") as opened:
        settings = settings_of_store(request.settings, opened.identity, request.store)
        _, account_id = find_account(opened, request.account)
        return *stored_faces(opened, account_id, request.directory, images, skipped), settings
