"""What is said of a threshold: the joins to expect, and the threshold for one in a thousand."""

from __future__ import annotations

import pytest

from pipeline.jobs.expectation import expectation
from pipeline.matching.calibration import Calibration

TABLE = Calibration(fmr=1e-5, thresholds=((1e-6, 0.4), (1e-5, 0.5), (1e-4, 0.6)))


@pytest.mark.parametrize(
    ("threshold", "identities", "said"),
    [
        (0.5, 500, "about 5 wrong joins per 1,000 photos at T = 0.5; with 500 records 1 in 1,000 needs T = 0.43"),
        (0.6, 5400, "about 417 wrong joins per 1,000 photos at T = 0.6; with 5,400 records 1 in 1,000 is at a T"),
        (0.6, 5400, "T below 0.4, beyond the calibration's table"),
        (0.45, 2, "about 0.0063 wrong joins"),
        (0.45, 2, "with 2 records 1 in 1,000 is at a T above 0.6, beyond the calibration's table"),
        (0.3, 500, "less than 0.5 wrong joins per 1,000 photos at T = 0.3; with"),
        (0.7, 500, "more than 49 wrong joins per 1,000 photos at T = 0.7; with"),
        (0.0, 500, "about 0 wrong joins"),
        (4.0, 500, "about 1,000 wrong joins"),
    ],
)
def test_what_is_said(threshold: float, identities: int, said: str) -> None:
    assert said in str(expectation(TABLE, threshold, identities))


def test_nothing_is_known_without_a_table() -> None:
    assert "not known" in str(expectation(Calibration(fmr=1e-5), 0.5, 500))
