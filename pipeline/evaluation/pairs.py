"""One to one: do two photos show one person or two?

Error rates are those of ISO/IEC 19795-1: the false match rate (FMR) is the share of impostor pairs that match, the
false non-match rate (FNMR) the share of genuine pairs that do not. Thresholds T are squared contract distances, as in
the contract: a store with the same calibration uses the same T.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from pipeline.config import EVERYBODY, Settings
from pipeline.errors import InputError
from pipeline.evaluation.pair_distances import (
    NamedDistance,
    ScoredList,
    ScoredPairs,
    score_everybody,
    score_list,
    scored_of_list,
)
from pipeline.evaluation.pair_lists import photos_of_people, read_pair_list
from pipeline.evaluation.portraits import embed_photos
from pipeline.evaluation.report import Report, Row, Section, Skipped, Table, histogram, line_plot
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
from pipeline.jobs.store import Store, path_of
from pipeline.matching.calibration import Calibration
from pipeline.texts import path_text
from pipeline.types import BoolArray, Progress

FMRS: Final = (1e-2, 1e-3, 1e-4, 1e-5)
GIVEN: Final = "given"
OTHER_FOLDS: Final = "the other folds"
TRAINING_PAIRS: Final = "the training pairs"
_BINS: Final = 80

_ACCURACY = "The share of the list's pairs that are decided correctly."
_RATES = (
    "FMR, the false match rate: the share of pairs of two people that match. FNMR, the false non-match "
    "rate: the share of pairs of one person that do not. A rate is given only where there are at least three times "
    "as many impostor pairs as its inverse (the rule of 3). A photo without a face matches nothing."
)
_DISTANCES = "Squared contract distances: at or below the threshold T two faces match."
_CLOSEST = "False matches, where they are below the threshold; or photos with a wrong name."
_FARTHEST = "Photos of one person that look least alike to the model; or photos with a wrong name."


@dataclass(frozen=True)
class FnmrAtFmr:
    """FNMR at the largest threshold with an FMR of at most `fmr`; None: fewer impostor pairs than the rule of 3
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
    """Two photos and their squared contract distance; None if one shows no face."""

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
        """FMR as text -> FNMR, None if not measurable."""
        return {f"{rate.fmr:g}": rate.fnmr for rate in self.rates}


def evaluate_pairs(
    scored: ScoredList,
    rated: ScoredPairs,
    calibration: Calibration,
    threshold: float,
    training: ScoredList | None = None,
) -> PairsResult:
    """Measures the accuracy on a list of pairs, and error rates over `rated`: the same pairs, or all pairs of its
    people.

    The accuracy's threshold is the best on `training`; without it, on the other folds if the list has folds, else T =
    `threshold`. Raises InputError if genuine or impostor pairs are missing.
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
        all_pairs=rated.photos_of is not None,
        rates_photos=rated.photos,
        rates_people=rated.people,
        rates_genuine_pairs=len(rated.genuine),
        rates_impostor_pairs=len(rated.impostor),
        resampled=rated.unit,
        rates=rates_of(rated, calibration),
        at_threshold=_rates_at(rated, calibration, threshold),
        nearest_strangers=_named(rated.nearest_strangers, calibration),
        farthest_photos=_named(rated.farthest_photos, calibration),
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
    """The raw squared distance below which faces match at T: by the contract none at 0 and all at 4."""
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
        accuracies, cuts, right = folded_accuracy(scored.distances, scored.same, scored.fold)
        thresholds = [threshold_below(cut, calibration) for cut in cuts]
        threshold, source = float(np.mean(thresholds)), OTHER_FOLDS
        folds, accuracy = tuple(zip(accuracies, thresholds, strict=True)), float(np.mean(accuracies))
        error = float(np.std(accuracies, ddof=1) / math.sqrt(len(accuracies)))  # of the mean, as in LFW's results
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
        "accuracy_interval_95": interval(resample_share(right, scored.pair_units, scored.units)),
        "threshold": threshold,
        "threshold_from": source,
        "folds": folds,
        "standard_error": error,
    }


def rates_of(rated: ScoredPairs, calibration: Calibration) -> tuple[FnmrAtFmr, ...]:
    measurable = [fmr for fmr in FMRS if is_measurable(fmr, len(rated.impostor))]
    _, resampled = resample_rates(rated, measurable)
    rates = {}
    for column, fmr in enumerate(measurable):
        cut = threshold_at_fmr(rated.impostor, fmr)
        fnmr = float(np.mean(rated.genuine >= cut))
        spread = interval(resampled[:, column])
        rates[fmr] = FnmrAtFmr(fmr, pairs_needed(fmr), threshold_below(cut, calibration), cut, fnmr, spread)
    return tuple(rates.get(fmr, FnmrAtFmr(fmr, pairs_needed(fmr))) for fmr in FMRS)


def _rates_at(rated: ScoredPairs, calibration: Calibration, threshold: float) -> RatesAt:
    cut = match_cut(threshold, calibration)
    false_matches = int(np.count_nonzero(rated.impostor < cut))
    missed = rated.genuine >= cut
    return RatesAt(
        threshold=threshold,
        false_matches=false_matches,
        fmr=false_matches / len(rated.impostor),
        fmr_below_95=None if false_matches else RULE_OF_3 / len(rated.impostor),
        false_non_matches=int(missed.sum()),
        fnmr=float(missed.mean()),
        fnmr_interval_95=interval(resample_share(missed, rated.genuine_units, rated.units)),
    )


def _named(pairs: Sequence[NamedDistance], calibration: Calibration) -> tuple[PairDistance, ...]:
    return tuple(
        PairDistance(
            pair.first,
            pair.second,
            contract_threshold(pair.squared_l2, calibration) if math.isfinite(pair.squared_l2) else None,
        )
        for pair in pairs
    )


def described(rate: FnmrAtFmr) -> str:
    """The rate in words, with its interval and threshold."""
    if rate.fnmr is None or rate.threshold is None:
        return f"not measurable (needs {rate.impostor_pairs_needed:,} impostor pairs)"
    return share_text(rate.fnmr, rate.fnmr_interval_95, f"T = {rate.threshold:.4f}")


def share_text(share: float, spread: Interval | None, *remarks: str) -> str:
    """The share with its interval and the remarks in brackets."""
    interval = [] if spread is None else [f"95 %: {spread[0]:.2%} to {spread[1]:.2%}"]
    brackets = "; ".join([*interval, *remarks])
    return f"{share:.2%} ({brackets})" if brackets else f"{share:.2%}"


def _rated_pairs(result: PairsResult) -> str:
    scope = "all pairs of" if result.all_pairs else "the list's pairs of"
    people = "" if result.rates_people is None else f" of {result.rates_people:,} people"
    return (
        f"{scope} {result.rates_photos:,} photos{people}: {result.rates_genuine_pairs:,} genuine and "
        f"{result.rates_impostor_pairs:,} impostor pairs; intervals over resamples of the {result.resampled}"
    )


def _at_threshold(rates: RatesAt) -> str:
    fmr = f"FMR {rates.fmr:.3g}"
    if rates.fmr_below_95 is not None:
        fmr = f"no false match (FMR below {rates.fmr_below_95:.3g})"
    return f"T = {rates.threshold:g}: {fmr}, FNMR {share_text(rates.fnmr, rates.fnmr_interval_95)}"


def _sections(r: PairsResult, rated: ScoredPairs, shared: int, calibration: Calibration) -> list[Section]:
    return [
        Section("Accuracy", list(_accuracy_rows(r, shared))),
        Section("Error rates", _rate_rows(r), _RATES, _curves(r)),
        Section("Distances", text=_DISTANCES, parts=_distances(r, rated, calibration)),
        Section("Closest pairs of two people", (), _CLOSEST, [_pairs_table(r.nearest_strangers)]),
        Section("Farthest pairs of one person", (), _FARTHEST, [_pairs_table(r.farthest_photos)]),
    ]


def _accuracy_rows(r: PairsResult, shared: int) -> Iterator[Row]:
    yield Row("pairs", f"{r.genuine_pairs:,} genuine, {r.impostor_pairs:,} impostor")
    if r.pairs_without_face:
        yield Row("", f"{r.pairs_without_face:,} have a photo without a face, and count as errors")
    accuracy = share_text(r.accuracy, r.accuracy_interval_95)
    if r.standard_error is not None:
        accuracy += f"; standard error over {len(r.folds)} folds {r.standard_error:.2%}"
    yield Row("accuracy", accuracy, _ACCURACY)
    source = {"given": "--threshold or the settings"}.get(r.threshold_from, r.threshold_from)
    yield Row("", f"at T = {r.threshold:.4f}, from {source}")
    if shared:
        yield Row("", f"{shared:,} people are in both lists, which raises the accuracy")
    for number, (share, threshold) in enumerate(r.folds, 1):
        yield Row(f"fold {number}", f"{share:.2%} at T = {threshold:.4f}", detail=True)


def _rate_rows(r: PairsResult) -> list[Row]:
    return [
        Row("rates", _rated_pairs(r)),
        *(Row("FNMR", f"{described(rate)} at FMR {rate.fmr:g}") for rate in r.rates),
        Row("at T", _at_threshold(r.at_threshold)),
    ]


def _curves(result: PairsResult) -> Iterator[str]:
    fmr, fnmr = result.curve_fmr, result.curve_fnmr
    hits = [1 - missed for missed in fnmr]
    yield line_plot("ROC", fmr, hits, xlabel="FMR", xscale="log", ylabel="1 - FNMR", ylim=(None, 1.0))
    yield line_plot("DET", fmr, fnmr, xlabel="FMR", xscale="log", ylabel="FNMR", yscale="log")


def _distances(result: PairsResult, rated: ScoredPairs, calibration: Calibration) -> Iterator[str]:
    edges = np.linspace(0.0, 4.0, _BINS + 1)
    # Counts raw distances between mapped edges: there may be a hundred million distances.
    cuts = np.array([match_cut(float(edge), calibration) for edge in edges[:-1]] + [4.0 + 1e-9])
    counts = {
        name: np.histogram(values[np.isfinite(values)], cuts)[0].astype(np.float64)
        for name, values in (("one person", rated.genuine), ("two people", rated.impostor))
    }
    mark = {f"T = {result.at_threshold.threshold:g}": result.at_threshold.threshold}
    yield histogram("Distances", counts, edges, "squared contract distance", mark)


def _pairs_table(pairs: Sequence[PairDistance]) -> Table:
    rows = [(p.first, p.second, "no face" if p.distance is None else f"{p.distance:.4f}") for p in pairs]
    return Table(("photo", "photo", "squared distance"), rows)


def report_pairs(
    pairs: Path,
    settings: Settings,
    progress: Progress,
    *,
    images: Path | None = None,
    train: Path | None = None,
    all_pairs: bool = False,
    store: Path | Store | None = None,
) -> Report[PairsResult]:
    """Reads the lists, reads or computes the embeddings, and compares the pairs.

    The photos of `pairs` are below `images` (None: its own folder). `train`: the list that sets the threshold.
    `all_pairs`: rates over all pairs of all photos of the people in the list. `store`: has the embeddings. Raises
    SourceMissing, PairsInvalid, UsageError, InputError if nothing can be measured, StoreError, DeviceError, ModelError.
    """
    skipped, skipped_training = Skipped(), Skipped()
    listed = read_pair_list(pairs, images, skipped)
    training = None if train is None else read_pair_list(train, images, skipped_training)
    files, names = dict(listed.files), dict[str, str]()
    if all_pairs:
        files, names = photos_of_people(listed, images)
    files.update({} if training is None else training.files)
    portraits, identity, settings = embed_photos(files, settings, store, "evaluate pairs", progress)
    calibration = Calibration.from_dict(identity.calibration)
    scored = score_list(listed, portraits, skipped)
    trained = None if training is None else score_list(training, portraits, skipped_training)
    progress.start("pairs", None)
    if all_pairs:
        rated = score_everybody(portraits, names, max(FMRS))
        for path, reason in portraits.skipped.items():
            if path in names and path not in listed.files:
                skipped.add(f"a further photo: {reason}", path)
    else:
        rated = scored_of_list(scored)
    with skipped.explaining(), skipped_training.explaining():
        result = evaluate_pairs(scored, rated, calibration, settings.match.threshold, trained)
    shared = set() if training is None else set(training.people.values()) & set(listed.people.values())
    match = settings.match
    figures = {
        **asdict(result),
        "fnmr_at_fmr": result.fnmr_at_fmr,
        "source": path_text(pairs),
        "train": None if train is None else path_text(train),
        "threshold_asked": match.threshold if match.threshold_fmr is None else f"fmr:{match.threshold_fmr:g}",
        "embeddings_from": "the models" if store is None else path_text(path_of(store)),
        "embedder": identity.embedder,
        "weights": identity.weights,
        "weights_sha256": identity.weights_sha256,
        "calibration": identity.calibration,
        "train_people_in_the_list": len(shared),
        "train_skipped": skipped_training.counts,
        **skipped.as_dict(),
    }
    return Report(result, figures, [*_sections(result, rated, len(shared), calibration), skipped.section()])
