"""Bootstrap over people, against drawing people and copying their pairs."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from pipeline.evaluation.statistics.rates import threshold_at_fmr
from pipeline.evaluation.statistics.resampling import Trials, interval, resample_fnmr, resample_rates, resample_share

RESAMPLES = 50
FMRS = (0.01, 0.05, 0.2)


def drawn_people(units: int, seed: int = 0) -> list[list[int]]:
    random = np.random.default_rng(seed)
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
    found = resample_rates(people.trials(closed_form=closed_form), FMRS, RESAMPLES)
    for k, drawn in enumerate(drawn_people(7)):
        genuine, impostor = people.copied(drawn)
        for column, fmr in enumerate(FMRS):
            threshold = threshold_at_fmr(impostor, fmr)
            assert found.thresholds[k, column] == threshold
            assert found.fnmr[k, column] == pytest.approx(np.mean(genuine >= threshold))


def test_the_closest_pairs_are_enough() -> None:
    people = People([5] * 8)
    whole = resample_rates(people.trials(), FMRS[:2], RESAMPLES)
    part = resample_rates(people.trials(kept=200), FMRS[:2], RESAMPLES)
    np.testing.assert_array_equal(whole.thresholds, part.thresholds)
    np.testing.assert_array_equal(whole.fnmr, part.fnmr)


def test_of_few_people_those_who_look_alike_are_often_not_drawn() -> None:
    """The closest pairs are all of the same two people, so a resample without them needs pairs much farther away."""
    people = People([20] * 5)
    apart = np.random.default_rng(2).permutation(5 * 5).reshape(5, 5)
    people.impostor += 10 * apart[people.impostor_units[:, 0], people.impostor_units[:, 1]]
    found = resample_rates(people.trials(), (0.001, 0.01), RESAMPLES)
    for k, drawn in enumerate(drawn_people(5)):
        _, impostor = people.copied(drawn)
        assert found.thresholds[k].tolist() == [threshold_at_fmr(impostor, fmr) for fmr in (0.001, 0.01)]
    assert len(np.unique(found.thresholds[:, 1] // 10)) > 2
    assert resample_rates(people.trials(), (), RESAMPLES).thresholds.shape == (RESAMPLES, 0)


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
    found = resample_fnmr(people.trials(), 0.5, RESAMPLES)
    for k, drawn in enumerate(drawn_people(4)):
        genuine, _ = people.copied(drawn)
        assert found[k] == pytest.approx(np.mean(genuine >= 0.5))


def test_two_people_are_too_few_for_an_interval() -> None:
    # In half of all resamples one person is drawn twice, and there is no impostor pair.
    assert interval(resample_rates(People([30, 30]).trials(), (0.01,), 400).thresholds[:, 0]) is None


def test_interval_is_the_middle_95_percent() -> None:
    assert interval(np.arange(1001.0)) == (25.0, 975.0)
    assert interval(np.array([1.0, np.nan, np.nan])) is None
    assert interval(np.array([1.0, np.inf, 1.0, 1.0])) == (1.0, np.inf)
