"""`facepipe evaluate detection`: annotated boxes against what the detector found, as a report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.config import Settings
from pipeline.evaluation.detection.boxes import AnnotatedImage, read_boxes
from pipeline.evaluation.detection.detected import detect_faces, load_detector, stored_faces
from pipeline.evaluation.detection.measures import IOU, DetectionResult, Found, evaluate_detection
from pipeline.evaluation.pages.page import Section, Table
from pipeline.evaluation.pages.plots import Axis, Series, line_plot
from pipeline.evaluation.photos.skipped import Skipped
from pipeline.extraction.images.files import shown
from pipeline.jobs.stores import find_account, settings_of_store
from pipeline.store.connect import open_store
from pipeline.types import Progress


@dataclass(frozen=True)
class DetectionRequest:
    """What is to be compared: `boxes` (files or folders of annotations) with the faces in `store`, or with what the
    detector finds now."""

    boxes: Sequence[Path]
    images: Path | None  # where relative paths of images start
    settings: Settings
    min_px: float = 0
    store: Path | None = None
    account: str | None = None
    directory: str = "main"


@dataclass(frozen=True)
class DetectionReport:
    """The result, what it was made of, and what was left out."""

    result: DetectionResult
    about: dict[str, Any]
    skipped: Skipped

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {**self.result.as_dict(), **self.about, **self.skipped.as_dict()}

    def lines(self) -> Iterator[str]:
        """For people."""
        result = self.result
        small = f" (and {result.ignored_faces:,} to ignore)" if result.ignored_faces else ""
        yield f"images      {result.images:,} with {result.faces:,} faces{small}"
        yield f"recall      {result.recall:.2%} ({result.found:,} found)"
        yield f"precision   {result.precision:.2%} ({result.false_alarms:,} false alarms)"
        yield f"AP          {result.average_precision:.4f} at an overlap of {IOU:g}"
        yield from self.skipped.lines()

    def sections(self) -> Iterator[Section]:
        """For a page."""
        yield Section("Faces that were to be found", _TEXT, _counts(self.result), _plots(self.result))
        if self.result.worst_images:
            yield Section("Images with the most errors", "", _worst(self.result))
        yield from self.skipped.sections()


_TEXT = (
    f"A detection is right where it overlaps an annotated face by {IOU:g} or more (intersection over union), and no "
    "surer one did before. AP, the average precision, is the area under the curve (all points, Pascal VOC 2010). Faces "
    "to ignore count neither as found nor as missed."
)


def _counts(result: DetectionResult) -> Table:
    rows = [
        (name, f"{count:,}")
        for name, count in (
            ("images", result.images),
            ("annotated faces", result.faces),
            ("annotated faces to ignore", result.ignored_faces),
            ("found", result.found),
            ("false alarms", result.false_alarms),
            ("detections left out", result.ignored_detections),
        )
    ]
    rows += [
        (name, f"{share:.4f}")
        for name, share in (
            ("recall", result.recall),
            ("precision", result.precision),
            ("F", result.f),
            ("AP", result.average_precision),
        )
    ]
    return Table(("what", "value"), rows)


def _plots(result: DetectionResult) -> list[str]:
    if not result.recalls:
        return []
    curve = Series("detector", result.recalls, result.precisions)
    axes = Axis("recall", low=0.0, high=1.0), Axis("precision", low=0.0, high=1.02)
    return [line_plot("Precision over recall", [curve], *axes)]


def _worst(result: DetectionResult) -> Table:
    rows = [(each.path, each.faces, each.missed, each.false_alarms) for each in result.worst_images]
    return Table(("image", "faces", "missed", "false alarms"), rows)


def report_detection(request: DetectionRequest, progress: Progress) -> DetectionReport:
    """Reads the boxes, finds or fetches the faces, and compares them.

    Raises SourceMissing, BoxesInvalid, InputError where nothing can be compared, StoreError, DeviceError, ModelError.
    """
    skipped = Skipped()
    images = read_boxes(request.boxes, request.images)
    kept, found, settings = _faces(request, images, skipped, progress)
    about = {
        "boxes": [shown(file) for file in request.boxes],
        "faces_from": "the detector" if request.store is None else shown(request.store),
        "iou": IOU,
        "min_px": request.min_px,
        "min_confidence": settings.detect.min_confidence,
        "min_face_px": settings.detect.min_face_px,
    }
    with skipped.explaining():
        result = evaluate_detection(kept, found, request.min_px)
    return DetectionReport(result, about, skipped)


def _faces(
    request: DetectionRequest, images: Sequence[AnnotatedImage], skipped: Skipped, progress: Progress
) -> tuple[list[AnnotatedImage], list[Found], Settings]:
    if request.store is None:
        detector = load_detector(request.settings)
        progress.start("detecting", len(images))
        return *detect_faces(images, detector, request.settings, skipped, progress.advance), request.settings
    with open_store(request.store, command="evaluate detection") as opened:
        settings = settings_of_store(request.settings, opened.identity, request.store)
        _, account_id = find_account(opened, request.account)
        return *stored_faces(opened, account_id, request.directory, images, skipped), settings
