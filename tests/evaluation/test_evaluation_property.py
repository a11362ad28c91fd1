"""The measures of clustering and detection against their definitions, written down as slowly as they read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.evaluation.clustering.measures import Contingency
from pipeline.evaluation.detection.annotations import AnnotatedImage
from pipeline.evaluation.detection.measures import (
    DetectedFaces,
    average_precision,
    evaluate_detection,
    overlaps,
    precision_recall,
)
from pipeline.types import BoolArray, FloatArray, IntArray

Labels = list[tuple[int, int]]
labels = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=30)


def table(pairs: Labels) -> Contingency:
    return Contingency.of(*(np.unique(column, return_inverse=True)[1].astype(np.int64) for column in arrays(pairs)))


def arrays(pairs: Labels) -> tuple[IntArray, IntArray]:
    both = np.array(pairs, dtype=np.int64)
    return both[:, 0], both[:, 1]


@given(labels)
def test_pairwise_is_its_definition(pairs: Labels) -> None:
    people, identities = arrays(pairs)
    upper = np.triu(np.ones((len(pairs), len(pairs)), np.bool_), k=1)
    same_person = (people[:, None] == people) & upper
    together = (identities[:, None] == identities) & upper
    found, right = table(pairs).pairwise(), (same_person & together).sum()
    if together.any():
        assert found.precision == pytest.approx(right / together.sum())
    if same_person.any():
        assert found.recall == pytest.approx(right / same_person.sum())
    assert np.isnan(found.precision) == (not together.any())
    assert table(pairs).wrongly_joined().sum() == (together & ~same_person).sum()
    assert table(pairs).wrongly_parted().sum() == (same_person & ~together).sum()


@given(labels)
def test_bcubed_is_its_definition(pairs: Labels) -> None:
    people, identities = arrays(pairs)
    same_person, together = people[:, None] == people, identities[:, None] == identities
    right = (same_person & together).sum(axis=1)
    found = table(pairs).bcubed()
    assert found.precision == pytest.approx((right / together.sum(axis=1)).mean())
    assert found.recall == pytest.approx((right / same_person.sum(axis=1)).mean())
    assert 0 < found.precision <= 1 + 1e-12
    assert 0 < found.f <= 1 + 1e-12


@given(st.lists(st.integers(0, 4), min_size=2, max_size=30))
def test_a_perfect_clustering_is_one(people: list[int]) -> None:
    found = table([(person, person) for person in people])
    assert found.bcubed().f == 1
    if len(set(people)) < len(people):
        assert found.pairwise().f == 1
    assert not found.wrongly_joined().any()
    assert not found.wrongly_parted().any()


@given(st.lists(st.integers(0, 4), min_size=2, max_size=30))
def test_all_in_one_has_a_recall_of_one_and_each_alone_a_precision_of_one(people: list[int]) -> None:
    joined, alone = table([(p, 0) for p in people]), table([(p, i) for i, p in enumerate(people)])
    assert joined.bcubed().recall == pytest.approx(1)
    assert alone.bcubed().precision == pytest.approx(1)
    if len(set(people)) < len(people):
        assert joined.pairwise().recall == 1
        assert alone.pairwise().recall == 0


@given(labels, st.permutations(range(5)), st.randoms(use_true_random=False))
def test_neither_the_names_nor_the_order_matter(pairs: Labels, names: list[int], random: object) -> None:
    renamed = [(names[person], names[-1 - identity]) for person, identity in pairs]
    random.shuffle(renamed)  # type: ignore[attr-defined]
    for one, other in (
        (table(pairs).pairwise(), table(renamed).pairwise()),
        (table(pairs).bcubed(), table(renamed).bcubed()),
    ):
        assert [one.precision, one.recall] == pytest.approx([other.precision, other.recall], nan_ok=True)
    assert table(pairs).counted() == table(renamed).counted()


@given(labels)
def test_exchanging_people_and_identities_exchanges_precision_and_recall(pairs: Labels) -> None:
    there, back = table(pairs).bcubed(), table([(identity, person) for person, identity in pairs]).bcubed()
    assert [there.precision, there.recall] == pytest.approx([back.recall, back.precision])


hits = st.lists(st.tuples(st.booleans(), st.integers(0, 6)), max_size=25)


@given(hits, st.integers(0, 5))
def test_average_precision_is_its_definition(found: list[tuple[bool, int]], further: int) -> None:
    ordered = sorted(found, key=lambda each: -each[1])
    right = np.array([each[0] for each in ordered], dtype=np.bool_)
    confidence = np.array([each[1] for each in ordered], dtype=np.float32)
    faces = max(1, int(right.sum()) + further)
    _, recalls, precisions = precision_recall(right, confidence, faces)
    # The mean over all faces of the best precision at any threshold that finds so many.
    points = [
        (sum(r for r, c in ordered if c >= level), sum(c >= level for _, c in ordered)) for level in {*confidence}
    ]
    expected = sum(max((h / n for h, n in points if h >= k), default=0.0) for k in range(1, faces + 1)) / faces
    assert average_precision(recalls, precisions) == pytest.approx(expected)


box = st.tuples(st.integers(0, 60), st.integers(0, 60), st.integers(1, 40), st.integers(1, 40))
boxes = st.lists(box, max_size=6)


def corners(given_boxes: list[tuple[int, int, int, int]]) -> FloatArray:
    return np.array([(x, y, x + w, y + h) for x, y, w, h in given_boxes], dtype=np.float32).reshape(-1, 4)


def annotated(path: str, faces: FloatArray, ignored: BoolArray | None = None) -> AnnotatedImage:
    nothing = np.zeros(len(faces), dtype=np.bool_)
    return AnnotatedImage(path, Path(path), faces, nothing if ignored is None else ignored)


@given(box, boxes)
def test_overlap_is_the_share_of_pixels(
    one: tuple[int, int, int, int], others: list[tuple[int, int, int, int]]
) -> None:
    def painted(x: int, y: int, w: int, h: int) -> BoolArray:
        canvas = np.zeros((100, 100), np.bool_)
        canvas[y : y + h, x : x + w] = True
        return canvas

    expected = [(painted(*one) & painted(*other)).sum() / (painted(*one) | painted(*other)).sum() for other in others]
    assert overlaps(corners([one])[0], corners(others)).tolist() == pytest.approx(expected)


@given(st.lists(st.tuples(boxes, boxes), min_size=1, max_size=4), st.integers(0, 30))
def test_every_detection_and_every_face_is_counted_once(
    images: list[tuple[list[tuple[int, int, int, int]], list[tuple[int, int, int, int]]]], min_px: int
) -> None:
    truth = [annotated(str(i), corners(faces)) for i, (faces, _) in enumerate(images)]
    truth.append(annotated("one large face", np.array([[0, 0, 90, 90]], np.float32)))
    found = [DetectedFaces(corners(said), np.linspace(1, 0.5, len(said), dtype=np.float32)) for _, said in images]
    found.append(DetectedFaces(np.zeros((0, 4), np.float32), np.zeros(0, np.float32)))
    result = evaluate_detection(truth, found, min_px)
    assert result.found + result.false_alarms + result.ignored_detections == sum(len(said) for _, said in images)
    assert result.faces + result.ignored_faces == 1 + sum(len(faces) for faces, _ in images)
    assert 0 <= result.found <= result.faces
    assert 0 <= result.average_precision <= result.recall + 1e-12


@given(boxes, boxes)
def test_ignoring_a_face_never_makes_an_error(
    faces: list[tuple[int, int, int, int]], said: list[tuple[int, int, int, int]]
) -> None:
    extra = annotated("one large face", np.array([[0, 0, 90, 90]], np.float32))
    nothing = DetectedFaces(np.zeros((0, 4), np.float32), np.zeros(0, np.float32))
    found = DetectedFaces(corners(said), np.linspace(1, 0.5, len(said), dtype=np.float32))
    plain = evaluate_detection([annotated("a", corners(faces)), extra], [found, nothing])
    ignored = np.ones(len(faces), dtype=np.bool_)
    lenient = evaluate_detection([annotated("a", corners(faces), ignored), extra], [found, nothing])
    assert lenient.false_alarms <= plain.false_alarms
    assert (lenient.faces, lenient.found) == (1, 0)
