"""How well a detector finds annotated faces: recall, precision and average precision.

Everingham et al. 2010, "The Pascal Visual Object Classes (VOC) Challenge", as of 2010 (all-point interpolation):
detections of all images are taken by descending confidence. Each is assigned to the annotated face with the largest
overlap (intersection over union), and is right if the overlap is at least 0.5 and no earlier detection was right about
that face. Faces to ignore ("difficult"; here also those smaller than `min_px`, as in WIDER FACE) and their detections
do not count, nor do detections smaller than `min_px` without a face.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, astuple, dataclass
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow.compute as pc

from pipeline.config import Settings
from pipeline.errors import InputError
from pipeline.evaluation.annotations import AnnotatedImage, read_boxes
from pipeline.evaluation.portraits import decoded_batches
from pipeline.evaluation.report import Report, Row, Section, Skipped, Table, line_plot, unusable
from pipeline.extraction.detection.cascade import MtcnnDetector
from pipeline.jobs.accounts import find_account
from pipeline.jobs.models import load_detector
from pipeline.jobs.store import Store, open_store
from pipeline.jobs.store_identity import settings_of_store
from pipeline.models.registry import DETECTOR
from pipeline.models.weights import cache_folder
from pipeline.runtime.arrays import on_host
from pipeline.runtime.device import FittingBatches, resolve_device
from pipeline.runtime.threads import set_threads
from pipeline.texts import path_text
from pipeline.types import BoolArray, DecodedImage, DoubleArray, FloatArray, IntArray, Progress

IOU: Final = 0.5
LISTED: Final = 20  # images with the most errors
# The outcomes of a detection.
RIGHT: Final = 1
WRONG: Final = 0
IGNORED: Final = -1

_RIGHT = (
    f"A detection is right where it overlaps an annotated face by {IOU:g} or more (intersection over union), and no "
    "detection with a higher confidence does."
)
_AP = "The average precision: the area under the curve of precision over recall (all points, Pascal VOC 2010)."


@dataclass(frozen=True)
class DetectedFaces:
    """The faces that a detector found on one image."""

    boxes: FloatArray  # [m, 4] xyxy
    confidence: FloatArray  # [m] higher is surer


@dataclass(frozen=True)
class ImageErrors:
    """One image with misses or false alarms."""

    path: str
    faces: int
    missed: int
    false_alarms: int


@dataclass(frozen=True)
class DetectionResult:
    """The result of `evaluate_detection`."""

    images: int
    faces: int  # annotated, without those to ignore
    ignored_faces: int
    found: int  # of these
    false_alarms: int
    ignored_detections: int
    recall: float
    precision: float  # NaN if nothing was detected
    average_precision: float
    # The curve, one point for each distinct confidence, highest first.
    confidences: tuple[float, ...]
    recalls: tuple[float, ...]
    precisions: tuple[float, ...]
    worst_images: tuple[ImageErrors, ...]

    @property
    def f(self) -> float:
        total = self.recall + self.precision
        return 2 * self.recall * self.precision / total if total else 0.0


def evaluate_detection(
    images: Sequence[AnnotatedImage], detected: Sequence[DetectedFaces], min_px: float = 0
) -> DetectionResult:
    """Compares n annotated images with the faces detected on each [n].

    Faces with a side (the square root of their area) below `min_px` are ignored. Raises InputError if there is no face
    to find.
    """
    to_ignore = [image.ignored | (sides(image.boxes) < min_px) for image in images]
    faces = sum(int((~ignored).sum()) for ignored in to_ignore)
    if not faces:
        raise InputError(
            message=f"The {len(images):,} annotated images that can be used have no face of {min_px:g} pixels or more, "
            "so there is nothing to find."
        )
    # Each detection's image and number in it; highest confidence first.
    places = [(i, k) for i, found in enumerate(detected) for k in range(len(found.confidence))]
    confidence = np.concatenate([np.zeros(0, np.float32), *(found.confidence for found in detected)])
    order = np.argsort(-confidence, kind="stable")
    detections = np.array(places, dtype=np.int64).reshape(-1, 2)[order]
    outcomes = _outcomes(images, detected, to_ignore, detections, min_px)
    counted = outcomes != IGNORED
    curve = precision_recall(outcomes[counted] == RIGHT, confidence[order][counted], faces)
    hits = int((outcomes == RIGHT).sum())
    return DetectionResult(
        images=len(images),
        faces=faces,
        ignored_faces=sum(int(ignored.sum()) for ignored in to_ignore),
        found=hits,
        false_alarms=int((outcomes == WRONG).sum()),
        ignored_detections=int((~counted).sum()),
        recall=hits / faces,
        precision=hits / int(counted.sum()) if counted.any() else math.nan,
        average_precision=average_precision(curve[1], curve[2]),
        confidences=tuple(curve[0].tolist()),
        recalls=tuple(curve[1].tolist()),
        precisions=tuple(curve[2].tolist()),
        worst_images=_worst(images, to_ignore, detections[:, 0], outcomes),
    )


def sides(boxes: FloatArray) -> DoubleArray:
    """Returns [n] the side of the square with a box's area, in pixels."""
    wide = boxes.astype(np.float64)
    area: DoubleArray = np.sqrt((wide[:, 2] - wide[:, 0]) * (wide[:, 3] - wide[:, 1]))
    return area


def overlaps(boxes: FloatArray, others: FloatArray) -> DoubleArray:
    """Returns [n, m] intersection over union of all `boxes` [n, 4] with all `others` [m, 4], xyxy."""
    ours, theirs = boxes.astype(np.float64)[:, None], others.astype(np.float64)[None]
    common = (np.minimum(ours[..., 2:], theirs[..., 2:]) - np.maximum(ours[..., :2], theirs[..., :2])).clip(0)
    shared = common.prod(axis=2)
    areas = [(each[..., 2:] - each[..., :2]).prod(axis=2) for each in (ours, theirs)]
    union = areas[0] + areas[1] - shared
    shares: DoubleArray = np.divide(shared, union, out=np.zeros_like(shared), where=union > 0)
    return shares  # 0 for boxes without an area


def _outcomes(
    images: Sequence[AnnotatedImage],
    detected: Sequence[DetectedFaces],
    to_ignore: Sequence[BoolArray],
    detections: IntArray,
    min_px: float,
) -> IntArray:
    """Returns [d] the outcome of each of `detections` (image, number), highest confidence first."""
    matched = [np.zeros(len(image.boxes), dtype=np.bool_) for image in images]
    overlap_of = [overlaps(faces.boxes, image.boxes) for faces, image in zip(detected, images, strict=True)]
    small = [sides(faces.boxes) < min_px for faces in detected]
    outcomes = np.empty(len(detections), dtype=np.int64)
    for number, (i, k) in enumerate(detections.tolist()):
        overlap = overlap_of[i][k]
        face = int(overlap.argmax()) if len(overlap) else -1
        if face < 0 or overlap[face] < IOU:
            outcomes[number] = IGNORED if small[i][k] else WRONG
        elif to_ignore[i][face]:
            outcomes[number] = IGNORED
        else:
            outcomes[number] = WRONG if matched[i][face] else RIGHT
            matched[i][face] = True
    return outcomes


def precision_recall(
    right: BoolArray, confidence: FloatArray, faces: int
) -> tuple[FloatArray, DoubleArray, DoubleArray]:
    """Returns confidences, recalls and precisions [p], one for each distinct confidence in descending order."""
    hits = np.cumsum(right)
    last = np.flatnonzero(np.r_[confidence[1:] != confidence[:-1], np.ones(min(1, len(confidence)), np.bool_)])
    return confidence[last], hits[last] / faces, hits[last] / (last + 1)


def average_precision(recalls: DoubleArray, precisions: DoubleArray) -> float:
    """The area under the curve of the highest precision at each recall or above; 0 for no detection."""
    envelope = np.maximum.accumulate(precisions[::-1])[::-1]
    return float(np.sum(np.diff(recalls, prepend=0.0) * envelope))


def _worst(
    images: Sequence[AnnotatedImage],
    to_ignore: Sequence[BoolArray],
    image_of: IntArray,
    outcomes: IntArray,
) -> tuple[ImageErrors, ...]:
    faces = np.array([int((~ignored).sum()) for ignored in to_ignore])
    missed = faces - np.bincount(image_of[outcomes == RIGHT], minlength=len(images))
    false_alarms = np.bincount(image_of[outcomes == WRONG], minlength=len(images))
    order = np.argsort(-(missed + false_alarms), kind="stable")[:LISTED]
    return tuple(
        ImageErrors(images[i].path, int(faces[i]), int(missed[i]), int(false_alarms[i]))
        for i in order.tolist()
        if missed[i] or false_alarms[i]
    )


def report_detection(
    boxes: Sequence[Path],
    settings: Settings,
    progress: Progress,
    *,
    images: Path | None = None,
    min_px: float = 0,
    store: Path | None = None,
    account: str | None = None,
    directory: str = "main",
) -> Report[DetectionResult]:
    """Compares annotated boxes (files or folders; relative paths start at `images`) with the faces in the store, or
    detects them.

    Raises SourceMissing, BoxesInvalid, InputError if nothing can be compared, StoreError, DeviceError, ModelError.
    """
    skipped = Skipped()
    annotated = read_boxes(boxes, images)
    if store is None:
        kept, detections = detect_faces(annotated, settings, skipped, progress)
    else:
        with open_store(store, command="evaluate detection") as opened:
            settings = settings_of_store(settings, opened.identity, store)
            account_id = find_account(opened, account).account_id
            kept, detections = stored_faces(opened, account_id, directory, annotated, skipped)
    with skipped.explaining():
        result = evaluate_detection(kept, detections, min_px)
    worst = [astuple(errors) for errors in result.worst_images]
    sections = [
        Section("Faces to find", _rows(result), parts=_plots(result)),
        Section("Images with the most errors", parts=[Table(("image", "faces", "missed", "false alarms"), worst)]),
        skipped.section(),
    ]
    figures = {
        **asdict(result),
        "f": result.f,
        "weights": DETECTOR,
        "boxes": [path_text(file) for file in boxes],
        "faces_from": "the detector" if store is None else path_text(store),
        "iou": IOU,
        "min_px": min_px,
        "min_confidence": settings.detect.min_confidence,
        "min_face_px": settings.detect.min_face_px,
        **skipped.as_dict(),
    }
    return Report(result, figures, sections)


def detect_faces(
    images: Sequence[AnnotatedImage], settings: Settings, skipped: Skipped, progress: Progress
) -> tuple[list[AnnotatedImage], list[DetectedFaces]]:
    """Runs the detector. Returns the readable images, and the faces on each, clipped to the image.

    Counts the others in `skipped`. Raises DeviceError, ModelError.
    """
    device = resolve_device(settings.run.device)
    set_threads(settings.run.threads)
    detector = MtcnnDetector(load_detector(device, cache_folder(settings.model.cache)), settings.detect)
    progress.start("detecting", len(images))
    kept: list[AnnotatedImage] = []
    detected: list[DetectedFaces] = []
    by_path = {image.path: image for image in images}
    files = {image.path: image.file for image in images}
    fitting = FittingBatches[DecodedImage](lambda image: image.width * image.height)
    for batch in decoded_batches(files, settings, lambda path, reason: skipped.add(reason, path), progress.advance):
        kept += [by_path[path] for path, _ in batch]
        detected += fitting(lambda part: _detect(detector, part), [decoded for _, decoded in batch])
        progress.advance(len(batch))
    return kept, detected


def _detect(detector: MtcnnDetector, images: Sequence[DecodedImage]) -> list[DetectedFaces]:
    with detector.networks.computing():
        found = detector(detector.networks.batch([image.pixels for image in images]))
    boxes, confidence, index = (on_host(each) for each in (found.boxes, found.scores, found.image_index))
    limits = np.array([(image.width, image.height) * 2 for image in images], np.float32).reshape(-1, 4)
    boxes = np.minimum(boxes.clip(min=0), limits[index])
    return [DetectedFaces(boxes[index == i], confidence[index == i]) for i in range(len(images))]


def stored_faces(
    store: Store, account_id: int, directory: str, images: Sequence[AnnotatedImage], skipped: Skipped
) -> tuple[list[AnnotatedImage], list[DetectedFaces]]:
    """Returns the images whose paths are in a directory of the store, and their faces there, including rejected ones.

    Counts the others, and images of deleted people, in `skipped`. Raises StoreError, and InputError if the directory
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
