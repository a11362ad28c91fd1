"""`facepipe evaluate pairs`: a list of pairs, told apart by embeddings, as a report."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from pipeline.config import Settings
from pipeline.errors import UsageError
from pipeline.evaluation.pages.page import Section, Table
from pipeline.evaluation.pages.plots import Axis, Series, histogram, line_plot
from pipeline.evaluation.pairs.measures import FMRS, FnmrAtFmr, PairDistance, PairsResult, evaluate_pairs, match_cut
from pipeline.evaluation.pairs.pair_lists import PairList, photos_of_people, read_pair_list
from pipeline.evaluation.pairs.scored import ScoredPairs, score_everybody, score_list, scored_of_list
from pipeline.evaluation.photos.embedded import Embedded, embed_photos
from pipeline.evaluation.photos.skipped import Skipped
from pipeline.evaluation.statistics.resampling import Interval
from pipeline.extraction.images.files import shown
from pipeline.matching.score import Calibration
from pipeline.types import Progress

_BINS: Final = 80
_HIGHEST_FMR: Final = max(FMRS)


@dataclass(frozen=True)
class PairsRequest:
    """The list `pairs`, whose photos lie below `images` (None: below its own folder). `train`: the list whose best
    threshold decides. `all_pairs`: rates over all pairs of all photos of the people in the list. The embeddings are
    those of `store`, or made now."""

    pairs: Path
    settings: Settings
    images: Path | None = None
    train: Path | None = None
    all_pairs: bool = False
    store: Path | None = None


@dataclass(frozen=True)
class PairsReport:
    """The result, what it was made of, and what was left out."""

    result: PairsResult
    calibration: Calibration
    about: dict[str, Any]
    skipped: Skipped

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {**self.result.as_dict(), **self.about, **self.skipped.as_dict()}

    def lines(self) -> Iterator[str]:
        """For people."""
        result = self.result
        yield f"pairs       {result.genuine_pairs:,} genuine, {result.impostor_pairs:,} impostor"
        if result.pairs_without_face:
            yield f"            {result.pairs_without_face:,} have a photo without a face, and count as errors"
        yield f"accuracy    {_accuracy(result)}"
        yield f"            at T = {result.threshold:.4f}, from {_source(result)}"
        if self.about["train_people_in_the_list"]:
            yield f"            {self.about['train_people_in_the_list']:,} people are in both lists: this flatters it"
        yield f"rates       {_over(result)}"
        for rate in result.rates:
            yield f"FNMR        {described(rate)} at FMR {rate.fmr:g}"
        yield f"at T        {_at_threshold(result)}"
        yield from self.skipped.lines()

    def sections(self) -> Iterator[Section]:
        """For a page."""
        result = self.result
        yield Section("Accuracy", _ACCURACY, _accuracy_table(result))
        yield Section("Error rates", f"{_RATES} Here: {_over(result)}.", _rates_table(result), _curves(result))
        yield Section("Distances", _DISTANCES, plots=[_distances(result, self.calibration)])
        yield Section("Closest pairs of two people", _CLOSEST, _pairs_table(result.nearest_strangers))
        yield Section("Farthest pairs of one person", _FARTHEST, _pairs_table(result.farthest_photos))
        yield from self.skipped.sections()


_ACCURACY = (
    "The share of the list's pairs that are decided rightly. A pair with a photo in which no face was found counts as "
    "an error."
)
_RATES = (
    "FMR, the false match rate: the share of pairs of two people that are taken for one. FNMR, the false non-match "
    "rate: the share of pairs of one person that are not. A rate is given only where there are at least three times "
    "as many impostor pairs as its inverse (the rule of 3). A photo without a face matches nothing."
)
_DISTANCES = "Squared contract distances: at or below the threshold T two faces match."
_CLOSEST = "False matches, where they are below the threshold; or photos with a wrong name."
_FARTHEST = "Photos of one person that look least alike to the model; or photos with a wrong name."


def described(rate: FnmrAtFmr) -> str:
    """The rate in words, with its interval and threshold."""
    if rate.fnmr is None or rate.threshold is None:
        return f"not measurable (needs {rate.impostor_pairs_needed:,} impostor pairs)"
    return f"{rate.fnmr:.2%} ({_interval(rate.fnmr_interval_95)}T = {rate.threshold:.4f})"


def _interval(spread: Interval | None) -> str:
    return "" if spread is None else f"95 %: {spread[0]:.2%} to {spread[1]:.2%}; "


def _accuracy(result: PairsResult) -> str:
    spread = _interval(result.accuracy_interval_95).removesuffix("; ")
    text = f"{result.accuracy:.2%}" + (f" ({spread})" if spread else "")
    if result.standard_error is None:
        return text
    return f"{text}; standard error over {len(result.folds)} folds {result.standard_error:.2%}"


def _source(result: PairsResult) -> str:
    return {"given": "--threshold or the settings"}.get(result.threshold_from, result.threshold_from)


def _over(result: PairsResult) -> str:
    which = "all pairs of" if result.all_pairs else "the list's pairs of"
    people = "" if result.rates_people is None else f" of {result.rates_people:,} people"
    return (
        f"{which} {result.rates_photos:,} photos{people}: {result.rates_genuine_pairs:,} genuine and "
        f"{result.rates_impostor_pairs:,} impostor pairs; intervals over resamples of the {result.resampled}"
    )


def _at_threshold(result: PairsResult) -> str:
    at = result.at_threshold
    fmr = f"FMR {at.fmr:.3g}" if at.fmr_below_95 is None else f"no false match (FMR below {at.fmr_below_95:.3g})"
    spread = _interval(at.fnmr_interval_95).removesuffix("; ")
    return f"T = {at.threshold:g}: {fmr}, FNMR {at.fnmr:.2%}" + (f" ({spread})" if spread else "")


def _accuracy_table(result: PairsResult) -> Table:
    rows = [
        ("accuracy", _accuracy(result)),
        ("threshold T", f"{result.threshold:.4f}, from {_source(result)}"),
        ("genuine pairs", f"{result.genuine_pairs:,}"),
        ("impostor pairs", f"{result.impostor_pairs:,}"),
        ("pairs with a photo without a face", f"{result.pairs_without_face:,}"),
    ]
    rows += [
        (f"fold {number}", f"{accuracy:.2%} at T = {threshold:.4f}")
        for number, (accuracy, threshold) in enumerate(result.folds, 1)
    ]
    return Table(("what", "value"), rows)


def _rates_table(result: PairsResult) -> Table:
    rows = [(f"FNMR at FMR {rate.fmr:g}", described(rate)) for rate in result.rates]
    return Table(("rate", "value"), [*rows, ("at the threshold asked for", _at_threshold(result))])


def _curves(result: PairsResult) -> list[str]:
    fmr = Axis("FMR", log=True)
    hits = [1 - missed for missed in result.curve_fnmr]
    return [
        line_plot("ROC", [Series("ROC", result.curve_fmr, hits)], fmr, Axis("1 - FNMR", high=1.0)),
        line_plot("DET", [Series("DET", result.curve_fmr, result.curve_fnmr)], fmr, Axis("FNMR", log=True)),
    ]


def _distances(result: PairsResult, calibration: Calibration) -> str:
    edges = np.linspace(0.0, 4.0, _BINS + 1)
    # Counted where the distances are raw: a hundred million of them need not be mapped.
    cuts = np.array([match_cut(float(edge), calibration) for edge in edges[:-1]] + [4.0 + 1e-9])
    scored: ScoredPairs = result.scored
    counts = {
        name: np.histogram(values[np.isfinite(values)], cuts)[0].astype(np.float64)
        for name, values in (("one person", scored.genuine), ("two people", scored.impostor))
    }
    mark = {f"T = {result.at_threshold.threshold:g}": result.at_threshold.threshold}
    return histogram("Distances", counts, edges, Axis("squared contract distance"), mark)


def _pairs_table(pairs: tuple[PairDistance, ...]) -> Table:
    rows = [(p.first, p.second, "no face" if p.distance is None else f"{p.distance:.4f}") for p in pairs]
    return Table(("photo", "photo", "squared distance"), rows)


def report_pairs(request: PairsRequest, progress: Progress) -> PairsReport:
    """Reads the lists, fetches or makes the embeddings, and compares.

    Raises SourceMissing, PairsInvalid, UsageError, InputError where nothing can be measured, StoreError, DeviceError,
    ModelError.
    """
    skipped, skipped_training = Skipped(), Skipped()
    listed = read_pair_list(request.pairs, request.images, skipped)
    training = None if request.train is None else read_pair_list(request.train, request.images, skipped_training)
    files, names = dict(listed.files), dict[str, str]()
    if request.all_pairs:
        files, names = _everybody(listed, request)
    files.update({} if training is None else training.files)
    embedded = embed_photos(files, request.settings, request.store, "evaluate pairs", progress)
    calibration = Calibration.from_dict(embedded.identity.calibration)
    scored = score_list(listed, embedded.portraits, skipped)
    trained = None if training is None else score_list(training, embedded.portraits, skipped_training)
    progress.start("pairs", None)
    if request.all_pairs:
        rated = score_everybody(embedded.portraits, names, _HIGHEST_FMR)
        _count_unused(names, listed, embedded, skipped)
    else:
        rated = scored_of_list(scored, bool(listed.people))
    with skipped.explaining(), skipped_training.explaining():
        result = evaluate_pairs(scored, rated, calibration, embedded.settings.match.threshold, trained)
    about = _about(request, listed, training, embedded) | {"train_skipped": skipped_training.counts}
    return PairsReport(result, calibration, about, skipped)


def _everybody(listed: PairList, request: PairsRequest) -> tuple[dict[str, Path], dict[str, str]]:
    if not listed.people:
        raise UsageError(
            message="--all-pairs needs the people's names, which only lists in LFW's format give. For other data, "
            "`facepipe evaluate identification` and `calibrate` take labelled folders."
        )
    return photos_of_people(listed, request.images or request.pairs.parent)


def _count_unused(names: dict[str, str], listed: PairList, embedded: Embedded, skipped: Skipped) -> None:
    """Photos of the people that are in no pair of the list, and of which nothing is known."""
    for path, reason in embedded.portraits.skipped.items():
        if path in names and path not in listed.files:
            skipped.add(f"a further photo: {reason}", path)


def _about(request: PairsRequest, listed: PairList, training: PairList | None, embedded: Embedded) -> dict[str, Any]:
    match = embedded.settings.match
    shared = set() if training is None else set(training.people.values()) & set(listed.people.values())
    return {
        "source": shown(request.pairs),
        "train": None if request.train is None else shown(request.train),
        "train_people_in_the_list": len(shared),
        "threshold_asked": match.threshold if match.threshold_fmr is None else f"fmr:{match.threshold_fmr:g}",
        "embeddings_from": "the models" if request.store is None else shown(request.store),
        "embedder": embedded.identity.embedder,
        "weights": embedded.identity.weights,
        "weights_sha256": embedded.identity.weights_sha256,
        "calibration": embedded.identity.calibration,
    }
