"""`facepipe evaluate clustering`: compares labels with the identities of a store or a table, as a report."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pipeline.config import DecodeSettings, Settings
from pipeline.errors import UsageError
from pipeline.evaluation.clustering.identities import PhotoIdentities, stored_identities, table_identities
from pipeline.evaluation.clustering.measures import Agreement, ClusteringResult, Fault, evaluate_clustering
from pipeline.evaluation.pages.report import Picture, Report, Row, Section, Table, values_of
from pipeline.evaluation.pages.thumbnails import Thumbnails
from pipeline.evaluation.photos.labels import LabelledPhotos, read_labels
from pipeline.evaluation.photos.skipped import Skipped
from pipeline.extraction.images.files import shown
from pipeline.jobs.accounts import find_account
from pipeline.store.connect import open_store
from pipeline.types import Progress


@dataclass(frozen=True)
class ClusteringRequest:
    """Compare `labels` (a manifest, or a folder with one subfolder per person) with the identities in `store` or in the
    table `clusters`."""

    labels: Path
    settings: Settings
    store: Path | None = None
    account: str | None = None
    directory: str = "main"
    clusters: Path | None = None


_PICTURES = 30  # per table of faults
_MIXED = "Identities with the most pairs of faces of different people; one picture of each person in them."
_SPLIT = "People with the most pairs of faces in different identities; one picture from each of these."
_PAIRWISE = (
    "Of the pairs of faces in one identity, the share that shows one person (precision); of the pairs that show one "
    "person, the share in one identity (recall)."
)
_BCUBED = "The same for each face and its own identity or person, averaged over the faces."


def _sections(
    r: ClusteringResult, origin: Mapping[str, Any], photos: Mapping[str, Path], settings: DecodeSettings
) -> list[Section]:
    agreement = [
        *_counts(r),
        Row("pairwise", described(r.pairwise), {"pairwise": r.pairwise.as_dict()}, _PAIRWISE),
        Row("BCubed", described(r.bcubed), {"bcubed": r.bcubed.as_dict()}, _BCUBED),
        *_with_ungrouped(r),
        Row(
            "labels",
            f"{origin['labelled_photos']:,} labelled photos, {origin['photos_with_several_faces']:,} of them with "
            f"several faces; {origin['unlabelled_photos']:,} further photos with a face have no label",
            origin,
            "Of several faces, the one nearest the centre counts.",
            detail=True,
        ),
    ]
    mixed = [Row(values={"worst_mixed": [asdict(fault) for fault in r.worst_mixed]})]
    split = [Row(values={"worst_split": [asdict(fault) for fault in r.worst_split]})]
    return [
        Section("Agreement of people and identities", agreement),
        Section("Worst mixed identities", mixed, _MIXED, lambda: _faults(r.worst_mixed, photos, settings)),
        Section("Worst split people", split, _SPLIT, lambda: _faults(r.worst_split, photos, settings)),
    ]


def _counts(r: ClusteringResult) -> list[Row]:
    faces = f"{r.faces:,} of {r.counts['people']:,} people in {r.counts['identities']:,} identities"
    exact = (
        f"{r.counts['people_in_one_identity']:,} people are in one identity, "
        f"{r.counts['identities_of_one_person']:,} identities show one person, "
        f"{r.counts['people_found_exactly']:,} are exactly that"
    )
    return [Row("faces", faces, {"faces": r.faces, **r.counts}), Row("", exact)]


def _with_ungrouped(r: ClusteringResult) -> list[Row]:
    """The measures with each labelled face that is in no identity as an identity of its own."""
    pairwise, bcubed = r.pairwise_with_ungrouped, r.bcubed_with_ungrouped
    if pairwise is None or bcubed is None:
        return [Row(values=values_of(r, "ungrouped", "pairwise_with_ungrouped", "bcubed_with_ungrouped"))]
    text = f"with the {r.ungrouped:,} labelled faces that are in no identity, each alone:"
    return [
        Row("", text, values_of(r, "ungrouped")),
        Row("pairwise", described(pairwise), {"pairwise_with_ungrouped": pairwise.as_dict()}),
        Row("BCubed", described(bcubed), {"bcubed_with_ungrouped": bcubed.as_dict()}),
    ]


def described(agreement: Agreement) -> str:
    return f"precision {agreement.precision:.4f}, recall {agreement.recall:.4f}, F {agreement.f:.4f}"


def _faults(faults: Sequence[Fault], photos: Mapping[str, Path], settings: DecodeSettings) -> Table:
    thumbnails = Thumbnails(photos, settings, _PICTURES)
    rows = [
        (
            fault.name,
            f"{fault.faces:,}",
            f"{fault.parts_in_all:,}",
            f"{fault.wrong_pairs:,}",
            [Picture(thumbnails.of(part.images[0]), f"{part.name}: {part.faces:,}") for part in fault.parts],
        )
        for fault in faults
    ]
    return Table(("name", "faces", "parts", "wrong pairs", "the largest parts"), rows)


def report_clustering(request: ClusteringRequest, progress: Progress) -> Report[ClusteringResult]:
    """Reads the labels, finds the identity of each photo's face, and compares them.

    Raises UsageError unless there is either a store or a table, SourceMissing, ManifestInvalid, InputError where
    nothing can be compared, StoreError.
    """
    lookup = _lookup(request)
    skipped = Skipped()
    progress.start("labels", None)
    labels = read_labels(request.labels, request.settings.source, skipped, advance=progress.advance)
    identities, origin = lookup(labels, skipped)
    paths, people = ([texts[row] for row in identities.rows] for texts in (labels.paths, labels.names))
    origin |= {
        "labels": shown(request.labels),
        "labelled_photos": len(labels),
        "photos_with_several_faces": identities.several_faces,
        "unlabelled_photos": identities.unlabelled,
    }
    with skipped.explaining():
        result = evaluate_clustering(paths, people, identities.identities)
    sections = _sections(result, origin, labels.files, request.settings.decode)
    return Report(result, [*sections, skipped.section()])


def _lookup(request: ClusteringRequest) -> Callable[[LabelledPhotos, Skipped], tuple[PhotoIdentities, dict[str, Any]]]:
    """The source of the identities; checked before the labels are read, which may take long."""
    if request.store is not None and request.clusters is None:
        return partial(_from_store, request, request.store)
    if request.clusters is not None and request.store is None:
        return partial(_from_table, request, request.clusters)
    raise UsageError(message="Give either --store DIR or --clusters FILE, where the identities are.")


def _from_table(
    request: ClusteringRequest, file: Path, labels: LabelledPhotos, skipped: Skipped
) -> tuple[PhotoIdentities, dict[str, Any]]:
    identities = table_identities(file, request.settings.source, labels.paths, skipped)
    return identities, {"identities_from": shown(file)}


def _from_store(
    request: ClusteringRequest, store: Path, labels: LabelledPhotos, skipped: Skipped
) -> tuple[PhotoIdentities, dict[str, Any]]:
    with open_store(store, command="evaluate clustering") as opened:
        _, account_id = find_account(opened, request.account)
        identities = stored_identities(opened, account_id, request.directory, labels.paths, skipped)
        origin = {
            "identities_from": shown(store),
            "directory": request.directory,
            "weights": opened.identity.weights,
            "calibration": opened.identity.calibration,
        }
        return identities, origin
