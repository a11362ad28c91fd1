"""What is on the page of a run, or of a whole store."""

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
from pipeline.report.doubtful_pairs import WIDER_FMR
from pipeline.report.page import SHORT_ID, render
from pipeline.report.page_data import BIN, PEOPLE, PageData
from pipeline.report.pictures import FacePictures
from pipeline.store import StoreIdentity
from pipeline.types import QUALITIES

_LISTED: Final = 200  # lines of a table
_SCORE_END: Final = 1.6  # higher ones are drawn there

# What a report needs to be shown.
REPORTED: Final = frozenset(
    {"images", "statuses", "new", "changed", "already_in", "faces", "outcomes", "rejected", "persons", "new_persons"}
    | {"seconds", "decoded", "images_per_second"}
)
_COUNTS: Final = (  # of a report: what the scan found
    *("moved", "changed", "vanished", "back", "forgotten", "forgotten_missing", "too_many_missing"),
    *("labels_changed", "renamed", "relabelled", "unsettled", "faces_lost", "faces_gained", "people_deleted"),
)
# Lists of a report: their titles and columns. An entry is a mapping, or a path or two.
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
_KEYS: Final = {"person": "person_id", "photo": "path", "change": "change", "why": "reason"}  # of columns, in an entry
_NO_PHOTOS: Final = frozenset({"moved_sources", "left_out_folders"})  # whose paths are of folders
_PACKAGES: Final = ("facepipe", "torch", "openvino", "numpy", "pillow", "duckdb")


@dataclass(frozen=True)
class PageRequest:
    """What a page is about: this run of an account, or with None all that is in the store."""

    account_id: int
    run_id: str | None
    title: str
    source: str | None  # of the run
    report: Mapping[str, Any]  # as run.json has it; empty for a whole store
    match: MatchSettings
    with_people: bool  # pictures, names and paths


def subjects(report: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """The ids of the persons and the paths of the photos that a report mentions."""
    entries = [_subject(entry) for name in _LISTS.keys() - _NO_PHOTOS for entry in report.get(name, ())]
    return sorted({person for person, _ in entries if person}), sorted({path for _, path in entries if path})


def page_bytes(identity: StoreIdentity, request: PageRequest, data: PageData, pictures: FacePictures) -> bytes:
    """The page. Afterwards `pictures` has all persons and photos that are on it."""
    if request.with_people:
        pictures.person_ids.update(data.names)
        by_path = (row for table in ("weakest_matches", "refused_files", "media_at") for row in data.rows(table))
        pictures.media_ids.update(row["media_id"] for row in by_path)
    report, match = request.report, request.match
    return render(
        "run.html",
        request=request,
        data=data,
        totals=_totals(data),
        pictures=pictures,
        counted=_COUNTS,
        lists=_lists(report, data) if request.with_people else [],
        histograms=_histograms(data, request),
        identity=identity,
        anchor=Calibration.from_dict(identity.calibration).anchor,
        settings={k: json.dumps(v).strip("{}").replace('"', "") for k, v in identity.output_settings.items()},
        versions=f"{', '.join(_versions())}, Python {platform.python_version()}",
        again=_again(identity, match, request.source) if request.with_people and request.source is not None else None,
        short_id=SHORT_ID,
        most_people=PEOPLE,
        most_listed=_LISTED,
        pairs_of_strangers=1 / WIDER_FMR,
        bin=BIN,
    )


def _totals(data: PageData) -> dict[str, dict[str, int]]:
    """The counts of photos, faces and people, each by kind."""
    totals: dict[str, dict[str, int]] = {"photos": {}, "faces": {}, "people": {}}
    for row in data.rows("totals"):
        totals["photos" if row["kind"] == "images" else row["kind"]][row["name"]] = row["count"]
    return totals


def _lists(report: Mapping[str, Any], data: PageData) -> Iterator[tuple[str, Sequence[str], list[list[str]]]]:
    """Title, head and rows. Without persons who are gone, and paths at which the store has no photo any more: they may
    be forgotten."""
    known = {None, *data.names, *(row["path"] for row in data.rows("media_at"))}
    for name, (title, head) in _LISTS.items():
        entries = report.get(name, ())
        shown = [entry for entry in entries if name in _NO_PHOTOS or known.issuperset(_subject(entry))]
        yield title, head, [_cells(entry, head, data.names) for entry in shown]


def _histograms(data: PageData, request: PageRequest) -> Iterator[tuple[str, list[int], dict[str, float]]]:
    """Title, count of each bin, and marks."""
    counts: dict[str, dict[int, int]] = {}
    for row in data.rows("face_histograms"):
        counts.setdefault(row["measure"], {})[row["bin"]] = row["count"]
    gates = (request.match.min_cpq, request.match.min_fsq, request.match.min_fcq)
    for name, title, gate in zip(QUALITIES, ("Pose", "Sharpness", "Contrast"), gates, strict=True):
        yield title, _filled(counts.get(name, {}), 1.0), {"gate": gate}
    marks = {"match": 1.0}
    yield "Scores of the matches", _filled(counts.get("similarity_score", {}), _SCORE_END), marks
    if request.with_people:
        nearest = Counter(int(score / BIN) for score in data.doubts.nearest)
        marks = {"doubtful": data.doubts.wider_score, **marks}
        yield "Scores of each person with the most similar other", _filled(nearest, _SCORE_END), marks


def _again(identity: StoreIdentity, match: MatchSettings, source: str) -> str:
    """The command that brings the same photos into a new store."""
    words = ["facepipe", "run", source, "--store", "NEW", "--weights", identity.weights, "--mode", identity.mode]
    for name in ("threshold", "min_cpq", "min_fsq", "min_fcq"):
        value = getattr(match, name)
        if value != getattr(MatchSettings(), name):
            words += [f"--{name.replace('_', '-')}", f"{value:g}"]
    return shlex.join(words)


def _subject(entry: Any) -> tuple[str | None, str | None]:
    """The person, unless the run deleted it, and the photo that an entry is about; of a photo that moved the path where
    it is."""
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
    """A count for each bin from 0 to `end`; what is outside counts in the first and the last."""
    bins = round(end / BIN)
    filled = [0] * bins
    for number, count in counts.items():
        filled[min(max(number, 0), bins - 1)] += count
    return filled
