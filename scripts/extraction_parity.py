"""Compares what two extractions made of the same photos: faces as sets by overlap, embeddings by their cosine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from detection_parity import CONFIDENT, SAME_IOU, Faces, Parity, compare, iou

from pipeline.types import BoolArray, FloatArray

WANT_FOUND, WANT_EXTRA, WANT_LANDMARKS = 0.99, 0.01, 0.01
# Large faces are shrunk by averaging here and by a filter twice as wide in the reference, which moves a few embeddings
# by more than 0.001: this share of them, and one in any case, may be below the first, none below the last.
WANT_COSINE, MOST_BELOW, LEAST_COSINE = 0.999, 0.02, 0.995


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


def figures_of(parity: Parity, cosine: Mapping[str, FloatArray]) -> dict[str, Any]:
    return {
        "images": parity.images,
        "reference_faces": parity.reference_faces,
        "our_faces": parity.our_faces,
        "missed": parity.reference_faces - parity.found,
        "extra": parity.extra,
        "landmark_error_median": parity.landmark_median,
        **{f"cosine_{name}_min": float(values.min()) for name, values in cosine.items()},
        **{f"cosine_{name}_median": float(np.median(values)) for name, values in cosine.items()},
        **{f"cosine_{name}_below_{WANT_COSINE}": int((values < WANT_COSINE).sum()) for name, values in cosine.items()},
    }


def assert_same_faces(parity: Parity) -> None:
    """Raises AssertionError unless both found the same faces."""
    assert parity.reference_faces > 0, "the photos show no face"
    assert parity.found_share >= WANT_FOUND, parity
    assert parity.extra_share <= WANT_EXTRA, parity
    assert parity.landmark_median <= WANT_LANDMARKS, parity.landmark_median


def assert_equal(parity: Parity, same_box: FloatArray) -> None:
    """Raises AssertionError unless both found the same faces, and embed the same boxes alike."""
    assert_same_faces(parity)
    assert (same_box < WANT_COSINE).sum() <= max(1, MOST_BELOW * len(same_box)), np.sort(same_box)[:5]
    assert same_box.min() >= LEAST_COSINE, same_box.min()
