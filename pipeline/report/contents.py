"""The contents of a report."""

from __future__ import annotations

import json
import platform
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

from pipeline.config import MatchSettings
from pipeline.matching.calibration import Calibration
from pipeline.report.page import SHORT_ID, render
from pipeline.report.page_data import BIN, PEOPLE, TWICE, PageData
from pipeline.report.pictures import FacePictures
from pipeline.store import StoreIdentity
from pipeline.types import CENTER_POSE, CONTRAST, QUALITIES, SHARPNESS

_LISTED: Final = 200  # lines of a table
_SCORE_END: Final = 1.6  # higher ones are drawn there

# The fields required to show a run's report.
REPORTED: Final = frozenset(
    {"images", "statuses", "new", "changed", "already_in", "faces", "outcomes", "rejected", "persons", "new_persons"}
    | {"seconds", "decoded", "images_per_second"}
)
_COUNTS: Final = (  # the scan's counts
    *("moved", "changed", "vanished", "back", "forgotten", "forgotten_missing", "too_many_missing"),
    *("labels_changed", "labels_removed", "renamed", "relabelled", "unsettled"),
    *("faces_lost", "faces_gained", "people_deleted"),
)
# Titles and columns of a report's lists. An entry is a mapping, one path or two.
_LISTS: Final = {
    "moved_sources": ("Moved as a whole", ("from", "to")),
    "moved_files": ("Moved", ("from", "to")),
    "changed_files": ("Changed", ("photo",)),
    "face_changes": ("Who lost or gained a face, because a photo changed", ("person", "photo", "change")),
    "vanished_files": ("Vanished", ("photo",)),
    "renamed_persons": ("Renamed, because their label changed", ("person",)),
    "relabelled_faces": ("Others', because their label changed", ("person", "photo")),
    "unsettled_labels": ("Labels that were not followed", ("person", "photo", "why")),
    "label_conflicts": ("Photos whose label names somebody else", ("person", "photo")),
    "left_out_folders": ("Folders that were left out", ("folder",)),
}
_KEYS: Final = {"person": "person_id", "photo": "path", "change": "change", "why": "reason"}  # column -> entry's key
_REASONS: Final = {CENTER_POSE: "turned away", SHARPNESS: "not sharp", CONTRAST: "little contrast"}
_NO_PHOTOS: Final = frozenset({"moved_sources", "left_out_folders"})  # with paths of folders
_PACKAGES: Final = ("facepipe", "torch", "openvino", "numpy", "pillow", "duckdb")


@dataclass(frozen=True)
class PageRequest:
    """The subject of a page: this run of an account, or None for the whole store."""

    account_id: int
    run_id: str | None
    title: str
    source: str | None  # of the run
    report: Mapping[str, Any]  # as in run.json; empty for a whole store
    match: MatchSettings
    with_people: bool  # pictures, names and paths
    link: str | None  # the web UI's address


def subjects(report: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """The ids of persons and paths of photos that a report mentions."""
    entries = [_subject(entry) for name in _LISTS.keys() - _NO_PHOTOS for entry in report.get(name, ())]
    return sorted({person for person, _ in entries if person}), sorted({path for _, path in entries if path})


def page_bytes(identity: StoreIdentity, request: PageRequest, data: PageData, pictures: FacePictures) -> bytes:
    """Renders the page. Adds its persons and photos to `pictures`."""
    if request.with_people:
        pictures.person_ids.update(data.names)
        pictures.person_ids.update(row["person_id"] for row in data.rows("twice"))
        tables = ("weakest_matches", "refused_files", "media_at", "twice")
        by_path = (row for table in tables for row in data.rows(table))
        pictures.media_ids.update(row["media_id"] for row in by_path)
    report, match = request.report, request.match
    return render(
        "run.html",
        request=request,
        data=data,
        totals=_totals(data),
        pictures=pictures,
        counted=_COUNTS,
        reasons=_REASONS,
        lists=_lists(report, data) if request.with_people else [],
        histograms=_histograms(data, request),
        identity=identity,
        anchor=Calibration.from_dict(identity.calibration).anchor,
        settings={k: json.dumps(v).strip("{}").replace('"', "") for k, v in identity.output_settings.items()},
        versions=f"{', '.join(_versions())}, Python {platform.python_version()}",
        again=_again(identity, match, request.source) if request.with_people and request.source is not None else None,
        short_id=SHORT_ID,
        most_people=PEOPLE,
        most_twice=TWICE,
        most_listed=_LISTED,
        pictures_of={row["person_id"]: row for row in [*data.rows("people_seen"), *data.rows("pictures")]},
        bin=BIN,
    )


def _totals(data: PageData) -> dict[str, dict[str, int]]:
    """Counts by kind of photos, faces and people."""
    totals: dict[str, dict[str, int]] = {"photos": {}, "faces": {}, "people": {}}
    for row in data.rows("totals"):
        totals["photos" if row["kind"] == "images" else row["kind"]][row["name"]] = row["count"]
    return totals


def _lists(report: Mapping[str, Any], data: PageData) -> Iterator[tuple[str, Sequence[str], list[list[str]]]]:
    """Yields title, head and rows, without missing persons and photos, which may be forgotten."""
    known = {None, *data.names, *(row["path"] for row in data.rows("media_at"))}
    for name, (title, head) in _LISTS.items():
        entries = report.get(name, ())
        shown = [entry for entry in entries if name in _NO_PHOTOS or known.issuperset(_subject(entry))]
        yield title, head, [_cells(entry, head, data.names) for entry in shown]


def _histograms(data: PageData, request: PageRequest) -> Iterator[tuple[str, list[int], dict[str, float], str]]:
    """Yields title, count of each bin, marks, and what is counted."""
    counts: dict[str, dict[int, int]] = {}
    for row in data.rows("face_histograms"):
        counts.setdefault(row["measure"], {})[row["bin"]] = row["count"]
    gates = (request.match.min_cpq, request.match.min_fsq, request.match.min_fcq)
    for name, title, gate in zip(QUALITIES, ("Pose", "Sharpness", "Contrast"), gates, strict=True):
        yield title, _filled(counts.get(name, {}), 1.0), {"gate": gate}, "faces"
    marks = {"match": 1.0}
    yield "Scores of the matches", _filled(counts.get("similarity_score", {}), _SCORE_END), marks, "faces"
    if request.with_people:
        nearest = Counter(int(score / BIN) for score in data.nearest)
        yield "Scores of each person with the most similar other", _filled(nearest, _SCORE_END), marks, "people"


def _again(identity: StoreIdentity, match: MatchSettings, source: str) -> str:
    """The command that imports the photos into a new store."""
    words = ["facepipe", "run", source, "--store", "NEW", "--weights", identity.weights, "--mode", identity.mode]
    for name in ("threshold", "min_cpq", "min_fsq", "min_fcq"):
        value = getattr(match, name)
        if value != getattr(MatchSettings(), name):
            words += [f"--{name.replace('_', '-')}", f"{value:g}"]
    words += ["--once-per-photo"] if match.once_per_photo else []
    return shlex.join(words)


def _subject(entry: Any) -> tuple[str | None, str | None]:
    """Returns an entry's person, unless the run deleted it, and its photo; of a moved photo the new path."""
    if isinstance(entry, Mapping):
        return None if entry.get("change") == "deleted" else entry.get("person_id"), entry.get("path")
    return None, entry if isinstance(entry, str) else entry[-1]


def _cells(entry: Any, head: Sequence[str], names: Mapping[str, str | None]) -> list[str]:
    if isinstance(entry, Mapping):
        person_id = entry.get("person_id")
        who = " · ".join(filter(None, (names.get(person_id), person_id[:SHORT_ID]))) if person_id else "nobody"
        known = {**entry, "person_id": who}
        return [str(known.get(_KEYS[column]) or "") for column in head]
    return [entry] if isinstance(entry, str) else [str(path) for path in entry]


def _versions() -> Iterator[str]:
    for package in _PACKAGES:
        with suppress(PackageNotFoundError):
            yield f"{package} {version(package)}"


def _filled(counts: Mapping[int, int], end: float) -> list[int]:
    """A count per bin from 0 to `end`; other values are in the first or last one."""
    bins = round(end / BIN)
    filled = [0] * bins
    for number, count in counts.items():
        filled[min(max(number, 0), bins - 1)] += count
    return filled
