"""The contract's similarityScore of two faces, which all decisions use.

    dot    the float64 sum, in index order, of the products of two stored float32 vectors
    r      = sqrt(max(0, 2 - 2 dot)), the raw L2 distance of two vectors of norm 1, in [0, 2]
    d      = 2 (r / 2)^g, the contract distance; g calibrates the model's distance scale
    score  = (2 - d) / (2 - sqrt(min(T, 3.99))); two faces match iff score >= 1.0

Operations are correctly rounded (IEEE 754) or, for the power, done one value at a time. So a pair's score does not
depend on how many pairs are scored together.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from pipeline.config import EVERYBODY, MAX_THRESHOLD, THRESHOLD_RULE, is_threshold
from pipeline.errors import BadValue, UsageError
from pipeline.matching.calibration import Calibration, is_number
from pipeline.types import DoubleArray, FloatArray

MAX_DISTANCE: Final = 2.0
STRONG, LIKELY, WEAK = "strong", "likely", "weak"
_FACTOR: Final = 100
_STRONG_SCORE: Final = 1.15  # if no rates are known: at T = 0.54, three quarters of the threshold's distance

# Pairs at a time: float64 products and running sums take 16 MB each at 512 dimensions.
_PAIRS: Final = 4096


def check_threshold(threshold: float) -> float:
    """Returns T (of the squared contract distance) as a float. Raises BadValue unless in [0, 3.99] or 4."""
    if not is_number(threshold) or not is_threshold(threshold):
        raise BadValue(
            key="threshold", where="the match settings", value=repr(threshold), expected=f"must be {THRESHOLD_RULE}"
        )
    return float(threshold)


def exact_dots(a: FloatArray, b: FloatArray) -> DoubleArray:
    """Row-wise dot products of `a` and `b`, both [n, d] float32, d >= 1: [n] float64.

    Products are exact in float64 and added in index order, bit-equal to
    `total = 0.0; for x, y in zip(a, b): total += x * y`. Raises UsageError for other shapes or dtypes.
    """
    if a.dtype != np.float32 or b.dtype != np.float32 or a.shape != b.shape or a.ndim != 2 or a.shape[1] == 0:
        raise UsageError(
            message=f"Dot products need two [n, d] float32 arrays of one shape, not {a.dtype} {list(a.shape)} "
            f"and {b.dtype} {list(b.shape)}."
        )
    total = np.empty(len(a))
    for start in range(0, len(a), _PAIRS):
        part = slice(start, start + _PAIRS)
        products = np.multiply(a[part], b[part], dtype=np.float64)
        # Only `accumulate` guarantees the order, not `sum`, `dot` or `einsum`.
        total[part] = np.add.accumulate(products, axis=1)[:, -1]
    return total + 0.0  # turns -0.0, a sum of negative zeros, into 0.0 as in the loop


def contract_distance(dots: DoubleArray, calibration: Calibration) -> DoubleArray:
    """Contract distances d in [0, 2], float64 of the shape of `dots`."""
    half_raw = np.sqrt(np.maximum(2.0 - 2.0 * np.asarray(dots, dtype=np.float64), 0.0)) / 2.0
    # Not numpy's power: its code path depends on lengths and strides.
    powers = [math.pow(x, calibration.exponent) for x in half_raw.ravel().tolist()]
    return np.minimum(2.0 * np.array(powers, dtype=np.float64).reshape(half_raw.shape), MAX_DISTANCE)


def score_denominator(threshold: float) -> float:
    """2 - sqrt(min(T, 3.99)). Raises BadValue."""
    return MAX_DISTANCE - math.sqrt(min(check_threshold(threshold), MAX_THRESHOLD))


def dot_at(threshold: float, calibration: Calibration) -> float:
    """The dot product whose score is 1.0, to within far less than `error_bound`'s TIES; -1 if everybody matches."""
    if threshold == EVERYBODY:
        return -1.0
    # score = 1 at 2 - d = denominator, solved for the dot product.
    half = (MAX_DISTANCE - score_denominator(threshold)) / 2.0
    return float(1.0 - 2.0 * half ** (2.0 / calibration.exponent))


def similarity_score(distance: DoubleArray, threshold: float) -> DoubleArray:
    """The contract's similarityScore, float64 of the shape of `distance`; NaN stays NaN.

    At T = 4 every identity matches: the score is at least 1, and d ranks candidates. Raises BadValue unless T is in
    [0, 3.99] or 4.
    """
    scores = (MAX_DISTANCE - distance) / score_denominator(threshold)
    return np.maximum(scores, 1.0) if threshold == EVERYBODY else scores


def strong_score(calibration: Calibration, threshold: float) -> float:
    """The score of the T with a hundredth of the false match rate at `threshold`, or the lowest in the table.

    A fixed score without a table, or if `threshold` is not above its lowest row.
    """
    rate, _ = calibration.fmr_at(threshold)
    strong = calibration.threshold_near(rate / _FACTOR)
    if strong is not None and strong < threshold:
        return float(similarity_score(np.array(math.sqrt(strong)), threshold))
    return _STRONG_SCORE


def strength(score: float, strong: float) -> str:
    """`strong`: from `strong_score`. Strong and likely are matches; weak is not."""
    return STRONG if score >= strong else LIKELY if score >= 1 else WEAK
