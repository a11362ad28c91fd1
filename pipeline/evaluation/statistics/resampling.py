"""Bootstrap intervals of verification rates.

Pairs that share a person are not independent. So people are drawn, with replacement, and each pair counts as often as
its people were drawn: w for a genuine pair, w v for an impostor pair (the subsets bootstrap of Bolle, Ratha and
Pankanti 2004, "Error analysis of pattern recognition systems: the subsets bootstrap"). Where the names are unknown, the
pairs are drawn instead, and the interval is too narrow.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

import numpy as np

from pipeline.types import BoolArray, DoubleArray, IntArray

Interval: TypeAlias = tuple[float, float]
Unit: TypeAlias = Literal["people", "pairs"]
RESAMPLES: Final = 1000
_PERCENTILES: Final = (2.5, 97.5)
_DEFINED: Final = 0.95  # the share of the resamples that must have a value
# The first look takes this many times as many of the closest impostor pairs as may match.
_FIRST: Final = 3
_AT_LEAST: Final = 200


@dataclass(frozen=True)
class Trials:
    """Scored pairs and their units (people, or the pairs themselves)."""

    unit: Unit
    units: int  # their number
    genuine: DoubleArray  # [g] squared distances
    genuine_units: IntArray  # [g, 2] the same unit twice
    close: DoubleArray  # [t] the closest impostor pairs, ascending, or all of them
    close_units: IntArray  # [t, 2]; for pairs the same unit twice
    # [units] photos of each person, where all pairs of these photos count; None: `close` are all impostor pairs.
    photos: IntArray | None = None

    def impostor_weight(self, weights: IntArray) -> float:
        """The total weight of the impostor pairs, where unit i was drawn `weights[i]` times."""
        if self.photos is None:
            return float(_pair_weights(self.close_units, weights).sum())
        drawn = (weights * self.photos).astype(np.float64)
        return float((drawn.sum() ** 2 - (drawn**2).sum()) / 2)


@dataclass(frozen=True)
class Resampled:
    """Rates of each resample."""

    thresholds: DoubleArray  # [resamples, f] at each FMR; NaN where a resample has no impostor pair
    fnmr: DoubleArray  # [resamples, f] at these thresholds


def resample_rates(trials: Trials, fmrs: Sequence[float], resamples: int = RESAMPLES, seed: int = 0) -> Resampled:
    """Thresholds and FNMR at `fmrs`. Where a resample needs more impostor pairs than `trials.close` has, its threshold
    is infinity, and its FNMR accordingly low."""
    order = np.argsort(trials.genuine, kind="stable")
    genuine, genuine_units = trials.genuine[order], trials.genuine_units[order]
    thresholds = np.full((resamples, len(fmrs)), np.nan)
    fnmr = np.full((resamples, len(fmrs)), np.nan)
    for k, weights in enumerate(_draws(trials.units, resamples, seed)):
        total = trials.impostor_weight(weights)
        if not total:
            continue
        thresholds[k] = _thresholds(trials, weights, np.asarray(fmrs) * total + 1e-9)
        fnmr[k] = _missed(genuine, _pair_weights(genuine_units, weights), thresholds[k])
    return Resampled(thresholds, fnmr)


def _thresholds(trials: Trials, weights: IntArray, allowed: DoubleArray) -> DoubleArray:
    """[f] the largest threshold at which impostor pairs of no more than the weight `allowed` [f] match."""
    highest = float(allowed.max(initial=0.0))
    count = int(_FIRST * highest) + _AT_LEAST
    reached = np.cumsum(_pair_weights(trials.close_units[:count], weights))
    # With few people, those of the closest pairs may not be drawn at all.
    while count < len(trials.close) and reached[-1] <= highest:
        count *= 2
        reached = np.cumsum(_pair_weights(trials.close_units[:count], weights))
    first_excess = np.searchsorted(reached, allowed, side="right")
    distances = np.append(trials.close[:count], np.inf)  # infinity: beyond all of the closest
    thresholds: DoubleArray = distances[first_excess]
    return thresholds


def resample_fnmr(trials: Trials, threshold: float, resamples: int = RESAMPLES, seed: int = 0) -> DoubleArray:
    """[resamples] FNMR at a fixed threshold."""
    missed = trials.genuine >= threshold
    return _shares(missed, trials.genuine_units, trials.units, resamples, seed)


def resample_share(
    right: BoolArray, pair_units: IntArray, units: int, resamples: int = RESAMPLES, seed: int = 0
) -> DoubleArray:
    """[resamples] the share of the pairs [n] that are `right`, whose units are [n, 2]."""
    return _shares(right, pair_units, units, resamples, seed)


def interval(values: DoubleArray) -> Interval | None:
    """The 95 % percentile interval over resamples; None where too few of them have a value."""
    defined = values[~np.isnan(values)]
    if len(defined) < _DEFINED * len(values):
        return None
    low, high = np.percentile(defined, _PERCENTILES, method="inverted_cdf")  # infinity is never averaged
    return float(low), float(high)


def _shares(events: BoolArray, pair_units: IntArray, units: int, resamples: int, seed: int) -> DoubleArray:
    shares = np.full(resamples, np.nan)
    for k, weights in enumerate(_draws(units, resamples, seed)):
        counted = _pair_weights(pair_units, weights)
        if counted.any():
            shares[k] = counted[events].sum() / counted.sum()
    return shares


def _draws(units: int, resamples: int, seed: int) -> Iterator[IntArray]:
    """[units] for each resample, how often each unit is drawn."""
    random = np.random.default_rng(seed)
    for _ in range(resamples):
        yield np.bincount(random.integers(units, size=units), minlength=units)


def _pair_weights(pair_units: IntArray, weights: IntArray) -> IntArray:
    first, second = pair_units[:, 0], pair_units[:, 1]
    weighed: IntArray = np.where(first == second, weights[first], weights[first] * weights[second])
    return weighed


def _missed(genuine: DoubleArray, weights: IntArray, thresholds: DoubleArray) -> DoubleArray:
    """The weighted share of the ascending `genuine` at or above each threshold; NaN where nothing weighs."""
    reached = np.append(0, np.cumsum(weights))
    if not reached[-1]:
        return np.full(len(thresholds), np.nan)
    below = reached[np.searchsorted(genuine, thresholds, side="left")]
    share: DoubleArray = 1 - below / reached[-1]
    return share
