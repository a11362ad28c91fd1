"""From which score on a match is strong."""

from __future__ import annotations

import math

import pytest

from pipeline.matching.calibration import Calibration
from pipeline.matching.score import similarity_score, strength, strong_score

TABLE = Calibration(thresholds=((1e-6, 0.3), (1e-5, 0.4), (1e-4, 0.5), (1e-2, 0.7)))


@pytest.mark.parametrize(
    ("threshold", "strong"),
    [
        (0.7, 0.5),  # a hundredth of 1e-2
        (0.5, 0.3),
        (0.4, 0.3),  # the lowest row is higher than a hundredth
        (0.9, 0.5),  # the rate is 1e-2 or more
        (4.0, 0.7),  # all match: the highest row
    ],
)
def test_strong_is_a_hundredth_of_the_rate(threshold: float, strong: float) -> None:
    score = strong_score(TABLE, threshold)
    assert score == pytest.approx(similarity_score(math.sqrt(strong), threshold))
    assert score > 1


@pytest.mark.parametrize(("calibration", "threshold"), [(Calibration(), 0.54), (TABLE, 0.3), (TABLE, 0.2), (TABLE, 0)])
def test_strong_is_a_fixed_score_where_no_rates_tell(calibration: Calibration, threshold: float) -> None:
    assert strong_score(calibration, threshold) == 1.15


def test_each_score_has_a_word() -> None:
    assert [strength(score, 1.1) for score in (1.1, 1.09, 1.0, 0.99)] == ["strong", "likely", "likely", "weak"]
