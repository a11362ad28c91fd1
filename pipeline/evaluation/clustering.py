"""Measures of a clustering against labels: how well identities fit people.

All come from the contingency table (how many faces of person i are in identity j), not from the pairs. It has at most
as many cells as faces, so a million faces take seconds.

Pairwise: of the pairs of faces in one identity, the share that shows one person (precision), and of the pairs that show
one person, the share in one identity (recall). BCubed: the same shares for each face and its own identity or person,
itself included, averaged over the faces (Bagga and Baldwin 1998, "Entity-based cross-document coreferencing using the
vector space model"; Amigó et al. 2009, "A comparison of extrinsic clustering evaluation metrics based on formal
constraints"). Pairwise measures weigh a person by the square of their photos, BCubed by their number.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from PIL import Image

from pipeline.config import DecodeSettings, Settings, SourceSettings
from pipeline.errors import ImageRejected, InputError, ManifestInvalid, UsageError
from pipeline.evaluation.labels import numbered, read_labels
from pipeline.evaluation.report import NO_FACE, Picture, Report, Row, Section, Skipped, Table, unusable
from pipeline.extraction.images.decode import decode_image
from pipeline.extraction.images.files import read_file
from pipeline.extraction.sources.scan import scan_source, source_kind
from pipeline.jobs.accounts import find_account
from pipeline.jobs.store import Store, store_at
from pipeline.report.pictures import small_copy
from pipeline.texts import path_text
from pipeline.types import IntArray, Progress

LISTED: Final = 10  # worst identities and people
PARTS: Final = 6  # of each, with up to
IMAGES: Final = 3  # images each
_PICTURES = 30  # per table of faults
_MIXED = "Identities with the most pairs of faces of different people; one picture of each person in them."
_SPLIT = "People with the most pairs of faces in different identities; one picture from each of these."
_PAIRWISE = (
    "Of the pairs of faces in one identity, the share that shows one person (precision); of the pairs that show one "
    "person, the share in one identity (recall)."
)
_BCUBED = "The same for each face and its own identity or person, averaged over the faces."


@dataclass(frozen=True)
class Agreement:
    """Precision and recall in [0, 1]; NaN if no pair exists."""

    precision: float
    recall: float
    f: float  # their harmonic mean

    @classmethod
    def of(cls, precision: float, recall: float) -> Agreement:
        total = precision + recall
        return cls(precision, recall, 2 * precision * recall / total if total else 0.0)


@dataclass(frozen=True)
class Contingency:
    """The contingency table of people and identities: its non-empty cells, and its margins."""

    people: IntArray  # [c] the cell's person
    identities: IntArray  # [c] the cell's identity
    counts: IntArray  # [c] faces in it, 1 or more
    person_sizes: IntArray  # [p] faces of each person
    identity_sizes: IntArray  # [k] faces in each identity

    @classmethod
    def of(cls, people: IntArray, identities: IntArray) -> Contingency:
        """Builds the table from n >= 1 faces: their person [n] and identity [n], both numbered from 0 without gaps."""
        width = int(identities.max()) + 1
        cells, counts = np.unique(people * width + identities, return_counts=True)
        return cls(cells // width, cells % width, counts, np.bincount(people), np.bincount(identities))

    def pairwise(self) -> Agreement:
        """Precision is NaN if no two faces are in one identity, recall if no two show one person."""
        both = _pairs(self.counts).sum()
        return Agreement.of(
            _share(both, _pairs(self.identity_sizes).sum()), _share(both, _pairs(self.person_sizes).sum())
        )

    def bcubed(self) -> Agreement:
        squares, faces = self.counts.astype(np.float64) ** 2, self.counts.sum()
        precision = (squares / self.identity_sizes[self.identities]).sum() / faces
        recall = (squares / self.person_sizes[self.people]).sum() / faces
        return Agreement.of(float(precision), float(recall))

    def counted(self) -> dict[str, int]:
        """People and identities, and how many match exactly or in one direction."""
        pure = np.bincount(self.identities) == 1
        together = np.bincount(self.people) == 1
        return {
            "people": len(self.person_sizes),
            "identities": len(self.identity_sizes),
            "people_in_one_identity": int(together.sum()),
            "identities_of_one_person": int(pure.sum()),
            "people_found_exactly": int((together[self.people] & pure[self.identities]).sum()),
        }

    def wrongly_joined(self) -> IntArray:
        """[k] for each identity, the pairs of faces of two people."""
        return _pairs(self.identity_sizes) - _summed(self.identities, _pairs(self.counts))

    def wrongly_parted(self) -> IntArray:
        """[p] for each person, the pairs of faces in two identities."""
        return _pairs(self.person_sizes) - _summed(self.people, _pairs(self.counts))


def _pairs(counts: IntArray) -> IntArray:
    return counts * (counts - 1) // 2


def _summed(groups: IntArray, values: IntArray) -> IntArray:
    """The sum of `values` in each group. `bincount` would add as float64, inexact beyond 2^53."""
    sums = np.zeros(int(groups.max()) + 1, dtype=np.int64)
    np.add.at(sums, groups, values)
    return sums


def _share(part: float, total: float) -> float:
    return float(part / total) if total else math.nan


@dataclass(frozen=True)
class Part:
    """One person's faces in one identity; `name`: the person in a mixed identity, the identity of a split person."""

    name: str
    faces: int
    images: tuple[str, ...]  # the first few paths


@dataclass(frozen=True)
class Fault:
    """An identity that mixes people, or a person split over identities."""

    name: str
    faces: int
    wrong_pairs: int  # of faces, wrongly joined or wrongly split
    parts_in_all: int
    parts: tuple[Part, ...]  # the largest first


@dataclass(frozen=True)
class ClusteringResult:
    """The result of `evaluate_clustering`."""

    faces: int  # labelled, in an identity
    pairwise: Agreement
    bcubed: Agreement
    counts: dict[str, int]  # `Contingency.counted`
    ungrouped: int  # labelled faces in none
    # The same with each ungrouped face as its own identity; None if there are none.
    pairwise_with_ungrouped: Agreement | None
    bcubed_with_ungrouped: Agreement | None
    worst_mixed: tuple[Fault, ...]
    worst_split: tuple[Fault, ...]


def evaluate_clustering(
    paths: Sequence[str], people: Sequence[str], identities: Sequence[str | None]
) -> ClusteringResult:
    """Compares n labelled faces: the image's path [n], the person [n], and the identity [n] (None: in none).

    Raises InputError if no labelled face is in an identity.
    """
    grouped = [row for row, identity in enumerate(identities) if identity is not None]
    if not grouped:
        raise InputError(message="No labelled face is in an identity, so there is nothing to compare.")
    names, person = numbered([people[i] for i in grouped])
    keys, identity = numbered([str(identities[i]) for i in grouped])
    table = Contingency.of(person, identity)
    ungrouped = len(people) - len(grouped)
    with_ungrouped = _with_singletons(people, identities) if ungrouped else None
    images = [paths[i] for i in grouped]
    return ClusteringResult(
        faces=len(grouped),
        pairwise=table.pairwise(),
        bcubed=table.bcubed(),
        counts=table.counted(),
        ungrouped=ungrouped,
        pairwise_with_ungrouped=with_ungrouped.pairwise() if with_ungrouped else None,
        bcubed_with_ungrouped=with_ungrouped.bcubed() if with_ungrouped else None,
        worst_mixed=_worst(table.wrongly_joined(), identity, keys, person, names, images),
        worst_split=_worst(table.wrongly_parted(), person, names, identity, keys, images),
    )


def _with_singletons(people: Sequence[str], identities: Sequence[str | None]) -> Contingency:
    keys = [row if identity is None else identity for row, identity in enumerate(identities)]
    return Contingency.of(numbered(people)[1], numbered(keys)[1])


def _worst(
    wrong: IntArray, groups: IntArray, group_names: list[str], parts: IntArray, part_names: list[str], paths: list[str]
) -> tuple[Fault, ...]:
    """The groups with the most wrong pairs, at least one."""
    order = np.argsort(-wrong, kind="stable")[:LISTED]
    return tuple(
        _fault(group_names[group], int(wrong[group]), np.flatnonzero(groups == group), parts, part_names, paths)
        for group in order[wrong[order] > 0].tolist()
    )


def _fault(name: str, wrong: int, members: IntArray, parts: IntArray, part_names: list[str], paths: list[str]) -> Fault:
    distinct, counts = np.unique(parts[members], return_counts=True)
    largest = np.argsort(-counts, kind="stable")[:PARTS]
    listed = (
        Part(
            part_names[distinct[k]],
            int(counts[k]),
            tuple(paths[i] for i in members[parts[members] == distinct[k]][:IMAGES]),
        )
        for k in largest
    )
    return Fault(name, len(members), wrong, len(distinct), tuple(listed))


@dataclass(frozen=True)
class PhotoIdentities:
    """The labelled photos that show a face, and its identity."""

    rows: list[int]  # [n] positions among the labelled photos
    identities: list[str | None]  # [n] None: the face is in no identity
    several_faces: int  # photos among these with more than one face
    unlabelled: int  # further photos with a face but without a label


def report_clustering(
    source: Path,
    settings: Settings,
    progress: Progress,
    *,
    store: Path | Store | None = None,
    account: str | None = None,
    directory: str = "main",
    clusters: Path | None = None,
) -> Report[ClusteringResult]:
    """Compares labels (a manifest, or a folder with one subfolder per person) with the photos' identities in `store` or
    in the table `clusters`.

    Raises UsageError unless there is exactly one of these, SourceMissing, ManifestInvalid, InputError if nothing can be
    compared, StoreError.
    """
    if (store is None) == (clusters is None):
        raise UsageError(message="Give either --store DIR or --clusters FILE, where the identities are.")
    skipped = Skipped()
    progress.start("labels", None)
    labels = read_labels(source, settings.source, skipped, advance=progress.advance)
    figures: dict[str, Any] = {"weights": None}
    if store is None:
        assert clusters is not None
        found, origin = table_identities(clusters, settings.source, labels.paths, skipped), clusters
    else:
        with store_at(store, "evaluate clustering") as opened:
            origin, account_id = opened.path, find_account(opened, account).account_id
            found = stored_identities(opened, account_id, directory, labels.paths, skipped)
            identity = opened.identity
        figures |= {"directory": directory, "weights": identity.weights, "calibration": identity.calibration}
    paths, people = ([texts[row] for row in found.rows] for texts in (labels.paths, labels.names))
    figures |= {
        "identities_from": path_text(origin),
        "labels": path_text(source),
        "labelled_photos": len(labels.paths),
        "photos_with_several_faces": found.several_faces,
        "unlabelled_photos": found.unlabelled,
    }
    with skipped.explaining():
        result = evaluate_clustering(paths, people, found.identities)
    sections = [*_sections(result, figures, labels.files, settings.decode), skipped.section()]
    measured = asdict(result)
    measured |= measured.pop("counts")
    return Report(result, {**measured, **figures, **skipped.as_dict()}, sections)


def stored_identities(
    store: Store, account_id: int, directory: str, paths: Sequence[str], skipped: Skipped
) -> PhotoIdentities:
    """The identities (roots if merged) of the faces nearest the centres of the photos at `paths`.

    Counts photos missing from the directory, without a face, or of deleted people in `skipped`. Raises StoreError, and
    InputError if the directory has none of them.
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
    Counts labelled photos missing from the file in `skipped`. Raises SourceMissing, ManifestInvalid if a column is
    missing or a path is in two clusters, and InputError if it has none of the photos.
    """
    cluster_of = _read_clusters(file, settings, skipped)
    labelled = set(paths)
    if labelled.isdisjoint(cluster_of):
        raise InputError(
            message=f"{path_text(file)} holds none of the {len(paths):,} labelled photos (such as {paths[0]}). "
            "Relative paths start at the file's own folder; --root sets another one."
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
        raise ManifestInvalid(
            path=path_text(file), detail="it is a folder, not a table with the columns path and cluster"
        )
    clusters: dict[str, str | None] = {}
    for ref in scan_source(file, settings):
        if "cluster" not in ref.extra:
            raise ManifestInvalid(path=path_text(file), detail='it has no column "cluster"')
        cluster = _cluster(ref.extra["cluster"])
        if ref.path in clusters and clusters[ref.path] != cluster:
            detail = f'{ref.path} is in the clusters "{clusters[ref.path]}" and "{cluster}"'
            raise ManifestInvalid(path=path_text(file), detail=detail)
        if ref.path in clusters:
            skipped.add("the same path and cluster once more", ref.path)
        clusters[ref.path] = cluster
    return clusters


def _cluster(value: Any) -> str | None:
    """The cluster as text; None if empty. JSON and Parquet may have numbers."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return None if value is None or str(value).strip() == "" else str(value).strip()


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


@dataclass
class Thumbnails:
    """Makes small copies of at most `limit` images, to keep the page small."""

    files: Mapping[str, Path]
    settings: DecodeSettings
    limit: int

    def of(self, path: str) -> str | None:
        """The image at `path`, with sides up to SIDE_PX, as a JPEG in a `data:` address; None if missing, unreadable,
        or beyond the limit."""
        file = self.files.get(path)
        if file is None or self.limit < 1:
            return None
        try:
            decoded = decode_image(read_file(file, self.settings.max_bytes), self.settings)
        except ImageRejected:
            return None
        self.limit -= 1
        return small_copy(Image.fromarray(decoded.pixels))


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
