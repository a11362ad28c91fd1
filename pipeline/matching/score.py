"""The one number that decides: the contract's similarityScore of two faces.

    dot    the float64 sum, in index order, of the products of two stored float32 vectors
    r      = sqrt(max(0, 2 - 2 dot)), the raw L2 distance of two vectors of norm 1, in [0, 2]
    d      = 2 (r / 2)^g, the contract distance; g calibrates the model's own distance scale
    score  = (2 - d) / max(2 - sqrt(T), 2.5e-4); two faces match iff score >= 1.0

Search, grouping and the server use these functions and no others. Every operation is either correctly rounded by
IEEE 754 (sums, products, square roots, quotients) or done for one value at a time (the power), so the score of a pair
does not depend on how many pairs are scored together.
"""

from __future__ import annotations

import bisect
import dataclasses
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, overload

import numpy as np

from pipeline.errors import BadValue, UnknownKey, UsageError
from pipeline.types import DoubleArray, FloatArray

MAX_DISTANCE: Final = 2.0
MAX_THRESHOLD: Final = 4.0  # of the squared distance: there every identity matches
MIN_DENOMINATOR: Final = 2.5e-4
EXPONENTS: Final = (0.25, 4.0)

# Pairs whose float64 products and running sums are in memory at the same time: 16 MB each at 512 dimensions.
_PAIRS: Final = 4096


@dataclass(frozen=True)
class Calibration:
    """The monotone map d = 2 (r / 2)^g from a model's raw L2 distance r to the contract distance; it keeps 0 and 2.

    `exponent` is g, in [0.25, 4]; 1 is no calibration. g maps the raw distance at the false match rate `fmr` on
    `dataset` to sqrt(0.54). `thresholds` are pairs (rate, T), both ascending: the T of other rates on the same data.
    Raises BadValue.
    """

    exponent: float = 1.0
    dataset: str = ""
    fmr: float | None = None
    note: str = ""
    thresholds: tuple[tuple[float, float], ...] = ()

    def __post_init__(self) -> None:
        low, high = EXPONENTS
        if not _is_number(self.exponent) or not low <= self.exponent <= high:
            raise _bad("exponent", self.exponent, f"must be a number in [{low:g}, {high:g}]")
        if self.fmr is not None and not (_is_number(self.fmr) and 0 <= self.fmr <= 1):
            raise _bad("fmr", self.fmr, "must be a rate in [0, 1] or nothing")
        for name in ("dataset", "note"):
            if not isinstance(getattr(self, name), str):
                raise _bad(name, getattr(self, name), "must be text")
        if not _is_table(self.thresholds):
            raise _bad("thresholds", self.thresholds, "must be pairs of a rate in (0, 1) and a T in [0, 4], ascending")

    def threshold_at(self, fmr: float) -> float:
        """The T whose measured false match rate is `fmr`, with T linear in log `fmr` between the rows of `thresholds`.
        Raises BadValue for a rate beyond them.
        """
        rates = [rate for rate, _ in self.thresholds]
        if not rates or not rates[0] <= fmr <= rates[-1]:
            raise _out_of_table(fmr, rates)
        above = bisect.bisect_left(rates, fmr)
        if rates[above] == fmr:
            return self.thresholds[above][1]
        (low, t_low), (high, t_high) = self.thresholds[above - 1], self.thresholds[above]
        return t_low + (t_high - t_low) * math.log(fmr / low) / math.log(high / low)

    def as_dict(self) -> dict[str, Any]:
        """Values for JSON, as the store keeps them."""
        return {**dataclasses.asdict(self), "thresholds": [list(row) for row in self.thresholds]}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Calibration:
        """The inverse of `as_dict`. Raises UnknownKey and BadValue."""
        names = [f.name for f in dataclasses.fields(cls)]
        for key in values:
            if key not in names:
                raise UnknownKey(key=key, where="the calibration", hint=f" Known: {', '.join(names)}.")
        rows = values.get("thresholds", ())
        if not isinstance(rows, (list, tuple)) or not all(isinstance(row, (list, tuple)) for row in rows):
            raise _bad("thresholds", rows, "must be a list of pairs")
        return cls(**{**values, "thresholds": tuple(tuple(row) for row in rows)})


def _is_number(value: object) -> bool:
    # math.isfinite fails for an integer that is too large for a float.
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def _is_table(rows: tuple[tuple[float, ...], ...]) -> bool:
    """Whether these are pairs (rate, T), rates rising and T never falling."""
    if not all(len(row) == 2 and all(map(_is_number, row)) for row in rows):
        return False
    rates, thresholds = [row[0] for row in rows], [row[1] for row in rows]
    in_range = all(0 < rate < 1 and 0 <= t <= MAX_THRESHOLD for rate, t in rows)
    return in_range and rates == sorted(set(rates)) and thresholds == sorted(thresholds)


def _out_of_table(fmr: float, rates: list[float]) -> BadValue:
    table = f"its rates go from {rates[0]:g} to {rates[-1]:g}" if rates else "it has no table of rates"
    expected = f"the calibration cannot tell its T: {table}. Give T itself, or fit one with `facepipe calibrate`"
    return BadValue(key="match.threshold", where="the settings", value=f"fmr:{fmr:g}", expected=expected)


def _bad(key: str, value: object, expected: str) -> BadValue:
    return BadValue(key=key, where="the calibration", value=repr(value), expected=expected)


def check_threshold(threshold: float) -> float:
    """`threshold` (T, of the squared contract distance) as a float. Raises BadValue unless finite in [0, 4]."""
    if not _is_number(threshold) or not 0 <= threshold <= MAX_THRESHOLD:
        raise BadValue(
            key="threshold", where="the match settings", value=repr(threshold), expected="must be a number in [0, 4]"
        )
    return float(threshold)


def exact_dots(a: FloatArray, b: FloatArray) -> DoubleArray:
    """Row-wise dot products of `a` and `b`, both [n, d] float32, d >= 1: [n] float64.

    The product of two float32 is exact in float64; products are added in index order, to the bits of
    `total = 0.0; for x, y in zip(a, b): total += x * y`. Raises UsageError for other shapes or types.
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
        # `accumulate` adds in order by definition; `sum`, `dot` and `einsum` don't.
        total[part] = np.add.accumulate(products, axis=1)[:, -1]
    return total + 0.0  # negative zeros alone add up to -0.0 here and to 0.0 in the loop


@overload
def contract_distance(dots: float, calibration: Calibration) -> float: ...
@overload
def contract_distance(dots: DoubleArray, calibration: Calibration) -> DoubleArray: ...
def contract_distance(dots: float | DoubleArray, calibration: Calibration) -> float | DoubleArray:
    """Contract distances d in [0, 2], float64 of the shape of `dots` (a float for a float)."""
    values = np.asarray(dots, dtype=np.float64)
    half_raw = np.sqrt(np.maximum(2.0 - 2.0 * values, 0.0)) / 2.0
    # numpy's vectorised power takes different code paths for different lengths and strides; math.pow has one.
    powers = [math.pow(x, calibration.exponent) for x in half_raw.ravel().tolist()]
    distances = np.minimum(2.0 * np.array(powers, dtype=np.float64).reshape(values.shape), MAX_DISTANCE)
    return float(distances) if np.ndim(dots) == 0 else distances


def score_denominator(threshold: float) -> float:
    """2 - sqrt(T), at least 2.5e-4 so that the formula works up to T = 4. Raises BadValue."""
    return max(MAX_DISTANCE - math.sqrt(check_threshold(threshold)), MIN_DENOMINATOR)


@overload
def similarity_score(distance: float, threshold: float) -> float: ...
@overload
def similarity_score(distance: DoubleArray, threshold: float) -> DoubleArray: ...
def similarity_score(distance: float | DoubleArray, threshold: float) -> float | DoubleArray:
    """The contract's similarityScore, float64 of the shape of `distance` (a float for a float); NaN stays NaN.

    A face matches iff it is >= 1.0. At T = 4 every identity matches: the score is at least 1, and candidates are ranked
    by d. Raises BadValue for T outside [0, 4].
    """
    scores = (MAX_DISTANCE - np.asarray(distance, dtype=np.float64)) / score_denominator(threshold)
    if threshold == MAX_THRESHOLD:
        scores = np.maximum(scores, 1.0)
    return float(scores) if np.ndim(distance) == 0 else scores
