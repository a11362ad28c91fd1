"""`facepipe calibrate`: fits the map d = 2 (r / 2)^g of a model's raw L2 distance to the contract distance.

g maps the raw distance at the chosen false match rate to sqrt(0.54), the contract's default threshold; a small table
has the T of other rates. The fit only needs pairs of different people, but many.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from pipeline.config import CONTRACT_FMR, CONTRACT_THRESHOLD, Settings
from pipeline.errors import InputError, TooLittleData, UsageError
from pipeline.evaluation.labels import read_labels, read_leave_out
from pipeline.evaluation.pair_distances import (
    NamedDistance,
    ScoredPairs,
    score_everybody,
    score_list,
    scored_of_list,
)
from pipeline.evaluation.pair_lists import is_pair_list, photos_of_people, read_pair_list
from pipeline.evaluation.pairs import threshold_below
from pipeline.evaluation.portraits import Portraits, embed_photos
from pipeline.evaluation.report import LISTED, NO_FACE, Report, Row, Section, Skipped
from pipeline.evaluation.statistics import (
    HAIR,
    Interval,
    calibration_exponent,
    interval,
    is_measurable,
    lowest_measurable,
    pairs_needed,
    resample_rates,
    threshold_at_fmr,
)
from pipeline.jobs.accounts import find_account
from pipeline.jobs.calibration_file import write_calibration
from pipeline.jobs.store import Store, path_of, store_at
from pipeline.matching.calibration import EXPONENTS, Calibration
from pipeline.store import StoreIdentity
from pipeline.texts import path_text
from pipeline.types import DoubleArray, Progress

# The table's rows; T is interpolated between them.
TABLE_FMRS: Final = (1e-6, 2e-6, 5e-6, 1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2)
_RATES: Final = (1e-9, 0.1)


@dataclass(frozen=True)
class CalibrationFit:
    """The fit and its data."""

    exponent: float
    exponent_interval_95: Interval
    fmr: float
    squared_l2: float  # raw, at this FMR
    squared_l2_interval_95: Interval
    thresholds: tuple[tuple[float, float], ...]  # (FMR, T)
    intervals_95: tuple[Interval, ...]  # of each T
    resampled: str
    photos: int
    people: int | None
    impostor_pairs: int
    genuine_pairs: int
    fnmr: float | None  # at this FMR; None: no genuine pairs
    nearest_strangers: tuple[NamedDistance, ...]  # wrong labels are likely among them

    def calibration(self, dataset: str, note: str) -> Calibration:
        """As stored in a store."""
        return Calibration(self.exponent, dataset, self.fmr, note, self.thresholds, self.intervals_95)

    @property
    def remark(self) -> str | None:
        """A remark if the rate is not the default one of T = 0.54."""
        if self.fmr == CONTRACT_FMR:
            return None
        remark = f"T = {CONTRACT_THRESHOLD:g} stands for a false match rate of {self.fmr:g} and not {CONTRACT_FMR:g}"
        if is_measurable(CONTRACT_FMR, self.impostor_pairs):
            return remark
        needed = f"that needs {pairs_needed(CONTRACT_FMR):,} pairs of different people"
        return f"{remark}: {needed}, and there are {self.impostor_pairs:,}"


def fit_calibration(scored: ScoredPairs, fmr: float | None = None) -> CalibrationFit:
    """Fits the exponent at `fmr` (None: the contract's rate, or the lowest that the data allow), and the table for all
    measurable rates.

    Both photos of each pair in `scored` must show a face. Raises TooLittleData with fewer impostor pairs than the rule
    of 3 needs, or too few people for an interval, and InputError if no exponent is usable.
    """
    fmr = _default_rate(len(scored.impostor)) if fmr is None else fmr
    if not is_measurable(fmr, len(scored.impostor)):
        detail = f"the rule of 3 asks for {pairs_needed(fmr):,} pairs of different people, and there are "
        raise TooLittleData(fmr=f"{fmr:g}", detail=f"{detail}{len(scored.impostor):,}")
    rates = sorted({rate for rate in TABLE_FMRS if is_measurable(rate, len(scored.impostor))} | {fmr})
    by_rate, _ = resample_rates(scored, rates)
    resampled = by_rate[:, rates.index(fmr)]
    squared_l2 = threshold_at_fmr(scored.impostor, fmr)
    exponent = _exponent(squared_l2, fmr)
    spread = interval(_exponents(resampled))
    raw_spreads = [raw for column in by_rate.T if (raw := interval(column)) is not None]
    if spread is None or len(raw_spreads) < len(rates):
        few = f"{scored.units} {scored.unit}"
        detail = f"too many resamples of the {few} have hardly an impostor pair"
        raise TooLittleData(fmr=f"{fmr:g}", detail=detail)

    def threshold(cut: float) -> float:
        return threshold_below(cut, Calibration(exponent))

    return CalibrationFit(
        exponent=exponent,
        exponent_interval_95=spread,
        fmr=fmr,
        squared_l2=squared_l2,
        squared_l2_interval_95=raw_spreads[rates.index(fmr)],
        thresholds=tuple((rate, threshold(threshold_at_fmr(scored.impostor, rate))) for rate in rates),
        intervals_95=tuple((threshold(low), threshold(high)) for low, high in raw_spreads),
        resampled=scored.unit,
        photos=scored.photos,
        people=scored.people,
        impostor_pairs=len(scored.impostor),
        genuine_pairs=len(scored.genuine),
        fnmr=float(np.mean(scored.genuine >= squared_l2)) if len(scored.genuine) else None,
        nearest_strangers=scored.nearest_strangers,
    )


def _exponent(squared_l2: float, fmr: float) -> float:
    """Raises InputError if there is none, or a store would refuse it."""
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
    exactly this distance do not; NaN if there is none."""
    usable = (squared_l2 > 0) & (squared_l2 < 4)
    below = (squared_l2 * (1.0 - HAIR)).tolist()
    return np.array(
        [calibration_exponent(cut) if valid else math.nan for cut, valid in zip(below, usable.tolist(), strict=True)]
    )


def _default_rate(impostor_pairs: int) -> float:
    """The contract's rate, or the lowest measurable one."""
    if is_measurable(CONTRACT_FMR, impostor_pairs):
        return CONTRACT_FMR
    return min(lowest_measurable(impostor_pairs), _RATES[1]) if impostor_pairs else _RATES[1]


@dataclass(frozen=True)
class CalibrationReport(Report[CalibrationFit]):
    """The fit as a report, and the calibration for a store."""

    calibration: Calibration
    identity: StoreIdentity

    def write(self, file: Path) -> None:
        """Writes the calibration for `--calibration FILE`. Raises StoreFull, StoreUnwritable."""
        facts = {key: value for key, value in self.figures.items() if key not in ("calibration", "skipped_examples")}
        write_calibration(file, self.calibration, self.identity, facts)


def report_calibration(
    source: Path | None,
    settings: Settings,
    progress: Progress,
    *,
    fmr: float | None = None,
    images: Path | None = None,
    all_pairs: bool = False,
    store: Path | Store | None = None,
    account: str | None = None,
    directory: str = "main",
    leave_out: Path | None = None,
    dataset: str | None = None,
) -> CalibrationReport:
    """Reads the labels, reads or computes the embeddings, and fits.

    `fmr`: as in `fit_calibration`. `source`: a list of pairs with photos below `images`, or labelled photos (a
    manifest, or a folder with one subfolder per person); None: the named rows of `store`. `all_pairs`: all pairs of all
    photos of the people in the list. `store`: has the embeddings. `leave_out`: a list of photos with wrong labels.
    `dataset`: the name of the data; None: the source's.

    Raises TooLittleData, UsageError, InputError, StoreError, DeviceError, ModelError.
    """
    check_rate(fmr)
    skipped = Skipped()
    # T is not used here, and a configured rate may need the calibration being fitted.
    match = replace(settings.match, threshold=CONTRACT_THRESHOLD, threshold_fmr=None)
    settings = replace(settings, match=match)
    listed = None
    if source is None:
        files, names = _named_rows(store, account, directory)
    elif not is_pair_list(source):
        labels = read_labels(source, settings.source, skipped)
        files, names = labels.to_embed(store is not None, skipped), dict(zip(labels.paths, labels.names, strict=True))
    else:
        listed = read_pair_list(source, images, skipped)
        files, names = photos_of_people(listed, images) if all_pairs else (listed.files, listed.people)
    left_out = set() if leave_out is None else read_leave_out(leave_out, files)
    portraits, identity, _ = embed_photos(files, settings, store, "calibrate", progress)
    usable = _usable(portraits, left_out, skipped)
    if listed is not None and not all_pairs:
        scored = scored_of_list(score_list(listed, usable, Skipped()))
    else:
        with skipped.explaining():
            scored = score_everybody(usable, names, max(fmr or 0.0, *TABLE_FMRS))
    progress.start("pairs", None)
    with skipped.explaining():
        fit = fit_calibration(scored, fmr)
    origin = source or (None if store is None else path_of(store)) or Path()
    name = dataset or path_text(origin.absolute().name)
    people = "" if fit.people is None else f" of {fit.people:,} people"
    data = f"{name}, {fit.photos:,} photos{people} ({fit.impostor_pairs:,} impostor pairs)"
    calibration = fit.calibration(data, _note(fit, leave_out, skipped))
    sections = [
        Section("Calibration", list(_rows(fit, calibration, identity))),
        skipped.section(),
        Section("Closest pairs of different people", list(_closest(fit))),
    ]
    figures = {
        "weights": identity.weights,
        "weights_sha256": identity.weights_sha256,
        "calibration": calibration.as_dict(),
        **asdict(fit),
        **skipped.as_dict(),
    }
    return CalibrationReport(fit, figures, sections, calibration, identity)


def _note(fit: CalibrationFit, leave_out: Path | None, skipped: Skipped) -> str:
    low, high = fit.exponent_interval_95
    notes = [
        f"squared L2 distance {fit.squared_l2:.4f} at this rate; 95 % interval of the exponent {low:.4f} to {high:.4f}"
    ]
    if leave_out is not None:
        notes.append(f"{skipped.counts.get(LISTED, 0)} photos left out by {path_text(leave_out.name)}")
    if fit.remark is not None:
        notes.append(fit.remark)
    return "; ".join(notes)


def _rows(fit: CalibrationFit, calibration: Calibration, identity: StoreIdentity) -> Iterator[Row]:
    low, high = fit.exponent_interval_95
    yield Row("weights", identity.weights)
    yield Row("data", calibration.dataset)
    yield Row("", f"{fit.impostor_pairs:,} pairs of different people, {fit.genuine_pairs:,} of the same")
    spread = f"95 %: {low:.4f} to {high:.4f}, over resamples of the {fit.resampled}"
    yield Row("exponent", f"{fit.exponent:.4f} ({spread})")
    yield Row("", f"maps the squared distance {fit.squared_l2:.4f} at FMR {fit.fmr:g} to {CONTRACT_THRESHOLD:g}")
    if fit.remark is not None:
        yield Row("", fit.remark)
    if fit.fnmr is not None:
        yield Row("FNMR", f"{fit.fnmr:.2%} there")
    for (rate, threshold), (low, high) in zip(fit.thresholds, fit.intervals_95, strict=True):
        yield Row("threshold", f"T = {threshold:.4f} at FMR {rate:g} (95 %: {low:.4f} to {high:.4f})")


def _closest(fit: CalibrationFit) -> Iterator[Row]:
    yield Row("closest", "pairs of different people; photos with a wrong name are likely among them:")
    for pair in fit.nearest_strangers[:3]:
        yield Row("", f"{pair.squared_l2:.4f}  {pair.first}  {pair.second}")


def _named_rows(
    store: Path | Store | None, account: str | None, directory: str
) -> tuple[dict[str, Path], dict[str, str]]:
    """The named photos of a store: path -> file, and path -> name from the source. Identities are no labels: they
    depend on the distances being calibrated."""
    if store is None:
        raise UsageError(message="Name labelled photos, a list of pairs, or a store whose rows have names (--store).")
    with store_at(store, "calibrate") as opened:
        path, account_id = opened.path, find_account(opened, account).account_id
        names = dict(zip(*opened.photos("names", account_id, directory).to_pydict().values(), strict=True))
    if not names:
        raise InputError(message=f'No row of the directory "{directory}" of {path} has a name.')
    return {path: Path(path) for path in names}, names


def _usable(portraits: Portraits, left_out: Collection[str], skipped: Skipped) -> Portraits:
    """The portraits with a face (others have no distances) that are not in `left_out`."""
    faceless = [path for path, row in portraits.row.items() if not portraits.has_face[row]]
    reasons = {**portraits.skipped, **dict.fromkeys(faceless, NO_FACE), **dict.fromkeys(sorted(left_out), LISTED)}
    for path, reason in reasons.items():
        skipped.add(reason, path)
    rows = np.array([row for path, row in portraits.row.items() if path not in reasons], dtype=np.int64)
    return replace(
        portraits,
        paths=[portraits.paths[row] for row in rows.tolist()],
        embeddings=portraits.embeddings[rows],
        skipped=reasons,
    )


def check_rate(fmr: float | None) -> None:
    """Raises UsageError if `fmr` is out of range."""
    low, high = _RATES
    if fmr is not None and not low <= fmr <= high:  # also refuses NaN
        raise UsageError(message=f"The false match rate must be at least {low:g} and at most {high:g}, not {fmr:g}.")
