"""`facepipe evaluate identification`: probes searched in a gallery, as a report."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from pipeline.config import Settings
from pipeline.errors import UsageError
from pipeline.evaluation.identification.measures import (
    FnirAtFpir,
    IdentificationResult,
    evaluate_identification,
    gallery_by_column,
    gallery_per_person,
)
from pipeline.evaluation.photos.labels import LabelledPhotos, read_labels
from pipeline.evaluation.photos.portraits import Embedded, embed_photos
from pipeline.evaluation.pictures import line_plot
from pipeline.evaluation.report import Report, Skipped
from pipeline.evaluation.statistics import pairs_needed
from pipeline.extraction.images.files import shown
from pipeline.matching.calibration import Calibration
from pipeline.matching.match import Matcher
from pipeline.report.page import Row, Section
from pipeline.runtime.device import resolve_device
from pipeline.types import BoolArray, Progress

_MATED = "A mated probe shows somebody of the gallery and should return that person first."
_NON_MATED = "A non-mated probe shows somebody else and should return nobody. A photo without a face returns nobody."
_RANK_1 = "The share of mated searches that return the person first. Intervals are over resamples of the mated people."
_FNIR = (
    "FNIR: the share of mated searches that do not return the person first and within the threshold. FPIR: the share "
    "of non-mated searches that return anybody within it. Both grow with the gallery: figures hold for "
    "this size only."
)


@dataclass(frozen=True)
class IdentificationRequest:
    """Search the photos in `labels` (a manifest, or a folder with one subfolder per person). Its column `set` divides
    them into gallery and probes, or `per_person` does (see `gallery_per_person`). The embeddings are those of `store`,
    or computed now."""

    labels: Path
    settings: Settings
    per_person: int = 0  # 0: by the column set
    store: Path | None = None


def report_identification(request: IdentificationRequest, progress: Progress) -> Report[IdentificationResult]:
    """Reads the labels, reads or computes the embeddings, and searches.

    Skips and counts photos that cannot be used; a person without a usable gallery photo is not enrolled. Raises
    SourceMissing, ManifestInvalid, UsageError, InputError where nothing can be searched, StoreError, DeviceError,
    ModelError.
    """
    if request.per_person < 0:
        raise UsageError(message=f"A gallery cannot have {request.per_person} photos per person.")
    skipped = Skipped()
    progress.start("labels", None)
    column = None if request.per_person else "set"
    labels = read_labels(request.labels, request.settings.source, skipped, column=column, advance=progress.advance)
    # Before the embedding, which may take long. None: `per_person` decides, among the photos that can be used.
    in_gallery = gallery_by_column(shown(request.labels), labels.columns, labels.paths) if column else None
    files = labels.to_embed(request.store is not None, skipped)
    embedded = embed_photos(files, request.settings, request.store, "evaluate identification", progress)
    for path, reason in embedded.portraits.skipped.items():
        skipped.add(reason, path)
    with skipped.explaining():
        result = _evaluate(request, labels, in_gallery, embedded)
    sections = [
        Section("Searches", _searches(result)),
        Section("Rates", _rates(result), _FNIR, _plots(result)),
        skipped.section(),
    ]
    identity = embedded.identity
    figures = {
        **asdict(result),
        "labels": shown(request.labels),
        "gallery": f"{request.per_person} per person" if request.per_person else "the column set",
        "embeddings_from": "the models" if request.store is None else shown(request.store),
        "photos": len(embedded.portraits.paths),
        "embedder": identity.embedder,
        "weights": identity.weights,
        "calibration": identity.calibration,
        **skipped.as_dict(),
    }
    return Report(result, figures, sections)


def _evaluate(
    request: IdentificationRequest, labels: LabelledPhotos, gallery_column: BoolArray | None, embedded: Embedded
) -> IdentificationResult:
    portraits, settings = embedded.portraits, embedded.settings
    kept = [row for row, path in enumerate(labels.paths) if path in portraits.row]
    names = [labels.names[row] for row in kept]
    in_gallery = gallery_per_person(names, request.per_person) if gallery_column is None else gallery_column[kept]
    rows = [portraits.row[labels.paths[row]] for row in kept]
    matcher = Matcher(Calibration.from_dict(embedded.identity.calibration), settings.match.threshold)
    device = str(resolve_device(settings.run.device))
    return evaluate_identification(portraits.embeddings[rows], names, in_gallery, matcher, device)


def _searches(r: IdentificationResult) -> list[Row]:
    searches = f"{r.mated_searches:,} mated, {r.non_mated_searches:,} non-mated"
    people = f"{r.mated_people:,} people in the mated searches, {r.probes_without_face:,} probes without a face"
    return [
        Row("gallery", f"{r.gallery_people:,} people, {r.gallery_images:,} photos"),
        Row("", f"{r.gallery_images_without_face:,} further photos show no face", detail=True),
        Row("searches", searches, f"{_MATED} {_NON_MATED}"),
        Row("", people, detail=True),
    ]


def _rates(r: IdentificationResult) -> list[Row]:
    low, high = r.rank_1_interval_95
    alarms = "" if r.fpir_at_threshold is None else f", FPIR {r.fpir_at_threshold:.3%}"
    return [
        Row("rank 1", f"{r.rank_1:.2%} (95 %: {low:.2%} to {high:.2%})", _RANK_1),
        *(Row("FNIR", f"{described(rate)} at FPIR {rate.fpir:g}") for rate in r.fnir_at_fpir),
        Row("at T", f"FNIR {r.fnir_at_threshold:.2%}{alarms} at T = {r.threshold:g}"),
    ]


def described(rate: FnirAtFpir) -> str:
    """The rate in words, with its interval and threshold."""
    if rate.fnir is None or rate.threshold is None or rate.fnir_interval_95 is None:
        return f"not measurable (needs {pairs_needed(rate.fpir):,} non-mated searches)"
    low, high = rate.fnir_interval_95
    return f"{rate.fnir:.2%} (95 %: {low:.2%} to {high:.2%}; T = {rate.threshold:.4f})"


def _plots(r: IdentificationResult) -> Iterator[str]:
    if r.curve_fpir:
        title, scale = f"FNIR over FPIR, {r.gallery_people:,} people", {"xscale": "log", "ylim": (0.0, None)}
        yield line_plot(title, r.curve_fpir, r.curve_fnir, xlabel="FPIR", ylabel="FNIR", **scale)
