"""`facepipe evaluate pairs`: verifies the pairs of a list by their embeddings, as a report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import numpy as np

from pipeline.config import Settings
from pipeline.evaluation.pairs.distances import ScoredPairs, score_everybody, score_list, scored_of_list
from pipeline.evaluation.pairs.lists import photos_of_people, read_pair_list
from pipeline.evaluation.pairs.measures import (
    FMRS,
    FnmrAtFmr,
    PairDistance,
    PairsResult,
    RatesAt,
    evaluate_pairs,
    match_cut,
)
from pipeline.evaluation.photos.portraits import embed_photos
from pipeline.evaluation.pictures import histogram, line_plot
from pipeline.evaluation.report import Report, Skipped
from pipeline.evaluation.statistics import Interval
from pipeline.extraction.images.files import shown
from pipeline.matching.calibration import Calibration
from pipeline.report.page import Row, Section, Table
from pipeline.types import Progress

_BINS: Final = 80
_HIGHEST_FMR: Final = max(FMRS)


@dataclass(frozen=True)
class PairsRequest:
    """The list `pairs`, whose photos lie below `images` (None: below its own folder). `train`: the list that
    sets the threshold. `all_pairs`: rates over all pairs of all photos of the people in the list. The embeddings are
    those of `store`, or computed now."""

    pairs: Path
    settings: Settings
    images: Path | None = None
    train: Path | None = None
    all_pairs: bool = False
    store: Path | None = None


_ACCURACY = "The share of the list's pairs that are decided correctly."
_RATES = (
    "FMR, the false match rate: the share of pairs of two people that match. FNMR, the false non-match "
    "rate: the share of pairs of one person that do not. A rate is given only where there are at least three times "
    "as many impostor pairs as its inverse (the rule of 3). A photo without a face matches nothing."
)
_DISTANCES = "Squared contract distances: at or below the threshold T two faces match."
_CLOSEST = "False matches, where they are below the threshold; or photos with a wrong name."
_FARTHEST = "Photos of one person that look least alike to the model; or photos with a wrong name."


def described(rate: FnmrAtFmr) -> str:
    """The rate in words, with its interval and threshold."""
    if rate.fnmr is None or rate.threshold is None:
        return f"not measurable (needs {rate.impostor_pairs_needed:,} impostor pairs)"
    return _share(rate.fnmr, rate.fnmr_interval_95, f"T = {rate.threshold:.4f}")


def _share(share: float, spread: Interval | None, *remarks: str) -> str:
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
    return f"T = {rates.threshold:g}: {fmr}, FNMR {_share(rates.fnmr, rates.fnmr_interval_95)}"


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
    accuracy = _share(r.accuracy, r.accuracy_interval_95)
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


def report_pairs(request: PairsRequest, progress: Progress) -> Report[PairsResult]:
    """Reads the lists, reads or computes the embeddings, and compares the pairs.

    Raises SourceMissing, PairsInvalid, UsageError, InputError where nothing can be measured, StoreError, DeviceError,
    ModelError.
    """
    skipped, skipped_training = Skipped(), Skipped()
    listed = read_pair_list(request.pairs, request.images, skipped)
    training = None if request.train is None else read_pair_list(request.train, request.images, skipped_training)
    files, names = dict(listed.files), dict[str, str]()
    if request.all_pairs:
        files, names = photos_of_people(listed, request.images)
    files.update({} if training is None else training.files)
    embedded = embed_photos(files, request.settings, request.store, "evaluate pairs", progress)
    calibration = Calibration.from_dict(embedded.identity.calibration)
    scored = score_list(listed, embedded.portraits, skipped)
    trained = None if training is None else score_list(training, embedded.portraits, skipped_training)
    progress.start("pairs", None)
    if request.all_pairs:
        rated = score_everybody(embedded.portraits, names, _HIGHEST_FMR)
        for path, reason in embedded.portraits.skipped.items():
            if path in names and path not in listed.files:
                skipped.add(f"a further photo: {reason}", path)
    else:
        rated = scored_of_list(scored, bool(listed.people))
    with skipped.explaining(), skipped_training.explaining():
        result = evaluate_pairs(scored, rated, calibration, embedded.settings.match.threshold, trained)
    shared = set() if training is None else set(training.people.values()) & set(listed.people.values())
    match, identity = embedded.settings.match, embedded.identity
    figures = {
        **asdict(result),
        "fnmr_at_fmr": result.fnmr_at_fmr,
        "source": shown(request.pairs),
        "train": None if request.train is None else shown(request.train),
        "threshold_asked": match.threshold if match.threshold_fmr is None else f"fmr:{match.threshold_fmr:g}",
        "embeddings_from": "the models" if request.store is None else shown(request.store),
        "embedder": identity.embedder,
        "weights": identity.weights,
        "weights_sha256": identity.weights_sha256,
        "calibration": identity.calibration,
        "train_people_in_the_list": len(shared),
        "train_skipped": skipped_training.counts,
        **skipped.as_dict(),
    }
    return Report(result, figures, [*_sections(result, rated, len(shared), calibration), skipped.section()])
