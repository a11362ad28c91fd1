"""Compares two detections or extractions of the same photos: faces as sets by overlap, never by order or bits;
embeddings by their cosine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from pipeline.types import BoolArray, DoubleArray, FloatArray

CONFIDENT = 0.95
SAME_IOU = 0.9  # as good as equal: a box of 100 pixels is off by five in one direction at most
ANY_IOU = 0.5


@dataclass(frozen=True)
class Faces:
    """The faces of one image."""

    boxes: FloatArray  # [n, 4] xyxy
    landmarks: FloatArray  # [n, 5, 2]
    scores: FloatArray  # [n]

    def confident(self) -> Faces:
        keep = self.scores >= CONFIDENT
        return Faces(self.boxes[keep], self.landmarks[keep], self.scores[keep])


@dataclass(frozen=True)
class Extracted(Faces):
    """The faces of one image with their embeddings of L2 norm 1."""

    embeddings: FloatArray  # [n, d]

    def __len__(self) -> int:
        return len(self.boxes)

    def confident(self) -> Extracted:
        return self.pick(self.scores >= CONFIDENT)

    def pick(self, which: BoolArray) -> Extracted:
        return Extracted(self.boxes[which], self.landmarks[which], self.scores[which], self.embeddings[which])

    def within(self, width: int, height: int) -> Extracted:
        """The boxes cut off at the image's edge, without faces of which less than a pixel is left."""
        boxes = self.boxes.clip(min=0, max=np.array([width, height] * 2, dtype=np.float32))
        visible: BoolArray = (boxes[:, 2:] - boxes[:, :2] >= 1).all(axis=1)
        return replace(self, boxes=boxes).pick(visible)


@dataclass
class Parity:
    """What a comparison counted."""

    images: int = 0
    reference_faces: int = 0  # of at least CONFIDENT
    found: int = 0  # of these, by ours of at least CONFIDENT
    our_faces: int = 0  # of at least CONFIDENT
    extra: int = 0  # of these, where the reference has no box at all
    landmark_errors: list[float] = field(default_factory=list)  # per found face: mean distance / eye distance

    @property
    def found_share(self) -> float:
        return self.found / max(1, self.reference_faces)

    @property
    def extra_share(self) -> float:
        return self.extra / max(1, self.our_faces)

    @property
    def landmark_median(self) -> float:
        return float(np.median(self.landmark_errors))


def iou(first: FloatArray, second: FloatArray) -> DoubleArray:
    """Intersection over union of all boxes [n, 4] with all boxes [m, 4]: [n, m]."""
    a, b = first[:, None].astype(np.float64), second[None].astype(np.float64)
    sides = np.minimum(a[..., 2:], b[..., 2:]) - np.maximum(a[..., :2], b[..., :2])
    shared = sides.clip(min=0).prod(axis=2)
    areas = (a[..., 2:] - a[..., :2]).prod(axis=2) + (b[..., 2:] - b[..., :2]).prod(axis=2)
    overlap: DoubleArray = shared / (areas - shared)
    return overlap


def compare(reference: Sequence[Faces], ours: Sequence[Faces]) -> Parity:
    """Counts over the images what both found."""
    parity = Parity(images=len(reference))
    for theirs, own in zip(reference, ours, strict=True):
        sure, own_sure = theirs.confident(), own.confident()
        parity.reference_faces += len(sure.boxes)
        parity.our_faces += len(own_sure.boxes)
        parity.extra += int((iou(own_sure.boxes, theirs.boxes).max(axis=1, initial=0) < ANY_IOU).sum())
        overlap = iou(sure.boxes, own_sure.boxes)
        for face in np.flatnonzero(overlap.max(axis=1, initial=0) >= SAME_IOU):
            parity.found += 1
            match = int(overlap[face].argmax())
            parity.landmark_errors.append(_landmark_error(sure.landmarks[face], own_sure.landmarks[match]))
    return parity


def _landmark_error(expected: FloatArray, given: FloatArray) -> float:
    """Mean distance of the five points, as a share of the distance of the eyes."""
    eyes = np.linalg.norm(expected[1] - expected[0])
    return float(np.linalg.norm(given - expected, axis=1).mean() / eyes)


def compare_faces(
    reference: Mapping[Path, Extracted], ours: Mapping[Path, Extracted], sizes: Mapping[Path, tuple[int, int]]
) -> Parity:
    """What both found; `sizes` (width, height). Raises AssertionError where they did not see the same files."""
    assert reference.keys() == ours.keys() == sizes.keys(), "the extractions are of other files"
    both = ([found[file].within(*size) for file, size in sizes.items()] for found in (reference, ours))
    return compare(*both)


def cosines(first: FloatArray, second: FloatArray) -> FloatArray:
    """Of the rows of [n, d] and [n, d]: [n]."""
    norms = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
    of_rows: FloatArray = (first * second).sum(axis=1) / norms
    return of_rows


def matched_cosines(reference: Mapping[Path, Extracted], ours: Mapping[Path, Extracted]) -> FloatArray:
    """Of each face of the reference that ours found at IoU 0.9, each with its own box."""
    found: list[FloatArray] = [np.zeros(0, np.float32)]
    for file, theirs in reference.items():
        own = ours[file]
        overlap = iou(theirs.boxes, own.boxes)
        same = np.flatnonzero(overlap.max(axis=1, initial=0) >= SAME_IOU)
        if len(same):
            found.append(cosines(theirs.embeddings[same], own.embeddings[overlap[same].argmax(axis=1)]))
    return np.concatenate(found)
