"""The words for a score: strong, likely, weak."""

from __future__ import annotations

import math
from typing import Final

from pipeline.matching.calibration import Calibration
from pipeline.matching.score import similarity_score

STRONG, LIKELY, WEAK = "strong", "likely", "weak"
_FACTOR: Final = 100
_STRONG_SCORE: Final = 1.15  # where no rates tell: at T = 0.54 a distance of three quarters of the threshold's


def strong_score(calibration: Calibration, threshold: float) -> float:
    """The score of the T whose false match rate is a hundredth of that at `threshold`, or the lowest in the table.

    A fixed score without a table, and where `threshold` is not above its lowest row.
    """
    rate, _ = calibration.fmr_at(threshold)
    strong = calibration.threshold_near(rate / _FACTOR)
    if strong is not None and strong < threshold:
        return similarity_score(math.sqrt(strong), threshold)
    return _STRONG_SCORE


def strength(score: float, strong: float) -> str:
    """`strong`: as `strong_score` says. Strong and likely are matches, weak is none."""
    return STRONG if score >= strong else LIKELY if score >= 1 else WEAK
