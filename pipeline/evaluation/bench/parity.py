"""Compares two detections or extractions of the same photos: faces by overlap, in any order; embeddings by cosine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TypeVar

import numpy as np

from pipeline.evaluation.detection import overlaps
from pipeline.types import BoolArray, FloatArray

Found = TypeVar("Found", bound="Faces")

CONFIDENT = 0.95
SAME_IOU = 0.9  # practically equal: a box of 100 pixels differs by at most five in one direction
ANY_IOU = 0.5


@dataclass(frozen=True)
class Faces:
    """One image's faces."""

    boxes: FloatArray  # [n, 4] xyxy
    landmarks: FloatArray  # [n, 5, 2]
    scores: FloatArray  # [n]

    def confident(self: Found) -> Found:
        return self.pick(self.scores >= CONFIDENT)

    def pick(self: Found, mask: BoolArray) -> Found:
        return replace(self, **{column.name: getattr(self, column.name)[mask] for column in fields(self)})


@dataclass(frozen=True)
class Extracted(Faces):
    """One image's faces with embeddings of L2 norm 1."""

    embeddings: FloatArray  # [n, d]

    def __len__(self) -> int:
        return len(self.boxes)

    def within(self, width: int, height: int) -> Extracted:
        """Clips the boxes to the image, and drops faces less than a pixel wide or high."""
        boxes = self.boxes.clip(min=0, max=np.array([width, height] * 2, dtype=np.float32))
        visible: BoolArray = (boxes[:, 2:] - boxes[:, :2] >= 1).all(axis=1)
        return replace(self, boxes=boxes).pick(visible)


@dataclass
class Parity:
    """The counts of a comparison; `confident` is a score of at least CONFIDENT."""

    images: int = 0
    reference_faces: int = 0  # confident
    found: int = 0  # of these, overlapped by a confident face of ours
    our_faces: int = 0  # confident
    extra: int = 0  # of these, without any overlapping box of the reference
    landmark_errors: list[float] = field(default_factory=list)  # per found face: mean distance / eye distance


def compare(reference: Sequence[Faces], ours: Sequence[Faces]) -> Parity:
    """Counts the common faces over all images."""
    parity = Parity(images=len(reference))
    for reference_faces, our_faces in zip(reference, ours, strict=True):
        expected, actual = reference_faces.confident(), our_faces.confident()
        parity.reference_faces += len(expected.boxes)
        parity.our_faces += len(actual.boxes)
        parity.extra += int((overlaps(actual.boxes, reference_faces.boxes).max(axis=1, initial=0) < ANY_IOU).sum())
        overlap = overlaps(expected.boxes, actual.boxes)
        for face in np.flatnonzero(overlap.max(axis=1, initial=0) >= SAME_IOU):
            parity.found += 1
            match = int(overlap[face].argmax())
            parity.landmark_errors.append(_landmark_error(expected.landmarks[face], actual.landmarks[match]))
    return parity


def _landmark_error(expected: FloatArray, actual: FloatArray) -> float:
    """Mean distance of the five points, as a share of the eye distance."""
    eyes = np.linalg.norm(expected[1] - expected[0])
    return float(np.linalg.norm(actual - expected, axis=1).mean() / eyes)


def compare_faces(
    reference: Mapping[Path, Extracted], ours: Mapping[Path, Extracted], sizes: Mapping[Path, tuple[int, int]]
) -> Parity:
    """Compares the faces within the images; `sizes`: (width, height). Raises AssertionError for different files."""
    assert reference.keys() == ours.keys() == sizes.keys(), "the extractions are of different files"
    both = ([faces[file].within(*size) for file, size in sizes.items()] for faces in (reference, ours))
    return compare(*both)


def cosines(first: FloatArray, second: FloatArray) -> FloatArray:
    """Returns [n] the cosine between corresponding rows of `first` and `second` [n, d]."""
    norms = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
    cosine: FloatArray = (first * second).sum(axis=1) / norms
    return cosine
