"""Statistics of the experiments: error rates, thresholds and accuracies from distances, with intervals.

Distances are squared: L2 between embeddings, or the contract's after calibration, both 0 to 4. A pair counts as one
person if its distance is *below* the threshold. Without a detected face it is infinity: such a pair never matches.
False match rate (FMR) and false non-match rate (FNMR) are those of ISO/IEC 19795-1, with failures to find a face
counted as non-matches.

Intervals are bootstrapped. Pairs that share a person are not independent. So people are drawn, with replacement, and
each pair counts as often as its people were drawn: w for a genuine pair, w v for an impostor pair (the subsets
bootstrap of Bolle, Ratha and Pankanti 2004, "Error analysis of pattern recognition systems: the subsets bootstrap"). If
the names are unknown, the pairs are drawn instead, and the interval is too narrow.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import ROUND_UP, Decimal
from typing import Final, Literal, TypeAlias

import numpy as np

from pipeline.config import CONTRACT_THRESHOLD
from pipeline.matching.calibration import Calibration
from pipeline.types import BoolArray, DoubleArray, FloatArray, IntArray

Interval: TypeAlias = tuple[float, float]
Unit: TypeAlias = Literal["people", "pairs"]

UNCALIBRATED: Final = Calibration()
RULE_OF_3: Final = 3
# A share of a distance: above the rounding error of a conversion to a threshold and back, and far below any effect.
HAIR: Final = 2.0**-40
_CURVE_POINTS: Final = 300
RESAMPLES: Final = 1000
_PERCENTILES: Final = (2.5, 97.5)
_DEFINED: Final = 0.95  # the share of the resamples that must have a value
# The first attempt takes this many times as many of the closest impostor pairs as may match.
_FIRST: Final = 3
_AT_LEAST: Final = 200


def squared_distances(first: FloatArray, second: FloatArray) -> DoubleArray:
    """Returns [n] squared L2 of the rows of two [n, d] arrays of unit vectors; infinity for a row of NaN (no face)."""
    products = np.einsum("nd,nd->n", first.astype(np.float64), second.astype(np.float64))
    return to_distance(products)


def to_distance(products: DoubleArray) -> DoubleArray:
    """Squared L2 of unit vectors from their products; infinity for NaN."""
    distances = np.clip(2 - 2 * products, 0, 4)
    return np.where(np.isnan(distances), np.inf, distances)


def pairwise_distances(
    vectors: FloatArray, others: FloatArray | None = None, calibration: Calibration = UNCALIBRATED
) -> DoubleArray:
    """Returns the squared distances [n, m] float64, 0 to 4, of `vectors` [n, d] and `others` [m, d] (None: the same),
    all of norm 1.

    With a store's calibration they are on the scale of T: two faces below T match. Without one: squared L2.

    >>> pairwise_distances(np.eye(2, dtype=np.float32)).tolist()
    [[0.0, 2.0], [2.0, 0.0]]
    """
    wide = vectors.astype(np.float64)
    squared_l2 = to_distance(wide @ (wide if others is None else others.astype(np.float64)).T)
    distances: DoubleArray = 4.0 * (squared_l2 / 4.0) ** calibration.exponent
    return distances


def decisions_right(distances: DoubleArray, genuine: BoolArray, threshold: float) -> BoolArray:
    """Returns [n] whether each pair is decided correctly. Pairs without a face (distance infinity) never are."""
    right: BoolArray = ((distances < threshold) == genuine) & np.isfinite(distances)
    return right


def best_threshold(distances: DoubleArray, genuine: BoolArray) -> float:
    """The threshold with the highest accuracy on these pairs, in the middle of its widest gap."""
    finite = np.isfinite(distances)
    order = np.argsort(distances[finite], kind="stable")
    values, kinds = distances[finite][order], genuine[finite][order]
    edges = np.concatenate([[0.0], values, [4.0 + 1e-6]])
    # A cut before value k decides that the k below are genuine and the others impostors.
    right = np.concatenate([[0], np.cumsum(kinds)]) + (np.count_nonzero(~kinds) - np.cumsum(np.r_[0, ~kinds]))
    right[1:][np.diff(edges)[1:] == 0] = -1  # no threshold lies between equal distances
    k = int(np.argmax(np.where(right == right.max(), np.diff(edges), -1)))
    middle = float((edges[k] + edges[k + 1]) / 2)
    return middle if middle > edges[k] else float(edges[k + 1])


def folded_accuracy(
    distances: DoubleArray, genuine: BoolArray, fold: IntArray
) -> tuple[list[float], list[float], BoolArray]:
    """Cross-validates the accuracy of the pairs [n] over their folds [n] (0, 1, ...), at least two: each fold uses the
    threshold that is best on all others (Huang et al. 2007).

    Returns the accuracy and the threshold of each fold, and which pairs were decided correctly [n].
    """
    right = np.zeros(len(distances), dtype=np.bool_)
    thresholds = []
    for number in range(int(fold.max()) + 1):
        inside = fold == number
        thresholds.append(best_threshold(distances[~inside], genuine[~inside]))
        right[inside] = decisions_right(distances[inside], genuine[inside], thresholds[-1])
    accuracies = [float(right[fold == number].mean()) for number in range(len(thresholds))]
    return accuracies, thresholds, right


def is_measurable(fmr: float, impostor_pairs: int) -> bool:
    """Whether this many impostor pairs can show this FMR: none of 3 / p events with probability p each is seen in 5 %
    of all experiments (the rule of 3; ISO/IEC 19795-1, annex B)."""
    return impostor_pairs >= pairs_needed(fmr)


def pairs_needed(fmr: float) -> int:
    """How many impostor pairs the rule of 3 needs at this FMR."""
    return math.ceil(RULE_OF_3 / fmr * (1.0 - HAIR))


def lowest_measurable(impostor_pairs: int) -> float:
    """The lowest FMR that so many impostor pairs can show, rounded up to two digits."""
    rate = Decimal(RULE_OF_3) / impostor_pairs
    return float(rate.quantize(Decimal(1).scaleb(rate.adjusted() - 1), ROUND_UP))


def threshold_at_fmr(impostor: DoubleArray, fmr: float) -> float:
    """The largest threshold at which at most the share `fmr` of the impostor pairs matches."""
    allowed = math.floor(fmr * len(impostor) + 1e-9)
    if allowed >= len(impostor):
        return math.inf
    return float(np.partition(impostor, allowed)[allowed])


def error_curve(genuine: DoubleArray, impostor: DoubleArray) -> tuple[list[float], list[float]]:
    """FMR and FNMR just above the k-th closest impostor pair, for all k evenly on a logarithmic scale: the points of
    ROC and DET curves. Equal distances match together, and infinite ones never."""
    ranks = np.unique(np.geomspace(1, len(impostor), _CURVE_POINTS).round().astype(np.int64))
    ordered = np.partition(impostor, ranks - 1)
    cuts = ordered[ranks - 1]
    ranges = zip(ranks, np.append(ranks[1:], len(impostor)), cuts, strict=True)
    equal = [np.count_nonzero(ordered[low:high] == cut) for low, high, cut in ranges]
    # Of ranks with equal distances, the last one counts them all.
    matches = (ranks + equal)[np.searchsorted(cuts, cuts, side="right") - 1]
    matches = np.minimum(matches, np.count_nonzero(np.isfinite(impostor)))
    hits = np.searchsorted(np.sort(genuine), cuts, side="right")
    hits = np.minimum(hits, np.count_nonzero(np.isfinite(genuine)))
    return (matches / len(impostor)).tolist(), (1 - hits / len(genuine)).tolist()


def calibration_exponent(squared_l2: float, threshold: float = CONTRACT_THRESHOLD) -> float:
    """g of the map d = 2 (r / 2)^g that takes the raw distance r = sqrt(squared_l2) to sqrt(threshold)."""
    return math.log(math.sqrt(threshold) / 2) / math.log(math.sqrt(squared_l2) / 2)


@dataclass(frozen=True)
class Trials:
    """Scored pairs and their units (people, or the pairs themselves)."""

    unit: Unit
    units: int  # their number
    genuine: DoubleArray  # [g] squared distances
    genuine_units: IntArray  # [g, 2] the same unit twice
    close: DoubleArray  # [t] the closest impostor pairs, ascending, or all of them
    close_units: IntArray  # [t, 2]; for pairs the same unit twice
    # [units] photos per person, if all pairs of these photos count; None: `close` has all impostor pairs.
    photos_of: IntArray | None = None

    def impostor_weight(self, weights: IntArray) -> float:
        """The total weight of the impostor pairs if unit i was drawn `weights[i]` times."""
        if self.photos_of is None:
            return float(_pair_weights(self.close_units, weights).sum())
        drawn = (weights * self.photos_of).astype(np.float64)
        return float((drawn.sum() ** 2 - (drawn**2).sum()) / 2)


def resample_rates(
    trials: Trials, fmrs: Sequence[float], resamples: int = RESAMPLES
) -> tuple[DoubleArray, DoubleArray]:
    """Returns the thresholds of each resample at `fmrs` [f], and the FNMR at these: [resamples, f] each, NaN for a
    resample without impostor pairs. A resample that needs more impostor pairs than `trials.close` has gets the
    threshold infinity, and an accordingly low FNMR."""
    order = np.argsort(trials.genuine, kind="stable")
    genuine, genuine_units = trials.genuine[order], trials.genuine_units[order]
    thresholds = np.full((resamples, len(fmrs)), np.nan)
    fnmr = np.full((resamples, len(fmrs)), np.nan)
    for k, weights in enumerate(_draws(trials.units, resamples)):
        total = trials.impostor_weight(weights)
        if not total:
            continue
        thresholds[k] = _thresholds(trials, weights, np.asarray(fmrs) * total + 1e-9)
        fnmr[k] = _missed(genuine, _pair_weights(genuine_units, weights), thresholds[k])
    return thresholds, fnmr


def _thresholds(trials: Trials, weights: IntArray, allowed: DoubleArray) -> DoubleArray:
    """Returns [f] the largest threshold at which impostor pairs of at most the weight `allowed` [f] match."""
    highest = float(allowed.max(initial=0.0))
    count = int(_FIRST * highest) + _AT_LEAST
    reached = np.cumsum(_pair_weights(trials.close_units[:count], weights))
    # With few people, the closest pairs may not be drawn at all.
    while count < len(trials.close) and reached[-1] <= highest:
        count *= 2
        reached = np.cumsum(_pair_weights(trials.close_units[:count], weights))
    first_excess = np.searchsorted(reached, allowed, side="right")
    distances = np.append(trials.close[:count], np.inf)  # infinity: beyond all of the closest
    thresholds: DoubleArray = distances[first_excess]
    return thresholds


def interval(values: DoubleArray) -> Interval | None:
    """The 95 % percentile interval over resamples; None if too few have a value."""
    defined = values[~np.isnan(values)]
    if len(defined) < _DEFINED * len(values):
        return None
    low, high = np.percentile(defined, _PERCENTILES, method="inverted_cdf")  # infinity is never averaged
    return float(low), float(high)


def resample_share(events: BoolArray, pair_units: IntArray, units: int, resamples: int = RESAMPLES) -> DoubleArray:
    """Returns [resamples] the share of the pairs [n] with `events`, whose units are [n, 2]; NaN if none is drawn."""
    shares = np.full(resamples, np.nan)
    for k, weights in enumerate(_draws(units, resamples)):
        counted = _pair_weights(pair_units, weights)
        if counted.any():
            shares[k] = counted[events].sum() / counted.sum()
    return shares


def _draws(units: int, resamples: int) -> Iterator[IntArray]:
    """Yields [units] for each resample: how often each unit is drawn."""
    random = np.random.default_rng(0)
    for _ in range(resamples):
        yield np.bincount(random.integers(units, size=units), minlength=units)


def _pair_weights(pair_units: IntArray, weights: IntArray) -> IntArray:
    first, second = pair_units[:, 0], pair_units[:, 1]
    weighed: IntArray = np.where(first == second, weights[first], weights[first] * weights[second])
    return weighed


def _missed(genuine: DoubleArray, weights: IntArray, thresholds: DoubleArray) -> DoubleArray:
    """The weighted share of the ascending `genuine` at or above each threshold; NaN if the weights are zero."""
    reached = np.append(0, np.cumsum(weights))
    if not reached[-1]:
        return np.full(len(thresholds), np.nan)
    below = reached[np.searchsorted(genuine, thresholds, side="left")]
    share: DoubleArray = 1 - below / reached[-1]
    return share
