"""Error rates against counting by hand and published values; the bootstrap over people against copying their pairs."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from pipeline.evaluation.statistics import (
    Trials,
    best_threshold,
    calibration_exponent,
    decisions_right,
    error_curve,
    folded_accuracy,
    interval,
    is_measurable,
    lowest_measurable,
    pairs_needed,
    resample_rates,
    resample_share,
    squared_distances,
    threshold_at_fmr,
)

RESAMPLES = 50
FMRS = (0.01, 0.05, 0.2)
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


class TestThresholdAtFmr:
    def test_counted_by_hand(self) -> None:
        impostor = np.linspace(0.001, 1, 1000)  # one below 0.002, two below 0.003, ...
        genuine = np.array([0.0005, 0.0015, 0.01, np.inf])
        threshold = threshold_at_fmr(impostor, 1e-3)
        assert np.count_nonzero(impostor < threshold) == 1
        assert np.mean(genuine >= threshold) == 0.5
        assert np.mean(genuine >= threshold_at_fmr(impostor, 1e-4)) == 0.75
        assert np.mean(genuine >= threshold_at_fmr(impostor, 1.0)) == 0.25

    @given(DISTANCES, st.floats(0, 1))
    def test_never_above_the_fmr_asked_for(self, impostor: np.ndarray, fmr: float) -> None:
        assert np.count_nonzero(impostor < threshold_at_fmr(impostor, fmr)) <= fmr * len(impostor) + 1e-6


class TestStatistics:
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
        accuracies, thresholds, right = folded_accuracy(distances, same, fold)
        assert thresholds == [pytest.approx(0.95), pytest.approx(0.65)]
        assert accuracies == [0.75, 0.75]
        assert right.tolist() == [True, True, False, True, True, False, True, True]

    def test_a_fold_may_do_worse_than_the_others(self) -> None:
        distances = np.array([0.1, 1.0, 0.1, 1.0, 3.0, 1.0])
        same = np.array([True, False] * 3)
        assert folded_accuracy(distances, same, np.repeat([0, 1, 2], 2))[0] == [1.0, 1.0, 0.5]


class TestRuleOfThree:
    @pytest.mark.parametrize(("fmr", "needed"), [(1e-2, 300), (1e-3, 3000), (2e-4, 15_000), (1e-5, 300_000)])
    def test_pairs_needed(self, fmr: float, needed: int) -> None:
        assert pairs_needed(fmr) == needed
        assert is_measurable(fmr, needed)
        assert not is_measurable(fmr, needed - 1)

    @pytest.mark.parametrize(("pairs", "rate"), [(1, 3.0), (30, 0.1), (405, 7.5e-3), (1710, 1.8e-3), (299_999, 1.1e-5)])
    def test_the_lowest_rate_has_two_digits(self, pairs: int, rate: float) -> None:
        assert lowest_measurable(pairs) == rate
        assert is_measurable(rate, pairs)

    @given(st.integers(1, 10**9))
    def test_the_lowest_rate_is_measurable_and_hardly_a_lower_one(self, pairs: int) -> None:
        rate = lowest_measurable(pairs)
        assert is_measurable(rate, pairs)
        assert not is_measurable(rate / 1.11, pairs)

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


@given(DISTANCES, st.floats(0, 1))
def test_no_larger_threshold_would_do(impostor: np.ndarray, fmr: float) -> None:
    threshold = threshold_at_fmr(impostor, fmr)
    if math.isfinite(threshold):
        assert np.count_nonzero(impostor <= threshold) > math.floor(fmr * len(impostor) + 1e-9)


def drawn_people(units: int) -> list[list[int]]:
    random = np.random.default_rng(0)
    return [random.integers(units, size=units).tolist() for _ in range(RESAMPLES)]


class People:
    """Some photos of some people at random distances, and all pairs of them."""

    def __init__(self, counts: list[int], seed: int = 1) -> None:
        self.rng = np.random.default_rng(seed)
        self.counts = np.array(counts)
        owner = np.repeat(np.arange(len(counts)), counts)
        pairs = np.array(list(itertools.combinations(owner.tolist(), 2)))
        same = pairs[:, 0] == pairs[:, 1]
        self.genuine_units, self.impostor_units = pairs[same], pairs[~same]
        self.genuine = self.rng.random(int(same.sum()))
        self.impostor = 0.4 + self.rng.random(int((~same).sum()))

    def trials(self, kept: int | None = None, *, closed_form: bool = True) -> Trials:
        order = np.argsort(self.impostor)[:kept]
        return Trials(
            "people",
            len(self.counts),
            self.genuine,
            self.genuine_units,
            self.impostor[order],
            self.impostor_units[order],
            self.counts if closed_form else None,
        )

    def copied(self, drawn: list[int]) -> tuple[np.ndarray, np.ndarray]:
        """The distances of a resample, each pair as often as it is drawn."""
        times = np.bincount(drawn, minlength=len(self.counts))
        genuine = np.repeat(self.genuine, times[self.genuine_units[:, 0]])
        weights = times[self.impostor_units[:, 0]] * times[self.impostor_units[:, 1]]
        return genuine, np.repeat(self.impostor, weights)


@pytest.mark.parametrize("closed_form", [True, False])
def test_equals_copying_the_pairs_of_who_was_drawn(closed_form: bool) -> None:
    people = People([4, 3, 5, 2, 6, 1, 3])
    thresholds, fnmr = resample_rates(people.trials(closed_form=closed_form), FMRS, RESAMPLES)
    for k, drawn in enumerate(drawn_people(7)):
        genuine, impostor = people.copied(drawn)
        for column, fmr in enumerate(FMRS):
            threshold = threshold_at_fmr(impostor, fmr)
            assert thresholds[k, column] == threshold
            assert fnmr[k, column] == pytest.approx(np.mean(genuine >= threshold))


def test_the_closest_pairs_are_enough() -> None:
    people = People([5] * 8)
    whole = resample_rates(people.trials(), FMRS[:2], RESAMPLES)
    part = resample_rates(people.trials(kept=200), FMRS[:2], RESAMPLES)
    np.testing.assert_array_equal(whole, part)


def test_of_few_people_those_who_look_alike_are_often_not_drawn() -> None:
    """The closest pairs are all of the same two people, so a resample without them needs pairs much farther away."""
    people = People([20] * 5)
    apart = np.random.default_rng(2).permutation(5 * 5).reshape(5, 5)
    people.impostor += 10 * apart[people.impostor_units[:, 0], people.impostor_units[:, 1]]
    found, _ = resample_rates(people.trials(), (0.001, 0.01), RESAMPLES)
    for k, drawn in enumerate(drawn_people(5)):
        _, impostor = people.copied(drawn)
        assert found[k].tolist() == [threshold_at_fmr(impostor, fmr) for fmr in (0.001, 0.01)]
    assert len(np.unique(found[:, 1] // 10)) > 2
    assert resample_rates(people.trials(), (), RESAMPLES)[0].shape == (RESAMPLES, 0)


def test_pairs_that_share_people_tell_less_than_as_many_others() -> None:
    """Ten people of twenty photos each, of whom every second is never recognised: only ten trials, after all."""
    units = np.repeat(np.arange(10), 190)
    missed = units % 2 == 0
    by_people = interval(resample_share(missed, np.stack([units, units], 1), 10, 400))
    own = np.arange(len(units))
    by_pairs = interval(resample_share(missed, np.stack([own, own], 1), len(own), 400))
    assert by_people is not None
    assert by_pairs is not None
    assert by_people[1] - by_people[0] == pytest.approx(2 * 1.96 * math.sqrt(0.25 / 10), rel=0.25)
    assert by_pairs[1] - by_pairs[0] == pytest.approx(2 * 1.96 * math.sqrt(0.25 / 1900), rel=0.25)


def test_fnmr_at_a_fixed_threshold() -> None:
    people = People([4, 3, 5, 2])
    trials = people.trials()
    found = resample_share(trials.genuine >= 0.5, trials.genuine_units, trials.units, RESAMPLES)
    for k, drawn in enumerate(drawn_people(4)):
        genuine, _ = people.copied(drawn)
        assert found[k] == pytest.approx(np.mean(genuine >= 0.5))


def test_two_people_are_too_few_for_an_interval() -> None:
    # In half of all resamples one person is drawn twice, and there is no impostor pair.
    assert interval(resample_rates(People([30, 30]).trials(), (0.01,), 400)[0][:, 0]) is None


def test_interval_is_the_middle_95_percent() -> None:
    assert interval(np.arange(1001.0)) == (25.0, 975.0)
    assert interval(np.array([1.0, np.nan, np.nan])) is None
    assert interval(np.array([1.0, np.inf, 1.0, 1.0])) == (1.0, np.inf)
