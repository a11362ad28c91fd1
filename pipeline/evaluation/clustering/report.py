"""`facepipe evaluate clustering`: compares labels with the identities of a store or of a table, as a report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pipeline.config import DecodeSettings, Settings, SourceSettings
from pipeline.errors import InputError, ManifestInvalid, UsageError
from pipeline.evaluation.clustering.measures import Agreement, ClusteringResult, Fault, evaluate_clustering
from pipeline.evaluation.photos.labels import read_labels
from pipeline.evaluation.pictures import Thumbnails
from pipeline.evaluation.report import NO_FACE, Report, Skipped, unusable
from pipeline.extraction.images.files import shown
from pipeline.extraction.sources.scan import scan_source, source_kind
from pipeline.jobs.accounts import find_account
from pipeline.jobs.store import Store, open_store
from pipeline.report.page import Picture, Row, Section, Table
from pipeline.types import Progress

_PICTURES = 30  # per table of faults
_MIXED = "Identities with the most pairs of faces of different people; one picture of each person in them."
_SPLIT = "People with the most pairs of faces in different identities; one picture from each of these."
_PAIRWISE = (
    "Of the pairs of faces in one identity, the share that shows one person (precision); of the pairs that show one "
    "person, the share in one identity (recall)."
)
_BCUBED = "The same for each face and its own identity or person, averaged over the faces."


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


@dataclass(frozen=True)
class PhotoIdentities:
    """The labelled photos that show a face, and its identity."""

    rows: list[int]  # [n] positions among the labelled photos
    identities: list[str | None]  # [n] None: the face is in no identity
    several_faces: int  # photos among these with more than one face
    unlabelled: int  # further photos with a face but without a label


def report_clustering(request: ClusteringRequest, progress: Progress) -> Report[ClusteringResult]:
    """Reads the labels, finds the identity of each photo's face, and compares them.

    Raises UsageError unless there is either a store or a table, SourceMissing, ManifestInvalid, InputError where
    nothing can be compared, StoreError.
    """
    source = request.store or request.clusters
    if source is None or None not in (request.store, request.clusters):
        raise UsageError(message="Give either --store DIR or --clusters FILE, where the identities are.")
    skipped = Skipped()
    progress.start("labels", None)
    labels = read_labels(request.labels, request.settings.source, skipped, advance=progress.advance)
    origin: dict[str, Any] = {"identities_from": shown(source), "weights": None}
    if request.clusters is not None:
        identities = table_identities(source, request.settings.source, labels.paths, skipped)
    else:
        with open_store(source, command="evaluate clustering") as store:
            _, account_id = find_account(store, request.account)
            identities = stored_identities(store, account_id, request.directory, labels.paths, skipped)
            origin |= {
                "directory": request.directory,
                "weights": store.identity.weights,
                "calibration": store.identity.calibration,
            }
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
    figures = {**_figures(result), **origin, **skipped.as_dict()}
    return Report(result, figures, [*sections, skipped.section()])


def stored_identities(
    store: Store, account_id: int, directory: str, paths: Sequence[str], skipped: Skipped
) -> PhotoIdentities:
    """The identities (of merged ones their roots) of the faces nearest the centres of the photos at `paths`.

    Counts photos that the directory does not have, photos without a face, and photos of deleted people in `skipped`.
    Raises StoreError, and InputError where the directory has none of them.
    """
    photos = {photo["path"]: photo for photo in store.photos("identities", account_id, directory).to_pylist()}
    if photos.keys().isdisjoint(paths):
        raise InputError(
            message=f'The directory "{directory}" of the store {store.path} holds none of the {len(paths):,} labelled '
            f"photos (such as {paths[0]}). Give the labels with the paths of the run, or another --directory."
        )
    rows = []
    for position, path in enumerate(paths):
        reason = unusable(photos.get(path)) or ("" if photos[path]["faces"] else NO_FACE)
        if reason:
            skipped.add(reason, path)
        else:
            rows.append(position)
    labelled = [photos[paths[row]] for row in rows]
    return PhotoIdentities(
        rows=rows,
        identities=[photo["identity"] for photo in labelled],
        several_faces=sum(photo["faces"] > 1 for photo in labelled),
        unlabelled=sum(photo["faces"] > 0 for photo in photos.values()) - len(rows),
    )


def table_identities(file: Path, settings: SourceSettings, paths: Sequence[str], skipped: Skipped) -> PhotoIdentities:
    """The identities of the photos at `paths` in a CSV, JSON Lines or Parquet file with the columns path and cluster.

    A photo with an empty cluster is in no identity. Relative paths start at the file's folder or at `settings.root`.
    Counts labelled photos that the file does not have in `skipped`. Raises SourceMissing, ManifestInvalid for a
    file without these columns and for a path in two clusters, and InputError where it has none of the photos.
    """
    cluster_of = _read_clusters(file, settings, skipped)
    labelled = set(paths)
    if labelled.isdisjoint(cluster_of):
        raise InputError(
            message=f"{shown(file)} holds none of the {len(paths):,} labelled photos (such as {paths[0]}). Relative "
            "paths start at the file's own folder; --root sets another one."
        )
    rows = []
    for position, path in enumerate(paths):
        if path in cluster_of:
            rows.append(position)
        else:
            skipped.add("not in the table of clusters", path)
    unlabelled = sum(path not in labelled for path in cluster_of)
    return PhotoIdentities(rows, [cluster_of[paths[row]] for row in rows], 0, unlabelled)


def _read_clusters(file: Path, settings: SourceSettings, skipped: Skipped) -> dict[str, str | None]:
    if source_kind(file) == "folder":
        raise ManifestInvalid(path=shown(file), detail="it is a folder, not a table with the columns path and cluster")
    clusters: dict[str, str | None] = {}
    for ref in scan_source(file, settings):
        if "cluster" not in ref.extra:
            raise ManifestInvalid(path=shown(file), detail='it has no column "cluster"')
        cluster = _cluster(ref.extra["cluster"])
        if ref.path in clusters and clusters[ref.path] != cluster:
            detail = f'{ref.path} is in the clusters "{clusters[ref.path]}" and "{cluster}"'
            raise ManifestInvalid(path=shown(file), detail=detail)
        if ref.path in clusters:
            skipped.add("the same path and cluster once more", ref.path)
        clusters[ref.path] = cluster
    return clusters


def _cluster(value: Any) -> str | None:
    """The cluster as text; None where it is empty. CSV has only texts, JSON and Parquet have numbers too."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return None if value is None or str(value).strip() == "" else str(value).strip()


def _figures(r: ClusteringResult) -> dict[str, Any]:
    """The result's plain values for JSON, the counts among them."""
    figures = asdict(r)
    for name in ("pairwise", "bcubed", "pairwise_with_ungrouped", "bcubed_with_ungrouped"):
        agreement: Agreement | None = getattr(r, name)
        figures[name] = None if agreement is None else agreement.as_dict()
    figures.update(figures.pop("counts"))
    return figures


def _sections(
    r: ClusteringResult, origin: Mapping[str, Any], photos: Mapping[str, Path], settings: DecodeSettings
) -> list[Section]:
    labels = (
        f"{origin['labelled_photos']:,} labelled photos, {origin['photos_with_several_faces']:,} of them with "
        f"several faces; {origin['unlabelled_photos']:,} further photos with a face have no label"
    )
    exact = (
        f"{r.counts['people_in_one_identity']:,} people are in one identity, "
        f"{r.counts['identities_of_one_person']:,} identities show one person, "
        f"{r.counts['people_found_exactly']:,} are exactly that"
    )
    agreement = [
        Row("faces", f"{r.faces:,} of {r.counts['people']:,} people in {r.counts['identities']:,} identities"),
        Row("", exact),
        Row("pairwise", described(r.pairwise), _PAIRWISE),
        Row("BCubed", described(r.bcubed), _BCUBED),
    ]
    if r.pairwise_with_ungrouped is not None and r.bcubed_with_ungrouped is not None:
        agreement += [
            Row("", f"with the {r.ungrouped:,} labelled faces that are in no identity, each alone:"),
            Row("pairwise", described(r.pairwise_with_ungrouped)),
            Row("BCubed", described(r.bcubed_with_ungrouped)),
        ]
    agreement.append(Row("labels", labels, "Of several faces, the one nearest the centre counts.", detail=True))
    return [
        Section("Agreement of people and identities", agreement),
        Section("Worst mixed identities", (), _MIXED, _faults(r.worst_mixed, photos, settings)),
        Section("Worst split people", (), _SPLIT, _faults(r.worst_split, photos, settings)),
    ]


def described(agreement: Agreement) -> str:
    return f"precision {agreement.precision:.4f}, recall {agreement.recall:.4f}, F {agreement.f:.4f}"


def _faults(faults: Sequence[Fault], photos: Mapping[str, Path], settings: DecodeSettings) -> Iterator[Table]:
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
    yield Table(("name", "faces", "parts", "wrong pairs", "the largest parts"), rows)
