"""`facepipe evaluate clustering`: labels against the identities of a store or a table, as a report."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pipeline.config import DecodeSettings, Settings
from pipeline.errors import UsageError
from pipeline.evaluation.clustering.grouped import Grouped, from_store, from_table
from pipeline.evaluation.clustering.measures import Agreement, ClusteringResult, Fault, evaluate_clustering
from pipeline.evaluation.clustering.thumbnails import Thumbnails
from pipeline.evaluation.pages.page import Picture, Section, Table
from pipeline.evaluation.photos.labels import LabelledPhotos, read_labels
from pipeline.evaluation.photos.skipped import Skipped
from pipeline.extraction.images.files import shown
from pipeline.jobs.stores import find_account
from pipeline.store.connect import open_store
from pipeline.types import Progress


@dataclass(frozen=True)
class ClusteringRequest:
    """What is to be compared: `labels` (a manifest, or a folder with one subfolder per person) with the identities
    in `store` or in the table `clusters`."""

    labels: Path
    settings: Settings
    store: Path | None = None
    account: str | None = None
    directory: str = "main"
    clusters: Path | None = None


@dataclass(frozen=True)
class ClusteringReport:
    """The result, what it was made of, and what was left out."""

    result: ClusteringResult
    about: dict[str, Any]
    skipped: Skipped
    files: dict[str, Path]  # of the labelled photos that are there

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {**self.result.as_dict(), **self.about, **self.skipped.as_dict()}

    def lines(self) -> Iterator[str]:
        """For people."""
        result, counts = self.result, self.result.counts
        yield f"faces       {result.faces:,} of {counts['people']:,} people in {counts['identities']:,} identities"
        yield (
            f"            {counts['people_in_one_identity']:,} people are in one identity, "
            f"{counts['identities_of_one_person']:,} identities show one person, "
            f"{counts['people_found_exactly']:,} are exactly that"
        )
        yield f"pairwise    {described(result.pairwise)}"
        yield f"BCubed      {described(result.bcubed)}"
        if result.pairwise_with_ungrouped is not None and result.bcubed_with_ungrouped is not None:
            yield f"            with the {result.ungrouped:,} labelled faces that are in no identity, each alone:"
            yield f"pairwise    {described(result.pairwise_with_ungrouped)}"
            yield f"BCubed      {described(result.bcubed_with_ungrouped)}"
        yield from self.skipped.lines()

    def sections(self, settings: DecodeSettings) -> Iterator[Section]:
        """For a page; `settings` are those of decoding its pictures."""
        yield Section("Agreement of people and identities", _TEXT, _agreements(self.result))
        yield Section("Counts", "", _counts(self))
        yield from _faults("Worst mixed identities", _MIXED, self.result.worst_mixed, self.files, settings)
        yield from _faults("Worst split people", _SPLIT, self.result.worst_split, self.files, settings)
        yield from self.skipped.sections()


_PICTURES = 30  # in each of the two tables of faults
_TEXT = (
    "Pairwise: of the pairs of faces in one identity, the share that shows one person (precision); of the pairs that "
    "show one person, the share in one identity (recall). BCubed: the same for each face and its own identity or "
    "person, averaged over the faces."
)
_MIXED = "Identities with the most pairs of faces of different people; one picture of each person in them."
_SPLIT = "People with the most pairs of faces in different identities; one picture from each of these."


def _agreements(result: ClusteringResult) -> Table:
    rows = {
        "pairwise": result.pairwise,
        "BCubed": result.bcubed,
        "pairwise, each face in no identity alone": result.pairwise_with_ungrouped,
        "BCubed, each face in no identity alone": result.bcubed_with_ungrouped,
    }
    shown_rows = [
        (name, f"{each.precision:.4f}", f"{each.recall:.4f}", f"{each.f:.4f}") for name, each in rows.items() if each
    ]
    return Table(("measure", "precision", "recall", "F"), shown_rows)


def _counts(report: ClusteringReport) -> Table:
    result, about = report.result, report.about
    rows = {
        "labelled photos": about["labelled_photos"],
        "labelled faces in an identity": result.faces,
        "labelled faces in no identity": result.ungrouped,
        **{name.replace("_", " "): count for name, count in result.counts.items()},
        "labelled photos with several faces (the one nearest the centre counts)": about["photos_with_several_faces"],
        "further photos with a face, without a label": about["unlabelled_photos"],
    }
    return Table(("what", "number"), [(name, f"{count:,}") for name, count in rows.items()])


def _faults(
    title: str, text: str, faults: Sequence[Fault], files: dict[str, Path], settings: DecodeSettings
) -> Iterator[Section]:
    if not faults:
        return
    thumbnails = Thumbnails(files, settings, _PICTURES)
    rows = [
        (each.name, f"{each.faces:,}", f"{each.parts_in_all:,}", f"{each.wrong_pairs:,}", _pictures(each, thumbnails))
        for each in faults
    ]
    yield Section(title, text, Table(("name", "faces", "parts", "wrong pairs", "the largest parts"), rows))


def _pictures(fault: Fault, thumbnails: Thumbnails) -> list[Picture]:
    return [Picture(thumbnails.of(part.images[0]), f"{part.name}: {part.faces:,}") for part in fault.parts]


def described(agreement: Agreement) -> str:
    return f"precision {agreement.precision:.4f}, recall {agreement.recall:.4f}, F {agreement.f:.4f}"


def report_clustering(request: ClusteringRequest, progress: Progress) -> ClusteringReport:
    """Reads the labels, finds the identity of each photo's face, and compares them.

    Raises UsageError unless there is either a store or a table, SourceMissing, ManifestInvalid, InputError where
    nothing can be compared, StoreError.
    """
    lookup = _lookup(request)
    skipped = Skipped()
    progress.start("labels", None)
    labels = read_labels(request.labels, request.settings.source, skipped, advance=progress.advance)
    grouped, about = lookup(labels, skipped)
    paths, people = ([texts[row] for row in grouped.rows] for texts in (labels.paths, labels.names))
    about |= {
        "labels": shown(request.labels),
        "labelled_photos": len(labels),
        "photos_with_several_faces": grouped.several_faces,
        "unlabelled_photos": grouped.unlabelled,
    }
    with skipped.explaining():
        result = evaluate_clustering(paths, people, grouped.identities)
    return ClusteringReport(result, about, skipped, labels.files)


def _lookup(request: ClusteringRequest) -> Callable[[LabelledPhotos, Skipped], tuple[Grouped, dict[str, Any]]]:
    """How identities are found; settled before the labels are read, which may take long."""
    if request.store is not None and request.clusters is None:
        return partial(_from_store, request, request.store)
    if request.clusters is not None and request.store is None:
        return partial(_from_table, request, request.clusters)
    raise UsageError(message="Give either --store DIR or --clusters FILE: where the identities are.")


def _from_table(
    request: ClusteringRequest, file: Path, labels: LabelledPhotos, skipped: Skipped
) -> tuple[Grouped, dict[str, Any]]:
    grouped = from_table(file, request.settings.source, labels.paths, skipped)
    return grouped, {"identities_from": shown(file)}


def _from_store(
    request: ClusteringRequest, store: Path, labels: LabelledPhotos, skipped: Skipped
) -> tuple[Grouped, dict[str, Any]]:
    with open_store(store, command="evaluate clustering") as opened:
        _, account_id = find_account(opened, request.account)
        grouped = from_store(opened, account_id, request.directory, labels.paths, skipped)
        about = {
            "identities_from": shown(store),
            "directory": request.directory,
            "weights": opened.identity.weights,
            "calibration": opened.identity.calibration,
        }
        return grouped, about
