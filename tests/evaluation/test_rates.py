"""The arithmetic of verification experiments, against counting by hand and against published values."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from pipeline.evaluation.statistics.rates import (
    best_threshold,
    bootstrap_interval,
    calibrated,
    calibration_exponent,
    decisions_right,
    error_curve,
    error_rates,
    folded_accuracy,
    is_measurable,
    mcnemar_exact,
    pairs_needed,
    squared_distances,
    threshold_at_fmr,
)

DISTANCES = hnp.arrays(np.float64, st.integers(1, 40), elements=st.floats(0, 4) | st.sampled_from([0.5, 1.0, np.inf]))


class TestDistances:
    def test_equal_the_definition(self) -> None:
        rng = np.random.default_rng(5)
        vectors = rng.normal(size=(6, 16)).astype(np.float32)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        expected = ((vectors[:3] - vectors[3:]).astype(np.float64) ** 2).sum(axis=1)
        np.testing.assert_allclose(squared_distances(vectors[:3], vectors[3:]), expected, atol=1e-6)

    def test_no_face_is_infinitely_far(self) -> None:
        vectors = np.array([[1, 0], [np.nan, np.nan]], dtype=np.float32)
        assert squared_distances(vectors[:1], vectors[1:]).tolist() == [np.inf]


class TestThreshold:
    @given(DISTANCES, st.integers(0, 99))
    def test_no_other_threshold_is_better(self, distances: np.ndarray, seed: int) -> None:
        genuine = np.random.default_rng(seed).random(len(distances)) < 0.5
        best = decisions_right(distances, genuine, best_threshold(distances, genuine)).mean()
        finite = np.unique(distances[np.isfinite(distances)])
        for candidate in [0.0, *finite, *(finite + 1e-9), 4.1]:
            assert decisions_right(distances, genuine, float(candidate)).mean() <= best + 1e-12

    def test_middle_of_the_gap(self) -> None:
        distances = np.array([0.2, 0.4, 1.0, 1.2])
        assert best_threshold(distances, np.array([True, True, False, False])) == pytest.approx(0.7)

    def test_no_face_is_wrong_for_both_kinds(self) -> None:
        right = decisions_right(np.array([np.inf, np.inf, 0.1, 1.0]), np.array([True, False, True, False]), 0.5)
        assert right.tolist() == [False, False, True, True]


class TestErrorRates:
    def test_counted_by_hand(self) -> None:
        impostor = np.linspace(0.001, 1, 1000)  # one below 0.002, two below 0.003, ...
        genuine = np.array([0.0005, 0.0015, 0.01, np.inf])
        rates = error_rates(genuine, impostor, 1e-3)
        assert np.count_nonzero(impostor < rates.threshold) == 1
        assert rates.fnmr == 0.5
        assert error_rates(genuine, impostor, 1e-4).fnmr == 0.75
        assert error_rates(genuine, impostor, 1.0).fnmr == 0.25

    @given(DISTANCES, DISTANCES, st.floats(0, 1))
    def test_never_above_the_fmr_asked_for(self, genuine: np.ndarray, impostor: np.ndarray, fmr: float) -> None:
        rates = error_rates(genuine, impostor, fmr)
        assert np.count_nonzero(impostor < rates.threshold) <= fmr * len(impostor) + 1e-6
        assert 0 <= rates.fnmr <= 1


class TestStatistics:
    def test_interval_of_a_binomial(self) -> None:
        right = np.arange(1000) >= 16  # 98.4 %
        low, high = bootstrap_interval(right)
        half = 1.96 * math.sqrt(0.984 * 0.016 / 1000)
        assert low == pytest.approx(0.984 - half, abs=0.002)
        assert high == pytest.approx(0.984 + half, abs=0.002)

    @pytest.mark.parametrize(("b", "c", "p"), [(0, 0, 1.0), (5, 5, 1.0), (1, 9, 22 / 1024), (0, 6, 2 / 64)])
    def test_mcnemar(self, b: int, c: int, p: float) -> None:
        first = np.array([True] * b + [False] * c + [True, False])
        second = np.array([False] * b + [True] * c + [True, False])
        assert mcnemar_exact(first, second) == (b, c, pytest.approx(p))

    def test_calibration_of_the_published_set_up(self) -> None:
        g = calibration_exponent(0.838)
        assert g == pytest.approx(1.281, abs=5e-4)
        assert 2 * (math.sqrt(0.838) / 2) ** g == pytest.approx(math.sqrt(0.54))


class TestFolds:
    def test_each_fold_is_decided_by_the_others(self) -> None:
        # Alone, either fold would be separated at another threshold; by the other's, one pair of each goes wrong.
        distances = np.array([0.2, 0.6, 0.7, 1.2, 0.2, 0.9, 1.0, 1.2])
        same = np.array([True, True, False, False] * 2)
        fold = np.repeat([0, 1], 4)
        found = folded_accuracy(distances, same, fold)
        assert found.thresholds == (pytest.approx(0.95), pytest.approx(0.65))
        assert found.accuracies == (0.75, 0.75)
        assert found.right.tolist() == [True, True, False, True, True, False, True, True]
        assert (found.mean, found.standard_error) == (0.75, 0.0)

    def test_standard_error_is_that_of_the_mean(self) -> None:
        distances = np.array([0.1, 1.0, 0.1, 1.0, 3.0, 1.0])
        same = np.array([True, False] * 3)
        found = folded_accuracy(distances, same, np.repeat([0, 1, 2], 2))
        assert found.accuracies == (1.0, 1.0, 0.5)
        assert found.standard_error == pytest.approx(np.std([1, 1, 0.5], ddof=1) / math.sqrt(3))


class TestRuleOfThree:
    @pytest.mark.parametrize(("fmr", "needed"), [(1e-2, 300), (1e-3, 3000), (2e-4, 15_000), (1e-5, 300_000)])
    def test_pairs_needed(self, fmr: float, needed: int) -> None:
        assert pairs_needed(fmr) == needed
        assert is_measurable(fmr, needed)
        assert not is_measurable(fmr, needed - 1)

    def test_so_many_pairs_seldom_show_nothing(self) -> None:
        assert (1 - 1e-3) ** pairs_needed(1e-3) == pytest.approx(0.05, rel=0.01)


class TestCurve:
    @given(DISTANCES, DISTANCES)
    def test_each_point_is_what_counting_gives(self, genuine: np.ndarray, impostor: np.ndarray) -> None:
        points = list(zip(*error_curve(genuine, impostor), strict=True))
        finite = np.unique(impostor[np.isfinite(impostor)])
        counted = {(np.mean(impostor <= cut), np.mean(genuine > cut)) for cut in finite}
        if np.isinf(impostor).any():  # however high the threshold, a photo without a face matches nobody
            counted.add((np.mean(np.isfinite(impostor)), np.mean(np.isinf(genuine))))
        # Of so few impostor pairs all are points of the curve; equal distances are one point.
        assert {(round(x, 12), round(y, 12)) for x, y in points} == {(round(x, 12), round(y, 12)) for x, y in counted}
        assert [rate for rate, _ in points] == sorted(rate for rate, _ in points)

    @given(DISTANCES, st.integers(0, 2**31))
    def test_never_rises(self, impostor: np.ndarray, seed: int) -> None:
        genuine = np.random.default_rng(seed).random(30) * 4
        _, fnmr = error_curve(genuine, impostor)
        assert all(a >= b for a, b in itertools.pairwise(fnmr))


@given(st.floats(0.25, 4), st.lists(st.floats(0, 4), min_size=2, max_size=20))
def test_the_calibrated_distance_keeps_the_order_and_the_ends(exponent: float, raw: list[float]) -> None:
    mapped = calibrated(np.array([0.0, *sorted(raw), 4.0, np.inf]), exponent)
    assert (np.diff(mapped[:-1]) >= 0).all()
    assert mapped[[0, -2, -1]].tolist() == [0, 4, np.inf]


@given(DISTANCES, st.floats(0, 1))
def test_no_larger_threshold_would_do(impostor: np.ndarray, fmr: float) -> None:
    threshold = threshold_at_fmr(impostor, fmr)
    if math.isfinite(threshold):
        assert np.count_nonzero(impostor <= threshold) > math.floor(fmr * len(impostor) + 1e-9)
