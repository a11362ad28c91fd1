"""Our detector finds the faces that facenet-pytorch's finds, at the same places."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from comparison import largest_shift, our_faces, reference_faces
from facenet_pytorch import MTCNN
from PIL import Image

from pipeline.config import DecodeSettings, DetectSettings
from pipeline.evaluation.bench.parity import Faces, compare
from pipeline.evaluation.bench.reference import make_reference
from pipeline.extraction.detection.cascade import MtcnnDetector, MtcnnNetworks
from pipeline.extraction.images.decode import decode_image
from pipeline.types import ByteArray

# Everything the cascade lets through; the comparison itself asks for 0.95.
SETTINGS = DetectSettings(min_confidence=DetectSettings().onet_threshold)


@pytest.fixture(scope="module")
def detector(any_networks: MtcnnNetworks) -> MtcnnDetector:
    return MtcnnDetector(any_networks, SETTINGS)


@pytest.fixture(scope="module")
def reference() -> MTCNN:
    return make_reference(SETTINGS, "cpu")


@pytest.fixture(scope="module")
def portraits(hopper_path: Path, astronaut_path: Path) -> list[ByteArray]:
    """Both portraits at their own size, smaller, at odd sizes, turned over, and side by side."""
    hopper, astronaut = (Image.open(p).convert("RGB") for p in (hopper_path, astronaut_path))
    both = Image.new("RGB", (411, 260), "grey")
    both.paste(hopper.resize((205, 240)), (0, 5))
    both.paste(astronaut.resize((200, 200)), (207, 40))
    flipped = astronaut.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    pictures = [hopper, astronaut, hopper.resize((171, 200)), astronaut.resize((333, 331)), flipped, both]
    return [np.array(p) for p in pictures]


@pytest.mark.slow
def test_portraits(detector: MtcnnDetector, reference: MTCNN, portraits: list[ByteArray]) -> None:
    parity = compare([reference_faces(reference, p) for p in portraits], our_faces(detector, portraits))
    assert parity.reference_faces >= 7
    assert parity.found == parity.reference_faces == parity.our_faces
    assert parity.extra == 0
    assert max(parity.landmark_errors) < 0.01


@pytest.mark.slow
@pytest.mark.faces
def test_groups(detector: MtcnnDetector, reference: MTCNN, faces_dir: Path) -> None:
    """Group photos: many small faces, and dogs with none. One batch of mixed sizes, and each alone."""
    files = sorted((faces_dir / "groups-with-boxes").glob("*.jpg"))
    images = [decode_image(f.read_bytes(), DecodeSettings()).pixels for f in files]
    together = our_faces(detector, images)
    parity = compare([reference_faces(reference, p) for p in images], together)
    assert parity.reference_faces > 50
    assert parity.found >= 0.99 * parity.reference_faces
    assert parity.extra <= 0.01 * parity.our_faces
    assert np.median(parity.landmark_errors) <= 0.01
    alone = [our_faces(detector, [image])[0] for image in images]
    assert max(largest_shift(a, b) for a, b in zip(alone, together, strict=True)) <= 0.5


class TestComparison:
    """The comparison itself must be able to fail."""

    BOXES = np.array([[10, 10, 50, 60], [100, 20, 140, 70]], dtype=np.float32)

    def faces(self, boxes: np.ndarray, scores: Sequence[float] = (0.99, 0.99)) -> Faces:
        landmarks = np.tile(np.array([[0, 0], [20, 0], [10, 10], [2, 20], [18, 20]], np.float32), (len(boxes), 1, 1))
        return Faces(boxes, landmarks + boxes[:, None, :2], np.array(scores[: len(boxes)], np.float32))

    def test_missed_and_extra_are_counted(self) -> None:
        moved = self.BOXES + np.array([[0], [30]], dtype=np.float32)
        parity = compare([self.faces(self.BOXES)], [self.faces(moved)])
        assert (parity.reference_faces, parity.found, parity.our_faces, parity.extra) == (2, 1, 2, 1)
        assert parity.landmark_errors == [0.0]

    def test_extra_beside_an_unsure_face_of_the_reference_is_none(self) -> None:
        parity = compare([self.faces(self.BOXES, (0.99, 0.8))], [self.faces(self.BOXES)])
        assert (parity.reference_faces, parity.found, parity.our_faces, parity.extra) == (1, 1, 2, 0)

    def test_landmark_error_is_relative_to_the_eyes(self) -> None:
        own = self.faces(self.BOXES)
        shifted = Faces(own.boxes, own.landmarks + np.array([3, 4], np.float32), own.scores)
        assert compare([own], [shifted]).landmark_errors == pytest.approx([5 / 20] * 2)

    def test_shift(self) -> None:
        own = self.faces(self.BOXES)
        assert largest_shift(own, self.faces(self.BOXES[::-1] + 0.25)) == pytest.approx(0.25)
        assert largest_shift(own, self.faces(self.BOXES[:1])) > 50
        assert largest_shift(own, self.faces(self.BOXES[:0])) == np.inf
        assert largest_shift(self.faces(self.BOXES[:0]), self.faces(self.BOXES[:0])) == 0
