"""The identity of each labelled photo, from a store or from a table that another tool wrote."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pipeline.config import SourceSettings
from pipeline.errors import InputError, ManifestInvalid
from pipeline.evaluation.photos.skipped import NOT_IN_STORE, Skipped, unusable
from pipeline.extraction.images.files import shown
from pipeline.extraction.sources.scan import scan_source, source_kind
from pipeline.store.operations import Store

CLUSTER: Final = "cluster"


@dataclass(frozen=True)
class PhotoIdentities:
    """The labelled photos that show a face, and its identity."""

    rows: list[int]  # [n] positions among the labelled photos
    identities: list[str | None]  # [n] None: the face is in no identity
    several_faces: int  # photos among these with more than one face
    unlabelled: int  # further photos with a face but without a label


def stored_identities(
    store: Store, account_id: int, directory: str, paths: Sequence[str], skipped: Skipped
) -> PhotoIdentities:
    """The identities (of merged ones their roots) of the faces nearest the centres of the photos at `paths`.

    Counts photos that the directory does not have, photos without a face, and photos of deleted people in `skipped`.
    Raises StoreError, and InputError where the directory has none of them.
    """
    table = store.central_identities(account_id, directory)
    row_of = {path: row for row, path in enumerate(table["path"].to_pylist())}
    if not any(path in row_of for path in paths):
        raise InputError(
            message=f'The directory "{directory}" of the store {store.path} holds none of the {len(paths):,} labelled '
            f"photos (such as {paths[0]}). Give the labels with the paths of the run, or another --directory."
        )
    columns = {name: table[name].to_pylist() for name in table.column_names}
    rows = _rows_with_faces(columns, row_of, paths, skipped)
    stored = [row_of[paths[row]] for row in rows]
    return PhotoIdentities(
        rows=rows,
        identities=[columns["identity"][row] for row in stored],
        several_faces=sum(columns["faces"][row] > 1 for row in stored),
        unlabelled=sum(count > 0 for count in columns["faces"]) - len(rows),
    )


def _rows_with_faces(
    columns: dict[str, list[Any]], row_of: dict[str, int], paths: Sequence[str], skipped: Skipped
) -> list[int]:
    """The positions in `paths` of the photos with a face; the others are counted in `skipped`."""
    rows = []
    for position, path in enumerate(paths):
        row = row_of.get(path)
        reason = NOT_IN_STORE if row is None else _reason_to_skip(columns, row)
        if reason is None:
            rows.append(position)
        else:
            skipped.add(reason, path)
    return rows


def _reason_to_skip(columns: dict[str, list[Any]], row: int) -> str | None:
    """None where the photo at `row` has a face to compare."""
    reason = unusable(columns["status"][row], columns["reason"][row], columns["deleted"][row])
    return "no face found" if reason is None and not columns["faces"][row] else reason


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
        if CLUSTER not in ref.extra:
            raise ManifestInvalid(path=shown(file), detail=f'it has no column "{CLUSTER}"')
        cluster = _cluster(ref.extra[CLUSTER])
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
