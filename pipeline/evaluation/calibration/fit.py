"""Calibration: the map d = 2 (r / 2)^g of a model's raw L2 distance to the contract distance, from labelled photos.

g maps the raw distance at the chosen false match rate to sqrt(0.54), the contract's default threshold; a small table
has the T of other rates. The fit needs pairs of different people only, and many of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from pipeline.errors import InputError, TooLittleData
from pipeline.evaluation.pairs.distances import NamedDistance, ScoredPairs
from pipeline.evaluation.pairs.measures import threshold_below
from pipeline.evaluation.statistics.rates import (
    CONTRACT_THRESHOLD,
    HAIR,
    calibration_exponent,
    is_measurable,
    pairs_needed,
    threshold_at_fmr,
)
from pipeline.evaluation.statistics.resampling import Interval, interval, resample_rates
from pipeline.matching.calibration import EXPONENTS, Calibration
from pipeline.types import DoubleArray

# The rows of the table; T is interpolated between them.
TABLE_FMRS: Final = (1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2)


@dataclass(frozen=True)
class CalibrationFit:
    """The fit and its data."""

    exponent: float
    exponent_interval_95: Interval
    fmr: float
    squared_l2: float  # raw, at this FMR
    squared_l2_interval_95: Interval
    thresholds: tuple[tuple[float, float], ...]  # (FMR, T)
    resampled: str
    photos: int
    people: int | None
    impostor_pairs: int
    genuine_pairs: int
    fnmr: float | None  # at this FMR; None: no genuine pairs
    nearest_strangers: tuple[NamedDistance, ...]  # wrong labels are likely among them

    def calibration(self, dataset: str, note: str) -> Calibration:
        """As a store keeps it."""
        return Calibration(self.exponent, dataset, self.fmr, note, self.thresholds)


def fit_calibration(scored: ScoredPairs, fmr: float) -> CalibrationFit:
    """Fits the exponent at `fmr`, and the table for the rates that the data allow.

    Both photos of each pair in `scored` must show a face. Raises TooLittleData where the rule of 3 asks for more
    impostor pairs or there are too few people for an interval, and InputError where no exponent is usable.
    """
    _require_enough(scored, fmr)
    resampled = resample_rates(scored.trials, [fmr]).thresholds[:, 0]
    squared_l2 = threshold_at_fmr(scored.impostor, fmr)
    exponent = _exponent(squared_l2, fmr)
    spread = interval(_exponents(resampled))
    raw_spread = interval(resampled)
    if spread is None or raw_spread is None:
        few = f"{scored.trials.units} {scored.trials.unit}"
        detail = f"too many resamples of the {few} have hardly an impostor pair"
        raise TooLittleData(fmr=f"{fmr:g}", detail=detail)
    calibration = Calibration(exponent)
    return CalibrationFit(
        exponent=exponent,
        exponent_interval_95=spread,
        fmr=fmr,
        squared_l2=squared_l2,
        squared_l2_interval_95=raw_spread,
        thresholds=_table(scored.impostor, calibration, fmr),
        resampled=scored.trials.unit,
        photos=scored.photos,
        people=scored.people,
        impostor_pairs=len(scored.impostor),
        genuine_pairs=len(scored.genuine),
        fnmr=float(np.mean(scored.genuine >= squared_l2)) if len(scored.genuine) else None,
        nearest_strangers=scored.nearest_strangers,
    )


def _require_enough(scored: ScoredPairs, fmr: float) -> None:
    if is_measurable(fmr, len(scored.impostor)):
        return
    detail = f"the rule of 3 asks for {pairs_needed(fmr):,} pairs of different people, and there are "
    raise TooLittleData(fmr=f"{fmr:g}", detail=f"{detail}{len(scored.impostor):,}")


def _exponent(squared_l2: float, fmr: float) -> float:
    """Raises InputError where there is none, or a store would refuse it."""
    exponent = float(_exponents(np.array([squared_l2]))[0])
    if not EXPONENTS[0] <= exponent <= EXPONENTS[1]:
        raise InputError(
            message=f"The pairs of different people at a false match rate of {fmr:g} lie at a squared distance of "
            f"{squared_l2:.4g}, and no exponent in [{EXPONENTS[0]:g}, {EXPONENTS[1]:g}] maps that to "
            f"{CONTRACT_THRESHOLD:g}. Photos of one person under two names would do that."
        )
    return exponent


def _exponents(squared_l2: DoubleArray) -> DoubleArray:
    """For each raw squared distance, the exponent with which nearer faces match at the contract's T, and faces at
    exactly this distance do not; NaN where there is none."""
    usable = (squared_l2 > 0) & (squared_l2 < 4)
    below = (squared_l2 * (1.0 - HAIR)).tolist()
    return np.array(
        [calibration_exponent(cut) if valid else math.nan for cut, valid in zip(below, usable.tolist(), strict=True)]
    )


def _table(impostor: DoubleArray, calibration: Calibration, fmr: float) -> tuple[tuple[float, float], ...]:
    rates = sorted({rate for rate in TABLE_FMRS if is_measurable(rate, len(impostor))} | {fmr})
    return tuple((rate, threshold_below(threshold_at_fmr(impostor, rate), calibration)) for rate in rates)
