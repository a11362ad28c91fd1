"""What our detector and `facenet_pytorch.MTCNN` find in pictures: to be compared by `evaluation.bench.parity`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from facenet_pytorch import MTCNN
from PIL import Image

from pipeline.evaluation.bench.parity import Faces
from pipeline.evaluation.bench.reference import faces_of
from pipeline.extraction.detection.cascade import MtcnnDetector
from pipeline.extraction.images.batch import ImageBatch
from pipeline.types import ByteArray, FloatArray


def reference_faces(reference: MTCNN, pixels: ByteArray) -> Faces:
    boxes, scores, landmarks = reference.detect(Image.fromarray(pixels), landmarks=True)
    return faces_of(boxes, landmarks, scores)


def our_faces(detector: MtcnnDetector, images: Sequence[ByteArray]) -> list[Faces]:
    """The faces of each image, all images in one batch."""
    found = detector(ImageBatch(images, detector.networks.device))
    index = found.image_index.cpu().numpy()
    arrays = [a.cpu().numpy() for a in (found.boxes, found.landmarks, found.scores)]
    return [Faces(*(a[index == i] for a in arrays)) for i in range(len(images))]


def largest_shift(first: Faces, second: Faces) -> float:
    """How far the confident boxes of one detection lie from the nearest of the other, in pixels, both ways.

    Infinite where one has no counterpart. A counterpart need not be confident: no score is cut at the same bit.
    """
    ways = ((first.confident().boxes, second.boxes), (second.confident().boxes, first.boxes))
    return max((_nearest(boxes, others) for boxes, others in ways), default=0.0)


def _nearest(boxes: FloatArray, others: FloatArray) -> float:
    distance = np.abs(boxes[:, None] - others[None]).max(axis=2, initial=0)
    return float(distance.min(axis=1, initial=np.inf).max(initial=0))
