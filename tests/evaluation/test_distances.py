"""All pairs in blocks, against all pairs one by one."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from pipeline.errors import InputError
from pipeline.evaluation.pairs.distances import all_distances, closest_impostors

PHOTOS = 40


@pytest.fixture(params=[3, 7, 40, 512], autouse=True)
def block_rows(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.evaluation.pairs.distances._BLOCK_ROWS", request.param)


@pytest.fixture
def photos() -> tuple[np.ndarray, np.ndarray]:
    """Vectors and people; the last photo shows no face."""
    rng = np.random.default_rng(3)
    vectors = rng.standard_normal((PHOTOS, 16)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    vectors[-1] = np.nan
    return vectors, rng.integers(0, 6, PHOTOS)


def naive(vectors: np.ndarray) -> dict[tuple[int, int], float]:
    wide = vectors.astype(np.float64)
    distances = {}
    for a, b in itertools.combinations(range(len(vectors)), 2):
        squared = float(((wide[a] - wide[b]) ** 2).sum())
        distances[a, b] = np.inf if np.isnan(squared) else squared
    return distances


def test_every_pair_once(photos: tuple[np.ndarray, np.ndarray]) -> None:
    vectors, people = photos
    genuine, impostor, rows = all_distances(vectors, people)
    expected = naive(vectors)
    same = {pair: d for pair, d in expected.items() if people[pair[0]] == people[pair[1]]}
    assert {tuple(row) for row in rows.tolist()} == set(same)
    np.testing.assert_allclose(genuine, [same[tuple(row)] for row in rows.tolist()], atol=1e-6)
    others = sorted(d for pair, d in expected.items() if pair not in same)
    np.testing.assert_allclose(np.sort(impostor), others, atol=1e-6)
    assert np.isinf(impostor).any()


@pytest.mark.parametrize("within", [0.0, 1.5, 4.0, np.inf])
def test_the_closest_are_those_of_all(photos: tuple[np.ndarray, np.ndarray], within: float) -> None:
    vectors, people = photos
    _, impostor, _ = all_distances(vectors, people)
    distances, rows = closest_impostors(vectors, people, within)
    np.testing.assert_array_equal(distances, np.sort(impostor[impostor <= within]))
    expected = naive(vectors)
    np.testing.assert_allclose(distances, [expected[tuple(row)] for row in rows.tolist()], atol=1e-6)
    assert (people[rows[:, 0]] != people[rows[:, 1]]).all()


def test_more_pairs_than_memory_holds_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.evaluation.pairs.distances.MAX_PAIRS", 9)
    vectors, people = np.eye(5, dtype=np.float32), np.arange(5)
    with pytest.raises(InputError, match="5 photos make 10 pairs"):
        all_distances(vectors, people)
    assert len(all_distances(vectors[:4], people[:4])[1]) == 6
