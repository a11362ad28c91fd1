"""The false match rate at a T, and the wrong joins that it lets expect."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.matching.calibration import Calibration, rate_for, wrong_joins

TABLE = Calibration(thresholds=((1e-5, 0.3), (1e-4, 0.4), (2e-4, 0.4), (1e-2, 0.8)))
RATES = st.floats(1e-6, 1)


@given(RATES, st.lists(st.tuples(st.integers(0, 400), st.integers(1, 5)), min_size=1, max_size=5))
def test_wrong_joins_are_the_chances_of_each_face_one_by_one(fmr: float, compared: list[tuple[int, int]]) -> None:
    chances = []
    for identities, faces in compared:
        nobody = 1.0
        for _ in range(identities):
            nobody *= 1 - fmr
        chances += [1 - nobody] * faces
    identities, faces = np.array(compared).T
    assert wrong_joins(fmr, identities, faces) == pytest.approx(1000 * sum(chances) / len(chances), rel=1e-7)


@given(st.floats(0.01, 999), st.integers(1, 10**7))
def test_the_rate_for_so_many_joins_lets_expect_so_many(joins: float, identities: int) -> None:
    assert wrong_joins(rate_for(joins, identities), np.array([identities])) == pytest.approx(joins, rel=1e-3)


@given(st.floats(1e-5, 1e-2))
def test_the_rate_at_a_threshold_is_the_inverse(fmr: float) -> None:
    of_two_rates = 1e-4 <= fmr <= 2e-4  # which have one T
    assert TABLE.fmr_at(TABLE.threshold_at(fmr)) == pytest.approx((2e-4 if of_two_rates else fmr,) * 2)


@pytest.mark.parametrize(
    ("threshold", "bounds"),
    [
        (0.0, (0, 0)),
        (0.29, (0, 1e-5)),
        (0.3, (1e-5, 1e-5)),
        (0.4, (2e-4, 2e-4)),  # the higher of two rates
        (0.8, (1e-2, 1e-2)),
        (0.81, (1e-2, 1)),
        (4.0, (1, 1)),
    ],
)
def test_beyond_the_table_the_rate_has_bounds(threshold: float, bounds: tuple[float, float]) -> None:
    assert TABLE.fmr_at(threshold) == bounds


def test_without_a_table_nothing_is_known_of_the_rate() -> None:
    assert Calibration().fmr_at(0.54) == (0, 1)
