"""`facepipe calibrate`: fits the calibration of a model on labelled photos, as a report."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from pipeline.config import Settings
from pipeline.errors import InputError, UsageError
from pipeline.evaluation.calibration.fit import TABLE_FMRS, CalibrationFit, fit_calibration
from pipeline.evaluation.pages.report import Report, Row, Section, values_of
from pipeline.evaluation.pairs.distances import ScoredPairs, score_everybody, score_list, scored_of_list
from pipeline.evaluation.pairs.lists import COLUMNS, is_pair_list, photos_of_people, read_pair_list
from pipeline.evaluation.photos.labels import read_labels
from pipeline.evaluation.photos.portraits import Embedded, Portraits, embed_photos
from pipeline.evaluation.photos.skipped import Skipped
from pipeline.evaluation.statistics.rates import CONTRACT_THRESHOLD
from pipeline.extraction.images.files import shown
from pipeline.jobs.accounts import find_account
from pipeline.jobs.calibration_file import write_calibration
from pipeline.matching.calibration import Calibration
from pipeline.store.connect import open_store
from pipeline.store.records import StoreIdentity
from pipeline.types import Progress

_RATES: Final = (1e-9, 0.1)
NO_FACE_FOUND: Final = "no face found"


@dataclass(frozen=True)
class CalibrationRequest:
    """Fit at the false match rate `fmr` on `source`: a list of pairs, whose photos lie below `images`, or labelled
    photos (a manifest, or a folder with one subfolder per person). `all_pairs`: all pairs of all photos of the people
    in the list. The embeddings are those of `store`, or computed now; without a source, its named rows are the
    labels."""

    source: Path | None
    settings: Settings
    fmr: float
    images: Path | None = None
    all_pairs: bool = False
    store: Path | None = None
    account: str | None = None
    directory: str = "main"
    dataset: str | None = None  # name of the data; None: the source's name


@dataclass(frozen=True)
class CalibrationReport(Report[CalibrationFit]):
    """The fit as a report, and the calibration as a store keeps it."""

    calibration: Calibration
    identity: StoreIdentity

    def write(self, file: Path) -> None:
        """Writes the calibration for `--calibration FILE`. Raises StoreFull, StoreUnwritable."""
        facts = {key: value for key, value in self.as_dict().items() if key not in ("calibration", "skipped_examples")}
        write_calibration(file, self.calibration, self.identity, facts)


def report_calibration(request: CalibrationRequest, progress: Progress) -> CalibrationReport:
    """Reads the labels, reads or computes the embeddings, and fits.

    Raises TooLittleData, UsageError, InputError, StoreError, DeviceError, ModelError.
    """
    skipped = Skipped()
    # No T is used here, and a configured rate may need the very calibration that this fit makes.
    match = replace(request.settings.match, threshold=CONTRACT_THRESHOLD, threshold_fmr=None)
    request = replace(request, settings=replace(request.settings, match=match))
    if request.source is not None and is_pair_list(request.source):
        embedded, scored = _of_pairs(request.source, request, progress, skipped)
    else:
        files, names = _labels(request, skipped)
        embedded = embed_photos(files, request.settings, request.store, "calibrate", progress)
        scored = _everybody(embedded, names, request.fmr, skipped)
    progress.start("pairs", None)
    with skipped.explaining():
        fit = fit_calibration(scored, request.fmr)
    note = (
        f"squared L2 distance {fit.squared_l2:.4f} at this rate; 95 % interval of the exponent "
        f"{fit.exponent_interval_95[0]:.4f} to {fit.exponent_interval_95[1]:.4f}"
    )
    calibration, identity = fit.calibration(_dataset(request, fit), note), embedded.identity
    sections = [
        Section("Calibration", list(_rows(fit, calibration, identity))),
        skipped.section(),
        Section("Closest pairs of different people", list(_closest(fit))),
    ]
    return CalibrationReport(fit, sections, calibration, identity)


def _rows(fit: CalibrationFit, calibration: Calibration, identity: StoreIdentity) -> Iterator[Row]:
    low, high = fit.exponent_interval_95
    yield Row("weights", identity.weights, values_of(identity, "weights", "weights_sha256"))
    yield Row("data", calibration.dataset, {"calibration": calibration.as_dict()})
    yield Row(
        "",
        f"{fit.impostor_pairs:,} pairs of different people, {fit.genuine_pairs:,} of the same",
        values_of(fit, "photos", "people", "impostor_pairs", "genuine_pairs"),
    )
    yield Row(
        "exponent",
        f"{fit.exponent:.4f} (95 %: {low:.4f} to {high:.4f}, over resamples of the {fit.resampled})",
        values_of(fit, "exponent", "exponent_interval_95", "resampled"),
    )
    yield Row(
        "",
        f"maps the squared distance {fit.squared_l2:.4f} at FMR {fit.fmr:g} to {CONTRACT_THRESHOLD:g}",
        values_of(fit, "squared_l2", "squared_l2_interval_95", "fmr"),
    )
    yield Row("FNMR", "" if fit.fnmr is None else f"{fit.fnmr:.2%} there", values_of(fit, "fnmr"))
    for rate, threshold in fit.thresholds:
        yield Row("threshold", f"T = {threshold:.4f} at FMR {rate:g}", values_of(fit, "thresholds"))


def _closest(fit: CalibrationFit) -> Iterator[Row]:
    pairs = [asdict(pair) for pair in fit.nearest_strangers]
    text = "pairs of different people; photos with a wrong name are likely among them:"
    yield Row("closest", text, {"nearest_strangers": pairs})
    for pair in fit.nearest_strangers[:3]:
        yield Row("", f"{pair.squared_l2:.4f}  {pair.first}  {pair.second}")


def _of_pairs(
    source: Path, request: CalibrationRequest, progress: Progress, skipped: Skipped
) -> tuple[Embedded, ScoredPairs]:
    listed = read_pair_list(source, request.images, skipped)
    if request.all_pairs:
        if not listed.people:
            raise UsageError(message=f"--all-pairs needs the people's names, which a list of {COLUMNS} does not give.")
        files, names = photos_of_people(listed, request.images or source.parent)
        embedded = embed_photos(files, request.settings, request.store, "calibrate", progress)
        return embedded, _everybody(embedded, names, request.fmr, skipped)
    embedded = embed_photos(listed.files, request.settings, request.store, "calibrate", progress)
    with_face = _without_faceless(embedded.portraits, skipped)
    return embedded, scored_of_list(score_list(listed, with_face, Skipped()), bool(listed.people))


def _labels(request: CalibrationRequest, skipped: Skipped) -> tuple[dict[str, Path], dict[str, str]]:
    """The labelled photos: path -> file, and path -> name."""
    if request.source is not None:
        labels = read_labels(request.source, request.settings.source, skipped)
        files = labels.to_embed(request.store is not None, skipped)
        return files, dict(zip(labels.paths, labels.names, strict=True))
    if request.store is None:
        raise UsageError(message="Name labelled photos, a list of pairs, or a store whose rows have names (--store).")
    with open_store(request.store, command="calibrate") as opened:
        _, account_id = find_account(opened, request.account)
        # Only names from the source of a run are labels. Identities are not: they were made with the distances that
        # the fit calibrates.
        names = opened.named_photos(account_id, request.directory)
    if not names:
        raise InputError(message=f'No row of the directory "{request.directory}" of {request.store} has a name.')
    return {path: Path(path) for path in names}, names


def _everybody(embedded: Embedded, names: dict[str, str], fmr: float, skipped: Skipped) -> ScoredPairs:
    with_face = _without_faceless(embedded.portraits, skipped)
    with skipped.explaining():
        return score_everybody(with_face, names, max(fmr, max(TABLE_FMRS)))


def _without_faceless(portraits: Portraits, skipped: Skipped) -> Portraits:
    """The portraits that show a face: only they have distances."""
    for path, reason in portraits.skipped.items():
        skipped.add(reason, path)
    faceless = [
        path for path, has_face in zip(portraits.paths, portraits.has_face.tolist(), strict=True) if not has_face
    ]
    for path in faceless:
        skipped.add(NO_FACE_FOUND, path)
    rows = np.flatnonzero(portraits.has_face)
    return replace(
        portraits,
        paths=[portraits.paths[row] for row in rows.tolist()],
        embeddings=portraits.embeddings[rows],
        quality=portraits.quality[rows],
        skipped={**portraits.skipped, **dict.fromkeys(faceless, NO_FACE_FOUND)},
    )


def _dataset(request: CalibrationRequest, fit: CalibrationFit) -> str:
    name = request.dataset or shown((request.source or request.store or Path()).absolute().name)
    people = "" if fit.people is None else f" of {fit.people:,} people"
    return f"{name}, {fit.photos:,} photos{people} ({fit.impostor_pairs:,} impostor pairs)"


def check_rate(fmr: float) -> float:
    """`fmr` itself. Raises UsageError where it is out of range."""
    low, high = _RATES
    if not low <= fmr <= high:  # so that NaN is refused
        raise UsageError(message=f"The false match rate must be at least {low:g} and at most {high:g}, not {fmr:g}.")
    return fmr
