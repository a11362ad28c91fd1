"""Calibration of a model's distances, and the false match rates of thresholds."""

from __future__ import annotations

import bisect
import dataclasses
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from pipeline.config import CONTRACT_THRESHOLD, EVERYBODY, MAX_THRESHOLD
from pipeline.errors import BadValue, UnknownKey
from pipeline.types import IntArray

EXPONENTS: Final = (0.25, 4.0)
_TABLES: Final = ("thresholds", "intervals")
_PHOTOS: Final = 1000  # the unit of `wrong_joins`


@dataclass(frozen=True)
class Calibration:
    """The monotone map d = 2 (r / 2)^g from a model's raw L2 distance r to the contract distance; it keeps 0 and 2.

    `exponent` is g, in [0.25, 4]; 1 is no calibration. g maps the raw distance at the false match rate `fmr` on
    `dataset` to sqrt(0.54). `thresholds`: ascending pairs (rate, T) measured on the same data. `intervals`: the 95 %
    interval of each of these T, or empty. Raises BadValue.
    """

    exponent: float = 1.0
    dataset: str = ""
    fmr: float | None = None
    note: str = ""
    thresholds: tuple[tuple[float, float], ...] = ()
    intervals: tuple[tuple[float, float], ...] = ()

    def __post_init__(self) -> None:
        low, high = EXPONENTS
        if not is_number(self.exponent) or not low <= self.exponent <= high:
            raise _bad("exponent", self.exponent, f"must be a number in [{low:g}, {high:g}]")
        if self.fmr is not None and not (is_number(self.fmr) and 0 <= self.fmr <= 1):
            raise _bad("fmr", self.fmr, "must be a rate in [0, 1] or nothing")
        for name in ("dataset", "note"):
            if not isinstance(getattr(self, name), str):
                raise _bad(name, getattr(self, name), "must be text")
        if not _is_table(self.thresholds):
            raise _bad("thresholds", self.thresholds, "must be pairs of a rate in (0, 1) and a T in [0, 4], ascending")
        if not _are_intervals(self.intervals) or len(self.intervals) not in (0, len(self.thresholds)):
            raise _bad("intervals", self.intervals, "must be pairs of two T in [0, 4], ascending, for each threshold")

    @property
    def anchor(self) -> str | None:
        """The meaning of the contract's default T, as user text; None if not measured."""
        if self.fmr is None:
            return None
        measured_on = f" on {self.dataset}" if self.dataset else ""
        return f"T = {CONTRACT_THRESHOLD:g} stands for a false match rate of {self.fmr:g}{measured_on}"

    def threshold_at(self, fmr: float) -> float:
        """The T whose measured false match rate is `fmr`, interpolated linearly in log `fmr` between the rows of
        `thresholds`. Raises BadValue for a rate outside them."""
        rates = [rate for rate, _ in self.thresholds]
        if not rates or not rates[0] <= fmr <= rates[-1]:
            raise _out_of_table(fmr, rates)
        above = bisect.bisect_left(rates, fmr)
        if rates[above] == fmr:
            return self.thresholds[above][1]
        (low, t_low), (high, t_high) = self.thresholds[above - 1], self.thresholds[above]
        return t_low + (t_high - t_low) * math.log(fmr / low) / math.log(high / low)

    def threshold_near(self, fmr: float) -> float | None:
        """`threshold_at` of `fmr` clamped to the rates of `thresholds`; None without a table."""
        if not self.thresholds:
            return None
        lowest, highest = self.thresholds[0][0], self.thresholds[-1][0]
        return self.threshold_at(min(max(fmr, lowest), highest))

    def fmr_at(self, threshold: float) -> tuple[float, float]:
        """The false match rate at T as (lower bound, upper bound): the inverse of `threshold_at`.

        Both are equal within the rows of `thresholds`; outside them, one is the nearest row's rate. The rate is 0 at
        T = 0 and 1 at T = 4.
        """
        if threshold in (0, EVERYBODY):
            return (0.0, 0.0) if threshold == 0 else (1.0, 1.0)
        # The last of several rows with the same T: no lower rate is certain.
        above = bisect.bisect_right([t for _, t in self.thresholds], threshold)
        low, t_low = self.thresholds[above - 1] if above else (0.0, 0.0)
        high, t_high = self.thresholds[above] if above < len(self.thresholds) else (1.0, EVERYBODY)
        if above and threshold == t_low:
            return low, low
        if not 0 < above < len(self.thresholds):
            return low, high
        rate = low * (high / low) ** ((threshold - t_low) / (t_high - t_low))
        return rate, rate

    def as_dict(self) -> dict[str, Any]:
        """JSON values, as stored."""
        return {**dataclasses.asdict(self), **{name: [list(row) for row in getattr(self, name)] for name in _TABLES}}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Calibration:
        """The inverse of `as_dict`. Raises UnknownKey and BadValue."""
        names = [f.name for f in dataclasses.fields(cls)]
        for key in values:
            if key not in names:
                raise UnknownKey(key=key, where="the calibration", hint=f" Known: {', '.join(names)}.")
        tables = {}
        for name in _TABLES:
            rows = values.get(name, ())
            if not isinstance(rows, (list, tuple)) or not all(isinstance(row, (list, tuple)) for row in rows):
                raise _bad(name, rows, "must be a list of pairs")
            tables[name] = tuple(tuple(row) for row in rows)
        return cls(**{**values, **tables})


def wrong_joins(fmr: float, identities: IntArray, faces: IntArray | None = None) -> float:
    """Expected wrong joins per 1,000 photos of one face each: 1,000 times the mean of 1 - (1 - fmr)^n.

    `identities` [k]: values of n, the number of identities that a face was compared with. `faces` [k], not all 0: the
    number of faces with each n (None: one each). An overestimate: every face counts as a new person's.
    """
    return _PHOTOS * float(np.average(1.0 - (1.0 - fmr) ** identities, weights=faces))


def rate_for(joins: float, identities: int) -> float:
    """The inverse of `wrong_joins` for `identities` >= 1: the false match rate."""
    return float(1.0 - (1.0 - joins / _PHOTOS) ** (1.0 / identities))


CHECKED_PEOPLE: Final = 10_000  # among so many planted people `cut_for` still gave the precision; not among 100,000


def cut_for(cuts: Sequence[tuple[float, float]], precision: float, people: int) -> float:
    """The cut T at which clusters of average link have this pairwise precision in (0, 1) among `people` >= 1 people.

    `cuts`: two or more ascending pairs of T and the wrong pairs per right pair among 1,000 people, a ratio that grows
    with their number. Interpolated linearly in its log; beyond the rows, with the slope from the first to the last.
    """
    ratio = math.log((1.0 - precision) / precision * 1000.0 / people)
    thresholds, logs = [t for t, _ in cuts], [math.log(wrong) for _, wrong in cuts]
    slope = (logs[-1] - logs[0]) / (thresholds[-1] - thresholds[0])
    inside = float(np.interp(ratio, logs, thresholds))
    beyond = min(0.0, ratio - logs[0]) + max(0.0, ratio - logs[-1])
    return min(max(inside + beyond / slope, 0.0), MAX_THRESHOLD)


def is_number(value: object) -> bool:
    # math.isfinite raises for too large integers.
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def _are_pairs(rows: tuple[tuple[float, ...], ...]) -> bool:
    return all(len(row) == 2 and all(map(is_number, row)) for row in rows)


def _are_intervals(rows: tuple[tuple[float, ...], ...]) -> bool:
    return _are_pairs(rows) and all(0 <= low <= high <= EVERYBODY for low, high in rows)


def _is_table(rows: tuple[tuple[float, ...], ...]) -> bool:
    """Whether these are pairs (rate, T) with increasing rates and non-decreasing T."""
    if not _are_pairs(rows):
        return False
    rates, thresholds = [row[0] for row in rows], [row[1] for row in rows]
    in_range = all(0 < rate < 1 and 0 <= t <= EVERYBODY for rate, t in rows)
    return in_range and rates == sorted(set(rates)) and thresholds == sorted(thresholds)


def _out_of_table(fmr: float, rates: list[float]) -> BadValue:
    table = f"its rates go from {rates[0]:g} to {rates[-1]:g}" if rates else "it has no table of rates"
    expected = f"the calibration cannot tell its T: {table}. Give T itself, or fit one with `facepipe calibrate`"
    return BadValue(key="match.threshold", where="the settings", value=f"fmr:{fmr:g}", expected=expected)


def _bad(key: str, value: object, expected: str) -> BadValue:
    return BadValue(key=key, where="the calibration", value=repr(value), expected=expected)
