"""facepipe and facenet-pytorch on the same photos: what they find, and when they agree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from facenet_pytorch import MTCNN
from PIL import Image

from pipeline.evaluation.bench.parity import SAME_IOU, Extracted, Faces, Parity, cosines
from pipeline.evaluation.bench.reference import faces_of
from pipeline.evaluation.detection import overlaps
from pipeline.extraction.detection.cascade import MtcnnDetector
from pipeline.runtime.arrays import on_host
from pipeline.types import ByteArray, FloatArray

LEAST_FOUND, MOST_EXTRA, MOST_LANDMARK_ERROR = 0.99, 0.01, 0.01
LEAST_COSINE: Final = 0.999  # of every face of the same box


def our_faces(detector: MtcnnDetector, images: Sequence[ByteArray]) -> list[Faces]:
    """The faces of each image, all images in one batch."""
    with detector.networks.computing():
        found = detector(detector.networks.batch(images))
    index, *arrays = (on_host(a) for a in (found.image_index, found.boxes, found.landmarks, found.scores))
    return [Faces(*(a[index == i] for a in arrays)) for i in range(len(images))]


def reference_faces(reference: MTCNN, pixels: ByteArray) -> Faces:
    boxes, scores, landmarks = reference.detect(Image.fromarray(pixels), landmarks=True)
    return faces_of(boxes, landmarks, scores)


def parity_figures(parity: Parity) -> dict[str, Any]:
    return {
        "images": parity.images,
        "reference_faces": parity.reference_faces,
        "our_faces": parity.our_faces,
        "missed": parity.reference_faces - parity.found,
        "extra": parity.extra,
        "landmark_error_median": float(np.median(parity.landmark_errors)),
    }


def cosine_figures(cosines: Mapping[str, FloatArray]) -> dict[str, Any]:
    """Least and median of the cosines, and how many are too small, by name."""
    figures: dict[str, Any] = {}
    for name, values in cosines.items():
        figures[f"cosine_{name}_min"] = float(values.min())
        figures[f"cosine_{name}_median"] = float(np.median(values))
        figures[f"cosine_{name}_below_{LEAST_COSINE}"] = int((values < LEAST_COSINE).sum())
    return figures


def matched_cosines(reference: Mapping[Path, Extracted], ours: Mapping[Path, Extracted]) -> FloatArray:
    """[n] the cosine of both embeddings, each of its own box, for the reference's faces that ours has at IoU 0.9."""
    cosine: list[FloatArray] = [np.zeros(0, np.float32)]
    for file, expected in reference.items():
        actual = ours[file]
        overlap = overlaps(expected.boxes, actual.boxes)
        same = np.flatnonzero(overlap.max(axis=1, initial=0) >= SAME_IOU)
        if len(same):
            cosine.append(cosines(expected.embeddings[same], actual.embeddings[overlap[same].argmax(axis=1)]))
    return np.concatenate(cosine)


def assert_same_faces(parity: Parity) -> None:
    """Raises AssertionError unless both found the same faces: 99 % of the reference's of probability 0.95 at IoU 0.9,
    at most 1 % besides, landmarks within 1 % of the distance of the eyes (median)."""
    assert parity.reference_faces > 0, "the photos show no face"
    assert parity.found >= LEAST_FOUND * parity.reference_faces, parity
    assert parity.extra <= MOST_EXTRA * parity.our_faces, parity
    assert float(np.median(parity.landmark_errors)) <= MOST_LANDMARK_ERROR, parity


def assert_same_embeddings(cosines: FloatArray, least: float = LEAST_COSINE) -> None:
    """Raises AssertionError unless each of the same boxes is embedded alike."""
    assert cosines.min() >= least, np.sort(cosines)[:5]


def largest_shift(first: Faces, second: Faces) -> float:
    """How far the confident boxes of one detection lie from the nearest of the other, in pixels, both ways.

    Infinite where one has no counterpart. A counterpart need not be confident: no score is cut at the same bit.
    """
    ways = ((first.confident().boxes, second.boxes), (second.confident().boxes, first.boxes))
    return max((_nearest(boxes, others) for boxes, others in ways), default=0.0)


def _nearest(boxes: FloatArray, others: FloatArray) -> float:
    distance = np.abs(boxes[:, None] - others[None]).max(axis=2, initial=0)
    return float(distance.min(axis=1, initial=np.inf).max(initial=0))
