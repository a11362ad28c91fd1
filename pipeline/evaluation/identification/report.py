"""`facepipe evaluate identification`: probes searched in a gallery, as a report."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.config import Settings
from pipeline.errors import UsageError
from pipeline.evaluation.identification.measures import (
    FnirAtFpir,
    IdentificationResult,
    evaluate_identification,
    gallery_by_column,
    gallery_per_person,
)
from pipeline.evaluation.pages.page import Section, Table
from pipeline.evaluation.pages.plots import Axis, Series, line_plot
from pipeline.evaluation.photos.embedded import Embedded, embed_photos
from pipeline.evaluation.photos.labels import LabelledPhotos, read_labels
from pipeline.evaluation.photos.skipped import Skipped
from pipeline.evaluation.statistics.rates import pairs_needed
from pipeline.extraction.images.files import shown
from pipeline.identities.decide import make_matcher
from pipeline.runtime.device import resolve_device
from pipeline.types import BoolArray, Progress


@dataclass(frozen=True)
class IdentificationRequest:
    """Who is on which photo (`labels`: a manifest, or a folder with one subfolder per person), and which of the photos
    are the gallery: its column `set` says so, or `per_person` (see `gallery_per_person`). The embeddings are those of
    `store`, or made now."""

    labels: Path
    settings: Settings
    per_person: int = 0  # 0: the column set says it
    store: Path | None = None


@dataclass(frozen=True)
class IdentificationReport:
    """The result, what it was made of, and what was left out."""

    result: IdentificationResult
    about: dict[str, Any]
    skipped: Skipped

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {**self.result.as_dict(), **self.about, **self.skipped.as_dict()}

    def lines(self) -> Iterator[str]:
        """For people."""
        result, (low, high) = self.result, self.result.rank_1_interval_95
        yield f"gallery     {result.gallery_people:,} people, {result.gallery_images:,} photos"
        yield f"searches    {result.mated_searches:,} mated, {result.non_mated_searches:,} non-mated"
        yield f"rank 1      {result.rank_1:.2%} (95 %: {low:.2%} to {high:.2%})"
        for rate in result.fnir_at_fpir:
            yield f"FNIR        {described(rate)} at FPIR {rate.fpir:g}"
        fpir = result.fpir_at_threshold
        alarms = "" if fpir is None else f", FPIR {fpir:.3%}"
        yield f"at T        FNIR {result.fnir_at_threshold:.2%}{alarms} at T = {result.threshold:g}"
        yield from self.skipped.lines()

    def sections(self) -> Iterator[Section]:
        """For a page."""
        yield Section("What was searched", _WHAT, _searches(self.result))
        yield Section("Rates", _RATES, _rates(self.result), _plots(self.result))
        yield from self.skipped.sections()


_COMMAND = "evaluate identification"
_WHAT = (
    "The people of the gallery are known; each probe is searched among them. A mated probe shows one of them and "
    "should return that person first; a non-mated probe shows somebody else and should return nobody. A photo without "
    "a face returns nobody."
)
_RATES = (
    "Rank 1: the share of mated searches that return the person first. FPIR: the share of non-mated searches that "
    "return anybody within the threshold. FNIR: the share of mated searches that do not return the person first and "
    "within the threshold. Both grow with the gallery: figures hold for this size of it and no other. The "
    "intervals are over resamples of the mated people."
)


def described(rate: FnirAtFpir) -> str:
    """The rate in words, with its interval and threshold."""
    if rate.fnir is None or rate.threshold is None or rate.fnir_interval_95 is None:
        return f"not measurable (needs {pairs_needed(rate.fpir):,} non-mated searches)"
    low, high = rate.fnir_interval_95
    return f"{rate.fnir:.2%} (95 %: {low:.2%} to {high:.2%}; T = {rate.threshold:.4f})"


def _searches(result: IdentificationResult) -> Table:
    rows = {
        "people in the gallery": result.gallery_people,
        "photos in the gallery": result.gallery_images,
        "gallery photos without a face": result.gallery_images_without_face,
        "mated searches": result.mated_searches,
        "people of the mated searches": result.mated_people,
        "non-mated searches": result.non_mated_searches,
        "probes without a face": result.probes_without_face,
    }
    return Table(("what", "number"), [(name, f"{count:,}") for name, count in rows.items()])


def _rates(result: IdentificationResult) -> Table:
    low, high = result.rank_1_interval_95
    rows = [("rank 1", f"{result.rank_1:.2%} (95 %: {low:.2%} to {high:.2%})")]
    rows += [(f"FNIR at FPIR {rate.fpir:g}", described(rate)) for rate in result.fnir_at_fpir]
    rows.append((f"FNIR at T = {result.threshold:g}", f"{result.fnir_at_threshold:.2%}"))
    fpir = result.fpir_at_threshold
    rows.append((f"FPIR at T = {result.threshold:g}", "no non-mated search" if fpir is None else f"{fpir:.3%}"))
    return Table(("rate", "value"), rows)


def _plots(result: IdentificationResult) -> list[str]:
    if not result.curve_fpir:
        return []
    title = f"FNIR over FPIR, {result.gallery_people:,} people"
    curve = Series("FNIR", result.curve_fpir, result.curve_fnir)
    return [line_plot(title, [curve], Axis("FPIR", log=True), Axis("FNIR", low=0.0))]


def report_identification(request: IdentificationRequest, progress: Progress) -> IdentificationReport:
    """Reads the labels, fetches or makes the embeddings, and searches.

    A photo that cannot be used takes no part, and is counted as skipped: a person whose gallery photos all are is not
    enrolled. Raises SourceMissing, ManifestInvalid, UsageError, InputError where nothing can be searched, StoreError,
    DeviceError, ModelError.
    """
    if request.per_person < 0:
        raise UsageError(message=f"A gallery cannot have {request.per_person} photos per person.")
    skipped = Skipped()
    progress.start("labels", None)
    column = None if request.per_person else "set"
    labels = read_labels(request.labels, request.settings.source, skipped, column=column, advance=progress.advance)
    chosen = _chosen(request, labels)  # before embedding, which may take long
    files = labels.to_embed(request.store is not None, skipped)
    embedded = embed_photos(files, request.settings, request.store, _COMMAND, progress)
    for path, reason in embedded.portraits.skipped.items():
        skipped.add(reason, path)
    with skipped.explaining():
        result = _evaluate(request, labels, chosen, embedded)
    return IdentificationReport(result, _about(request, embedded), skipped)


def _chosen(request: IdentificationRequest, labels: LabelledPhotos) -> BoolArray | None:
    """[n] which photos the manifest puts in the gallery; None: `per_person` decides, among the usable ones."""
    if request.per_person:
        return None
    return gallery_by_column(shown(request.labels), labels.columns, labels.paths)


def _evaluate(
    request: IdentificationRequest, labels: LabelledPhotos, chosen: BoolArray | None, embedded: Embedded
) -> IdentificationResult:
    portraits, settings = embedded.portraits, embedded.settings
    kept = [row for row, path in enumerate(labels.paths) if path in portraits.row]
    names = [labels.names[row] for row in kept]
    in_gallery = gallery_per_person(names, request.per_person) if chosen is None else chosen[kept]
    rows = [portraits.row[labels.paths[row]] for row in kept]
    matcher = make_matcher(embedded.identity, settings.match.threshold)
    device = str(resolve_device(settings.run.device))
    return evaluate_identification(portraits.embeddings[rows], names, in_gallery, matcher, device)


def _about(request: IdentificationRequest, embedded: Embedded) -> dict[str, Any]:
    identity = embedded.identity
    return {
        "labels": shown(request.labels),
        "gallery": f"{request.per_person} per person" if request.per_person else "the column set",
        "embeddings_from": "the models" if request.store is None else shown(request.store),
        "photos": len(embedded.portraits.paths),
        "embedder": identity.embedder,
        "weights": identity.weights,
        "calibration": identity.calibration,
    }
