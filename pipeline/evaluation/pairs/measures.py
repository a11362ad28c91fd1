"""One to one: do two photos show one person or two?

Error rates are those of ISO/IEC 19795-1: the false match rate (FMR) is the share of impostor pairs that match, the
false non-match rate (FNMR) the share of genuine pairs that do not. Thresholds T are squared contract distances, as
in the contract: a store with the same calibration uses the same T.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from pipeline.config import EVERYBODY
from pipeline.errors import InputError
from pipeline.evaluation.pairs.distances import NamedDistance, ScoredList, ScoredPairs
from pipeline.evaluation.statistics import (
    HAIR,
    RULE_OF_3,
    Interval,
    Unit,
    best_threshold,
    decisions_right,
    error_curve,
    folded_accuracy,
    interval,
    is_measurable,
    pairs_needed,
    resample_rates,
    resample_share,
    threshold_at_fmr,
)
from pipeline.matching.calibration import Calibration
from pipeline.types import BoolArray

FMRS: Final = (1e-2, 1e-3, 1e-4, 1e-5)
GIVEN: Final = "given"
OTHER_FOLDS: Final = "the other folds"
TRAINING_PAIRS: Final = "the training pairs"


@dataclass(frozen=True)
class FnmrAtFmr:
    """FNMR at the largest threshold at which the FMR is at most `fmr`; None: fewer impostor pairs than the rule of 3
    needs."""

    fmr: float
    impostor_pairs_needed: int
    threshold: float | None = None  # T
    squared_l2: float | None = None
    fnmr: float | None = None
    fnmr_interval_95: Interval | None = None


@dataclass(frozen=True)
class RatesAt:
    """The errors at one threshold T."""

    threshold: float
    false_matches: int
    fmr: float
    fmr_below_95: float | None  # without a false match: the FMR is below this with 95 % confidence (rule of 3)
    false_non_matches: int
    fnmr: float
    fnmr_interval_95: Interval | None


@dataclass(frozen=True)
class PairDistance:
    """Two photos and their squared contract distance; None where one shows no face."""

    first: str
    second: str
    distance: float | None


@dataclass(frozen=True)
class PairsResult:
    """The result of `evaluate_pairs`."""

    # The pairs of the list
    pairs: int
    genuine_pairs: int
    impostor_pairs: int
    pairs_without_face: int  # counted as errors
    accuracy: float  # with folds: the mean over them
    accuracy_interval_95: Interval | None
    threshold: float  # T; with folds: the mean over them
    threshold_from: str
    folds: tuple[tuple[float, float], ...]  # accuracy and T of each; empty without folds
    standard_error: float | None  # of the mean over the folds
    # The pairs behind the rates: those of the list, or all pairs of its people
    all_pairs: bool
    rates_photos: int
    rates_people: int | None
    rates_genuine_pairs: int
    rates_impostor_pairs: int
    resampled: Unit  # the units of the intervals
    rates: tuple[FnmrAtFmr, ...]
    at_threshold: RatesAt  # at the requested T
    nearest_strangers: tuple[PairDistance, ...]
    farthest_photos: tuple[PairDistance, ...]
    curve_fmr: tuple[float, ...]
    curve_fnmr: tuple[float, ...]

    @property
    def fnmr_at_fmr(self) -> dict[str, float | None]:
        """FMR as text -> FNMR, None where it is not measurable."""
        return {f"{rate.fmr:g}": rate.fnmr for rate in self.rates}


def evaluate_pairs(
    scored: ScoredList,
    rated: ScoredPairs,
    calibration: Calibration,
    threshold: float,
    training: ScoredList | None = None,
) -> PairsResult:
    """Accuracy on a list of pairs, and error rates over `rated`: the same pairs, or all pairs of the list's people.

    The accuracy is measured at the threshold that is best on `training`; without it, on the other folds if the list
    has folds, else at T = `threshold`. Raises InputError where genuine or impostor pairs are missing.
    """
    _require_both_kinds(scored.same, "The pairs")
    if training is not None:
        _require_both_kinds(training.same, "The training pairs")
    accuracy = _accuracy(scored, calibration, threshold, training)
    fmr, fnmr = error_curve(rated.genuine, rated.impostor)
    return PairsResult(
        **accuracy,
        pairs=len(scored.pairs),
        genuine_pairs=int(scored.same.sum()),
        impostor_pairs=int((~scored.same).sum()),
        pairs_without_face=scored.without_face,
        all_pairs=rated.trials.photos is not None,
        rates_photos=rated.photos,
        rates_people=rated.people,
        rates_genuine_pairs=len(rated.genuine),
        rates_impostor_pairs=len(rated.impostor),
        resampled=rated.trials.unit,
        rates=_rates(rated, calibration),
        at_threshold=_rates_at(rated, calibration, threshold),
        nearest_strangers=_distances(rated.nearest_strangers, calibration),
        farthest_photos=_distances(rated.farthest_photos, calibration),
        curve_fmr=tuple(fmr),
        curve_fnmr=tuple(fnmr),
    )


def contract_threshold(squared_l2: float, calibration: Calibration) -> float:
    """The T that equals a raw squared distance, at most 4."""
    mapped: float = 4.0 * (squared_l2 / 4.0) ** calibration.exponent
    return min(mapped, EVERYBODY)


def threshold_below(cut: float, calibration: Calibration) -> float:
    """The T just below the raw squared distance `cut`: faces at exactly T match, so faces at `cut` must not."""
    return contract_threshold(cut * (1.0 - HAIR), calibration)


def match_cut(threshold: float, calibration: Calibration) -> float:
    """The raw squared distance below which faces match at T: none at 0 and all at 4, by the contract."""
    if threshold >= EVERYBODY:
        return math.inf
    raw: float = 4.0 * (threshold / 4.0) ** (1.0 / calibration.exponent)
    return math.nextafter(raw, math.inf) if raw else 0.0  # a distance of exactly T matches


def _require_both_kinds(same: BoolArray, subject: str) -> None:
    if same.all() or not same.any():
        only, missing = ("one person", "two people") if same.all() else ("two people", "one person")
        raise InputError(
            message=f"{subject} that can be used are all of {only}: without pairs of {missing} nothing can be measured."
        )


def _accuracy(
    scored: ScoredList, calibration: Calibration, threshold: float, training: ScoredList | None
) -> dict[str, Any]:
    """The fields of PairsResult on the accuracy and its threshold."""
    folds: tuple[tuple[float, float], ...] = ()
    error = None
    if scored.fold.max() > 0 and training is None:
        folded = folded_accuracy(scored.distances, scored.same, scored.fold)
        thresholds = [threshold_below(cut, calibration) for cut in folded.thresholds]
        threshold, source = float(np.mean(thresholds)), OTHER_FOLDS
        folds, error = tuple(zip(folded.accuracies, thresholds, strict=True)), folded.standard_error
        right, accuracy = folded.right, folded.mean
    else:
        if training is not None:
            cut, source = best_threshold(training.distances, training.same), TRAINING_PAIRS
            threshold = threshold_below(cut, calibration)
        else:
            cut, source = match_cut(threshold, calibration), GIVEN
        right = decisions_right(scored.distances, scored.same, cut)
        accuracy = float(right.mean())
    return {
        "accuracy": accuracy,
        "accuracy_interval_95": interval(resample_share(right, scored.units, scored.unit_count)),
        "threshold": threshold,
        "threshold_from": source,
        "folds": folds,
        "standard_error": error,
    }


def _rates(rated: ScoredPairs, calibration: Calibration) -> tuple[FnmrAtFmr, ...]:
    measurable = [fmr for fmr in FMRS if is_measurable(fmr, len(rated.impostor))]
    resampled = resample_rates(rated.trials, measurable)
    rates = {}
    for column, fmr in enumerate(measurable):
        cut = threshold_at_fmr(rated.impostor, fmr)
        fnmr = float(np.mean(rated.genuine >= cut))
        spread = interval(resampled.fnmr[:, column])
        rates[fmr] = FnmrAtFmr(fmr, pairs_needed(fmr), threshold_below(cut, calibration), cut, fnmr, spread)
    return tuple(rates.get(fmr, FnmrAtFmr(fmr, pairs_needed(fmr))) for fmr in FMRS)


def _rates_at(rated: ScoredPairs, calibration: Calibration, threshold: float) -> RatesAt:
    cut = match_cut(threshold, calibration)
    false_matches = int(np.count_nonzero(rated.impostor < cut))
    missed, trials = rated.genuine >= cut, rated.trials
    return RatesAt(
        threshold=threshold,
        false_matches=false_matches,
        fmr=false_matches / len(rated.impostor),
        fmr_below_95=None if false_matches else RULE_OF_3 / len(rated.impostor),
        false_non_matches=int(missed.sum()),
        fnmr=float(missed.mean()),
        fnmr_interval_95=interval(resample_share(missed, trials.genuine_units, trials.units)),
    )


def _distances(pairs: Sequence[NamedDistance], calibration: Calibration) -> tuple[PairDistance, ...]:
    return tuple(
        PairDistance(
            pair.first,
            pair.second,
            contract_threshold(pair.squared_l2, calibration) if math.isfinite(pair.squared_l2) else None,
        )
        for pair in pairs
    )
