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
    matched = (decisions.position >= 0) & ~decisions.inserted
    assert 0 < matched.sum() == len(vectors) - decisions.inserted.sum()


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
    assert ((decisions.position >= 0) & ~decisions.inserted).tolist() == [False, False, False, True]
    assert decisions.score[0] == decisions.score[2] == TOP
    assert math.isnan(decisions.score[1])
    assert 1.0 <= decisions.score[3] < TOP


# The first two are 1.2 apart, the third 0.63 from both.
TIED = np.array([[0.8, 0.6], [0.8, -0.6], [1.0, 0.0]], dtype=np.float32)
CROSS = np.array([[1, 0], [0, 1], [1, 0], [-1, 0]], dtype=np.float32)
NONE = batch(np.empty((0, 2)))
# What the index has, the faces that come, the threshold and exponent, and the positions.
CASES: dict[str, tuple[FaceBatch, FaceBatch, tuple[float, float], list[int]]] = {
    "of equal scores the earlier identity wins": (NONE, batch(TIED), (0.5, 1.0), [0, 1, 0]),
    "in the index, too": (batch(TIED[[1, 0]]), batch(TIED[[2]]), (0.5, 1.0), [0]),
    "a tie of index and batch goes to the index": (batch(TIED[:1]), batch(TIED[1:]), (0.5, 1.0), [1, 0]),
    # Not even the same vector: it is of another image.
    "at threshold 0 no distance matches": (NONE, batch(CROSS), (0.0, 1.0), [0, 1, 2, 3]),
    "at threshold 4 every distance matches": (NONE, batch(CROSS), (4.0, 1.0), [0, 0, 0, 0]),
    # The third face is nearer to the second identity, but its image and box are the first's.
    "an identical image comes before any ranking": (
        NONE,
        batch(at_angles(0, 90, 90), hashes=[("x", "px"), ("y", "py"), ("z", "px")]),
        (0.0, 1.281),
        [0, 1, 0],
    ),
    "another face of the same image is not identical": (
        NONE,
        batch(at_angles(0, 90), hashes=[("x",), ("x",)], boxes=[[0, 0, 10, 10], [20, 0, 30, 10]]),
        (0.54, 1.281),
        [0, 1],
    ),
    # The second face is recognised, not stored: a later face of its image is judged by its vector.
    "the image of a face that only matched is no reference": (
        NONE,
        batch(at_angles(0, 1, 90), hashes=[("x",), ("y",), ("y",)]),
        (0.54, 1.281),
        [0, 0, 1],
    ),
    "no faces, no decisions": (batch(at_angles(0)), NONE, (0.54, 1.281), []),
}


@pytest.mark.parametrize("block", [1, 2, 8])
@pytest.mark.parametrize(("stored", "faces", "match", "positions"), CASES.values(), ids=CASES)
def test_decisions(
    stored: FaceBatch, faces: FaceBatch, match: tuple[float, float], positions: list[int], block: int
) -> None:
    threshold, exponent = match
    matcher = Matcher(Calibration(exponent), threshold)
    decisions = group_faces(faces, filled(stored), matcher, block)
    assert decisions.position.tolist() == positions
    assert decisions.score[decisions.inserted].tolist() == [similarity_score(0.0, threshold)] * decisions.inserted.sum()


def test_identical_to_several_is_the_earliest_identity() -> None:
    stored = batch(at_angles(0, 90), hashes=[("x",), ("x",)])
    index = ReferenceIndex(2)
    index.append(stored.embeddings, np.array([5, 2]), stored.image_hashes, stored.boxes)
    assert group_faces(batch(at_angles(0), hashes=[("x",)]), index, MATCHER).position.tolist() == [1]


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
