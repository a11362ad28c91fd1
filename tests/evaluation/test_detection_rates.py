"""Recall, precision and average precision of a detector, by hand and against their definitions."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import InputError
from pipeline.evaluation.annotations import AnnotatedImage
from pipeline.evaluation.detection import (
    DetectedFaces,
    average_precision,
    evaluate_detection,
    overlaps,
    precision_recall,
)
from pipeline.types import BoolArray

Box = tuple[int, int, int, int]

NOTHING = DetectedFaces(np.zeros((0, 4), np.float32), np.zeros(0, np.float32))
BOX = st.tuples(st.integers(0, 60), st.integers(0, 60), st.integers(1, 40), st.integers(1, 40)).map(
    lambda box: (box[0], box[1], box[0] + box[2], box[1] + box[3])
)
BOXES = st.lists(BOX, max_size=6)
LARGE = (0, 0, 90, 90)


def image(*boxes: tuple[float, float, float, float], ignored: tuple[bool, ...] = (), path: str = "a") -> AnnotatedImage:
    corners = np.array(boxes, dtype=np.float32).reshape(-1, 4)
    return AnnotatedImage(path, Path(path), corners, np.array(ignored or (False,) * len(boxes), dtype=np.bool_))


def said(*faces: tuple[float, float, float, float, float]) -> DetectedFaces:
    """Boxes and confidences."""
    numbers = np.array(faces, dtype=np.float32).reshape(-1, 5)
    return DetectedFaces(numbers[:, :4], numbers[:, 4])


def test_a_case_worked_out_by_hand() -> None:
    # Three faces; in falling confidence: right, false alarm, right, a second detection of the first face.
    truth = [image((0, 0, 10, 10), (20, 0, 30, 10)), image((0, 0, 10, 10), path="b")]
    found = [said((0, 0, 10, 10, 0.9), (0, 0, 10, 9, 0.6)), said((50, 50, 60, 60, 0.8), (1, 0, 11, 10, 0.7))]
    result = evaluate_detection(truth, found)
    assert (result.images, result.faces, result.found, result.false_alarms) == (2, 3, 2, 2)
    assert result.recall == pytest.approx(2 / 3)
    assert result.precision == pytest.approx(1 / 2)
    assert result.f == pytest.approx(4 / 7)
    # Precision 1 up to the first face, 2/3 up to the second; the third is never found.
    assert result.average_precision == pytest.approx((1 + 2 / 3) / 3)
    assert result.confidences == pytest.approx((0.9, 0.8, 0.7, 0.6))
    assert result.recalls == pytest.approx((1 / 3, 1 / 3, 2 / 3, 2 / 3))
    assert result.precisions == pytest.approx((1, 1 / 2, 2 / 3, 1 / 2))
    assert [(each.path, each.missed, each.false_alarms) for each in result.worst_images] == [("a", 1, 1), ("b", 0, 1)]


def test_equal_confidences_are_one_point() -> None:
    # No threshold lies between the two, so their order must not matter.
    one = said((50, 50, 60, 60, 0.9), (0, 0, 10, 10, 0.9))
    result = evaluate_detection([image((0, 0, 10, 10))], [one])
    assert result.precisions == (0.5,)
    assert result.average_precision == 0.5


def test_half_an_overlap_is_enough_and_less_is_not() -> None:
    truth = [image((0, 0, 10, 10))]
    assert evaluate_detection(truth, [said((0, 0, 10, 20, 1))]).recall == 1  # 100 of 200
    assert evaluate_detection(truth, [said((0, 0, 10, 20.1, 1))]).recall == 0


def test_a_detection_belongs_to_the_face_it_overlaps_most() -> None:
    truth = [image((0, 0, 10, 10), (2, 0, 12, 10))]
    result = evaluate_detection(truth, [said((2, 0, 12, 10, 0.9), (0, 0, 10, 10, 0.8))])
    assert result.recall == result.precision == result.average_precision == 1


def test_small_faces_and_small_false_alarms_are_left_out() -> None:
    truth = [image((0, 0, 39, 39), (100, 100, 140, 140))]
    found = [
        said(
            (0, 0, 41, 41, 0.99),  # on the small face, though itself large enough
            (101, 101, 139, 139, 0.98),  # small, but on a face that counts
            (200, 200, 230, 230, 0.97),  # small and on nothing
            (300, 300, 350, 350, 0.96),
        )
    ]
    result = evaluate_detection(truth, found, min_px=40)
    assert (result.faces, result.ignored_faces) == (1, 1)
    assert (result.found, result.false_alarms, result.ignored_detections) == (1, 1, 2)
    assert (result.recall, result.precision) == (1, 0.5)


def test_the_size_of_a_face_is_the_side_of_a_square_of_its_area() -> None:
    truth = [image((0, 0, 20, 80), (100, 0, 120, 79))]
    assert evaluate_detection(truth, [NOTHING], min_px=40).faces == 1


def test_a_difficult_face_is_neither_found_nor_missed() -> None:
    truth = [image((0, 0, 10, 10), (50, 50, 60, 60), ignored=(True, False))]
    both = evaluate_detection(truth, [said((0, 0, 10, 10, 1), (0, 0, 10, 10, 0.9), (50, 50, 60, 60, 0.8))])
    assert (both.faces, both.found, both.false_alarms, both.ignored_detections) == (1, 1, 0, 2)


def test_false_alarms_on_images_without_faces_count() -> None:
    result = evaluate_detection([image((0, 0, 9, 9)), image(path="b")], [NOTHING, said((0, 0, 9, 9, 1))])
    assert (result.images, result.false_alarms, result.recall) == (2, 1, 0)
    assert result.average_precision == 0


def test_nothing_found_has_no_precision() -> None:
    result = evaluate_detection([image((0, 0, 9, 9))], [NOTHING])
    assert (result.recall, result.average_precision) == (0, 0)
    assert math.isnan(result.precision)
    assert [errors.missed for errors in result.worst_images] == [1]


@pytest.mark.parametrize("truth", [[], [image()], [image((0, 0, 9, 9))], [image((0, 0, 50, 50), ignored=(True,))]])
def test_no_face_to_find_is_an_error(truth: list[AnnotatedImage]) -> None:
    with pytest.raises(InputError, match="no face of 40 pixels"):
        evaluate_detection(truth, [NOTHING] * len(truth), min_px=40)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 6)), max_size=25), st.integers(0, 5))
def test_average_precision_is_its_definition(found: list[tuple[bool, int]], further: int) -> None:
    ordered = sorted(found, key=lambda hit: -hit[1])
    right = np.array([right for right, _ in ordered], dtype=np.bool_)
    confidence = np.array([c for _, c in ordered], dtype=np.float32)
    faces = max(1, int(right.sum()) + further)
    _, recalls, precisions = precision_recall(right, confidence, faces)
    # The mean over all faces of the best precision at any threshold that finds so many.
    points = [
        (sum(r for r, c in ordered if c >= level), sum(c >= level for _, c in ordered)) for level in {*confidence}
    ]
    expected = sum(max((h / n for h, n in points if h >= k), default=0.0) for k in range(1, faces + 1)) / faces
    assert average_precision(recalls, precisions) == pytest.approx(expected)


@given(BOX, BOXES)
def test_overlap_is_the_share_of_pixels(one: Box, others: list[Box]) -> None:
    def painted(x1: int, y1: int, x2: int, y2: int) -> BoolArray:
        canvas = np.zeros((100, 100), np.bool_)
        canvas[y1:y2, x1:x2] = True
        return canvas

    expected = [(painted(*one) & painted(*other)).sum() / (painted(*one) | painted(*other)).sum() for other in others]
    assert overlaps(image(one).boxes, image(*others).boxes)[0].tolist() == pytest.approx(expected)


def confident(boxes: list[Box]) -> DetectedFaces:
    """The boxes with falling confidences."""
    return DetectedFaces(image(*boxes).boxes, np.linspace(1, 0.5, len(boxes), dtype=np.float32))


@given(st.lists(st.tuples(BOXES, BOXES), min_size=1, max_size=4), st.integers(0, 30))
def test_every_detection_and_every_face_is_counted_once(images: list[tuple[list[Box], list[Box]]], min_px: int) -> None:
    truth = [*(image(*faces, path=str(i)) for i, (faces, _) in enumerate(images)), image(LARGE)]
    result = evaluate_detection(truth, [*(confident(detected) for _, detected in images), NOTHING], min_px)
    detections = sum(len(detected) for _, detected in images)
    assert result.found + result.false_alarms + result.ignored_detections == detections
    assert result.faces + result.ignored_faces == 1 + sum(len(faces) for faces, _ in images)
    assert 0 <= result.found <= result.faces
    assert 0 <= result.average_precision <= result.recall + 1e-12


@given(BOXES, BOXES)
def test_ignoring_a_face_never_makes_an_error(faces: list[Box], detected: list[Box]) -> None:
    found = [confident(detected), NOTHING]
    plain = evaluate_detection([image(*faces), image(LARGE, path="b")], found)
    ignored = image(*faces, ignored=(True,) * len(faces))
    lenient = evaluate_detection([ignored, image(LARGE, path="b")], found)
    assert lenient.false_alarms <= plain.false_alarms
    assert (lenient.faces, lenient.found) == (1, 0)
