"""How well a detector finds annotated faces: recall, precision and average precision.

Everingham et al. 2010, "The Pascal Visual Object Classes (VOC) Challenge", as of 2010 (all-point interpolation):
detections are taken in the order of their confidence over all images; each belongs to the annotated face with which
it overlaps most, and is right where that overlap (intersection over union) is at least 0.5 and no earlier detection
was right about that face. Faces to ignore ("difficult"; here also those smaller than `min_px`, as in WIDER FACE) count
neither as found nor as missed, and detections that belong to them neither as right nor as wrong. A detection that is
smaller than `min_px` and belongs to no face is ignored too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from pipeline.errors import InputError
from pipeline.evaluation.detection.annotations import AnnotatedImage
from pipeline.types import BoolArray, DoubleArray, FloatArray, IntArray

IOU: Final = 0.5
LISTED: Final = 20  # images with the most errors
# The outcomes of a detection.
RIGHT: Final = 1
WRONG: Final = 0
IGNORED: Final = -1


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
    precision: float  # NaN where nothing was detected
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

    `min_px`: faces whose side (the square root of their area) is smaller are ignored. Raises InputError where there is
    no face to find.
    """
    to_ignore = [image.ignored | (sides(image.boxes) < min_px) for image in images]
    faces = sum(int((~ignored).sum()) for ignored in to_ignore)
    if not faces:
        raise InputError(
            message=f"The {len(images):,} annotated images that can be used have no face of {min_px:g} pixels or more, "
            "so there is nothing to find."
        )
    # Of each detection its image and its number there, and its confidence; the highest confidence first.
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
    """[n] the side of the square that has a box's area, in pixels."""
    wide = boxes.astype(np.float64)
    area: DoubleArray = np.sqrt((wide[:, 2] - wide[:, 0]) * (wide[:, 3] - wide[:, 1]))
    return area


def overlaps(boxes: FloatArray, others: FloatArray) -> DoubleArray:
    """[n, m] intersection over union of all `boxes` [n, 4] with all `others` [m, 4], xyxy."""
    a, b = boxes[:, None].astype(np.float64), others[None].astype(np.float64)
    shared = (np.minimum(a[..., 2:], b[..., 2:]) - np.maximum(a[..., :2], b[..., :2])).clip(min=0).prod(axis=2)
    union = (a[..., 2:] - a[..., :2]).prod(axis=2) + (b[..., 2:] - b[..., :2]).prod(axis=2) - shared
    share: DoubleArray = np.divide(shared, union, out=np.zeros_like(shared), where=union > 0)
    return share


def _outcomes(
    images: Sequence[AnnotatedImage],
    detected: Sequence[DetectedFaces],
    to_ignore: Sequence[BoolArray],
    detections: IntArray,
    min_px: float,
) -> IntArray:
    """[d] the outcome of each of `detections` (image, number), highest confidence first."""
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
    """Confidences, recalls and precisions [p], one for each distinct confidence of detections in descending order."""
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
