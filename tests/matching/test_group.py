"""What grouping decides, case by case; the property test holds it against the definition."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pipeline.errors import EmbeddingInvalid, UsageError
from pipeline.matching.calibration import Calibration
from pipeline.matching.group import group_faces
from pipeline.matching.match import Matcher
from pipeline.matching.references import ReferenceIndex
from pipeline.matching.score import similarity_score
from pipeline.types import Decisions, FaceBatch, FloatArray

MATCHER = Matcher(Calibration(1.281), 0.54)
TOP = similarity_score(0.0, 0.54)


def batch(
    vectors: FloatArray,
    insertable: list[bool] | None = None,
    hashes: list[tuple[str, ...]] | None = None,
    boxes: list[list[float]] | None = None,
) -> FaceBatch:
    count = len(vectors)
    return FaceBatch(
        vectors.astype(np.float32),
        np.array(insertable if insertable is not None else [True] * count, dtype=np.bool_),
        hashes if hashes is not None else [()] * count,
        np.array(boxes if boxes is not None else [[0, 0, 10, 10]] * count, dtype=np.float32).reshape(count, 4),
    )


def at_angles(*degrees: float) -> FloatArray:
    radians = np.radians(np.array(degrees))
    return np.stack([np.cos(radians), np.sin(radians)], axis=1).astype(np.float32)


def filled(faces: FaceBatch, device: str = "cpu") -> ReferenceIndex:
    index = ReferenceIndex(faces.embeddings.shape[1], device)
    index.append(faces.embeddings, np.arange(len(faces)), faces.image_hashes, faces.boxes)
    return index


def two_sightings(count: int, size: int, seed: int) -> FloatArray:
    rng = np.random.default_rng(seed)
    vectors = np.repeat(rng.standard_normal((count // 2, size)), 2, axis=0) + 0.3 * rng.standard_normal((count, size))
    return rng.permutation(vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def one_by_one(vectors: FloatArray, matcher: Matcher) -> tuple[list[int], list[float]]:
    known: list[int] = []
    positions, scores = [], []
    for face in range(len(vectors)):
        query = np.broadcast_to(vectors[face], (len(known), vectors.shape[1]))
        against = matcher.scores(matcher.distances(query, vectors[known]))
        if known and against.max() >= 1.0:
            positions.append(int(against.argmax()))
            scores.append(float(against.max()))
        else:
            positions.append(len(known))
            scores.append(similarity_score(0.0, matcher.threshold))
            known.append(face)
    return positions, scores


@pytest.fixture(scope="module")
def many(full: bool) -> tuple[FloatArray, list[int], list[float]]:
    """Many faces of 512 dimensions, and the positions and scores of deciding them one by one."""
    vectors = two_sightings(2000 if full else 700, 512, seed=4)
    return vectors, *one_by_one(vectors, MATCHER)


@pytest.mark.parametrize("block", [64, 512, 5000])
def test_many_faces_of_512_dimensions_equal_one_by_one(
    many: tuple[FloatArray, list[int], list[float]], block: int, device: str
) -> None:
    vectors, positions, scores = many
    decisions = group_faces(batch(vectors), ReferenceIndex(512, device), MATCHER, block)
    assert decisions.position.tolist() == positions
    assert decisions.score.tolist() == scores
    assert 0 < decisions.matched.sum() == len(vectors) - decisions.inserted.sum()


def test_a_batch_in_two_calls_equals_one_call() -> None:
    """The caller appends what was inserted; positions go on where they stood."""
    vectors = two_sightings(300, 16, seed=5)
    whole = group_faces(batch(vectors), ReferenceIndex(16), MATCHER)
    index = ReferenceIndex(16)
    parts: list[Decisions] = []
    for part in (vectors[:110], vectors[110:]):
        faces = batch(part)
        parts.append(group_faces(faces, index, MATCHER))
        new = parts[-1].inserted
        order = parts[-1].position[new]
        index.append(part[new], order, [()] * len(order), faces.boxes[new])
    for name in ("position", "inserted", "score"):
        assert np.array_equal(np.concatenate([getattr(p, name) for p in parts]), getattr(whole, name))


def test_the_index_is_not_changed() -> None:
    index = filled(batch(at_angles(0)))
    group_faces(batch(at_angles(90, 180), hashes=[("a",), ("b",)]), index, MATCHER)
    assert len(index) == 1
    assert index.view().find_identical(("a",), [0, 0, 10, 10]) is None


def test_a_face_that_may_not_be_inserted_is_recognised_or_stays_without() -> None:
    decisions = group_faces(batch(at_angles(0, 90, 91, 1), [True, False, True, False]), ReferenceIndex(2), MATCHER)
    assert decisions.position.tolist() == [0, -1, 1, 0]
    assert decisions.inserted.tolist() == [True, False, True, False]
    assert decisions.matched.tolist() == [False, False, False, True]
    assert decisions.score[0] == decisions.score[2] == TOP
    assert math.isnan(decisions.score[1])
    assert 1.0 <= decisions.score[3] < TOP


@pytest.mark.parametrize("block", [1, 2, 8])
def test_of_equal_scores_the_earlier_identity_wins(block: int) -> None:
    pair = np.array([[0.8, 0.6], [0.8, -0.6], [1.0, 0.0]], dtype=np.float32)
    matcher = Matcher(Calibration(), 0.5)  # the pair is 1.2 apart, the third 0.63 from both
    decisions = group_faces(batch(pair), ReferenceIndex(2), matcher, block)
    assert decisions.position.tolist() == [0, 1, 0]
    flipped = group_faces(batch(pair[[2]]), filled(batch(pair[[1, 0]])), matcher, block)
    assert flipped.position.tolist() == [0]


def test_a_tie_between_index_and_batch_goes_to_the_index() -> None:
    pair = np.array([[0.8, 0.6], [0.8, -0.6], [1.0, 0.0]], dtype=np.float32)
    for block in (1, 3):
        decisions = group_faces(batch(pair[1:]), filled(batch(pair[:1])), Matcher(Calibration(), 0.5), block)
        assert decisions.position.tolist() == [1, 0]


def test_at_threshold_0_no_distance_matches_and_at_4_everything() -> None:
    vectors = np.array([[1, 0], [0, 1], [1, 0], [-1, 0]], dtype=np.float32)
    none = group_faces(batch(vectors), ReferenceIndex(2), Matcher(Calibration(), 0.0))
    assert none.position.tolist() == [0, 1, 2, 3], "not even the same vector: it is of another image"
    assert none.score.tolist() == [1.0, 1.0, 1.0, 1.0]
    everything = group_faces(batch(vectors), ReferenceIndex(2), Matcher(Calibration(), 4.0))
    assert everything.position.tolist() == [0, 0, 0, 0]
    assert everything.score.tolist()[2:] == [8000.0, 1.0]


@pytest.mark.parametrize("block", [1, 8])
def test_an_identical_image_stands_before_any_ranking(block: int) -> None:
    """The third face is nearer to the second identity, but its image and box are the first's."""
    faces = batch(at_angles(0, 90, 90), hashes=[("x", "px"), ("y", "py"), ("z", "px")])
    decisions = group_faces(faces, ReferenceIndex(2), Matcher(Calibration(), 0.0), block)
    assert decisions.position.tolist() == [0, 1, 0]
    assert decisions.score.tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("block", [1, 8])
def test_another_face_of_the_same_image_is_not_identical(block: int) -> None:
    faces = batch(at_angles(0, 90), hashes=[("x",), ("x",)], boxes=[[0, 0, 10, 10], [20, 0, 30, 10]])
    assert group_faces(faces, ReferenceIndex(2), MATCHER, block).inserted.tolist() == [True, True]


def test_the_image_of_a_face_that_was_only_matched_is_no_reference() -> None:
    """Face 1 is recognised, not stored: a later face of its image is judged by its vector."""
    faces = batch(at_angles(0, 1, 90), hashes=[("x",), ("y",), ("y",)])
    assert group_faces(faces, ReferenceIndex(2), MATCHER).position.tolist() == [0, 0, 1]


def test_identical_to_several_is_the_earliest_identity() -> None:
    stored = batch(at_angles(0, 90), hashes=[("x",), ("x",)])
    index = ReferenceIndex(2)
    index.append(stored.embeddings, np.array([5, 2]), stored.image_hashes, stored.boxes)
    assert group_faces(batch(at_angles(0), hashes=[("x",)]), index, MATCHER).position.tolist() == [1]


def test_no_faces_no_decisions() -> None:
    decisions = group_faces(batch(np.empty((0, 2))), filled(batch(at_angles(0))), MATCHER)
    assert decisions.position.shape == decisions.inserted.shape == decisions.score.shape == (0,)


def test_bad_batches_are_refused() -> None:
    good = batch(at_angles(0, 90))
    for block in (0, -1, 10**6):
        with pytest.raises(UsageError, match="block"):
            group_faces(good, ReferenceIndex(2), MATCHER, block)
    with pytest.raises(UsageError, match="2 embeddings"):
        group_faces(FaceBatch(good.embeddings, good.insertable[:1], [(), ()], good.boxes), ReferenceIndex(2), MATCHER)
    with pytest.raises(EmbeddingInvalid):
        group_faces(batch(np.array([[0.0, 0.0]])), ReferenceIndex(2), MATCHER)
    with pytest.raises(EmbeddingInvalid):
        group_faces(good, ReferenceIndex(3), MATCHER)
