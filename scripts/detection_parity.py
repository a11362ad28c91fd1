"""Compares our detector's faces with those of `facenet_pytorch.MTCNN`: as sets by overlap, never by order or bits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from facenet_pytorch import MTCNN
from PIL import Image

from pipeline.config import DetectSettings
from pipeline.detect import MtcnnDetector
from pipeline.imagebatch import ImageBatch
from pipeline.types import ByteArray, DoubleArray, FloatArray

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


def make_reference(settings: DetectSettings, device: str) -> MTCNN:
    """facenet-pytorch's detector with the thresholds of `settings`."""
    thresholds = [settings.pnet_threshold, settings.rnet_threshold, settings.onet_threshold]
    return MTCNN(
        keep_all=True,
        min_face_size=settings.min_face_px,
        thresholds=thresholds,
        factor=settings.factor,
        device=device,
    )


def reference_faces(reference: MTCNN, pixels: ByteArray) -> Faces:
    boxes, scores, landmarks = reference.detect(Image.fromarray(pixels), landmarks=True)
    if boxes is None:
        return Faces(np.zeros((0, 4), np.float32), np.zeros((0, 5, 2), np.float32), np.zeros(0, np.float32))
    return Faces(*(np.asarray(a, dtype=np.float32) for a in (boxes, landmarks, scores)))


def our_faces(detector: MtcnnDetector, images: Sequence[ByteArray]) -> list[Faces]:
    """The faces of each image, all images in one batch."""
    found = detector(ImageBatch(images, detector.networks.device))
    index = found.image_index.cpu().numpy()
    arrays = [a.cpu().numpy() for a in (found.boxes, found.landmarks, found.scores)]
    return [Faces(*(a[index == i] for a in arrays)) for i in range(len(images))]


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


def largest_shift(first: Faces, second: Faces) -> float:
    """How far the confident boxes of one detection lie from the nearest of the other, in pixels, both ways.

    Infinite where one has no counterpart. A counterpart need not be confident: no score is cut at the same bit.
    """
    ways = ((first.confident().boxes, second.boxes), (second.confident().boxes, first.boxes))
    return max((_nearest(boxes, others) for boxes, others in ways), default=0.0)


def _nearest(boxes: FloatArray, others: FloatArray) -> float:
    distance = np.abs(boxes[:, None] - others[None]).max(axis=2, initial=0)
    return float(distance.min(axis=1, initial=np.inf).max(initial=0))
