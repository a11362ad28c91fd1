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
from itertools import groupby
from typing import Any, Final

from pipeline.config import MatchSettings
from pipeline.matching.calibration import Calibration
from pipeline.report.doubtful_pairs import WIDER_FMR
from pipeline.report.page import SHORT_ID, Bars, Cell, Picture, Row, Section, Sheet, Table, listed
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
_QUALITY_NAMES: Final = dict(zip(QUALITIES, ("Pose", "Sharpness", "Contrast"), strict=True))
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


@dataclass(frozen=True)
class Contents:
    """The contents of a requested page. Its sections are made one after another, as the page is written."""

    identity: StoreIdentity
    request: PageRequest
    data: PageData
    pictures: FacePictures

    def sections(self) -> Iterator[Section]:
        yield Section("In short", [*(self._overview() if self.request.report else self._totals())])
        if self.request.with_people:
            yield Section(
                "People",
                text=f"The {PEOPLE} whom most photos show. Commands take the first letters of a name or an id.",
                parts=self._people(),
            )
            yield Section(
                "Perhaps one person",
                text="Two people whose faces are nearly a match, or are one: they score above "
                f"{self.data.doubts.wider_score:.3f}, as one in {1 / WIDER_FMR:,.0f} pairs of strangers does. "
                "`facepipe people merge ID ID` makes them one; `not-same` says that they are two, and they are not "
                "shown again.",
                parts=self._pairs(),
            )
            yield Section(
                "The weakest matches",
                text="Just above the threshold: the face, and the person that it was given to. `facepipe people move` "
                "gives a face to somebody else.",
                parts=self._weakest(),
            )
            yield Section(
                "Rejected faces",
                text="They match nobody, and are too poor for a new person to be known by. By the reason.",
                parts=self._rejected(),
            )
            yield Section("Photos that could not be used", parts=[self._refused()])
        counts = {name: self.request.report.get(name) for name in _COUNTS}
        changes = [Row(name.replace("_", " "), f"{count:,}") for name, count in counts.items() if count]
        yield Section("What changed since the last run", changes)
        if self.request.with_people:
            yield from self._lists()
        left = {"files": self.request.report.get("left_alone"), "folders": self.request.report.get("left_out")}
        yield Section("Left alone", [Row(label, listed(kinds)) for label, kinds in left.items() if kinds])
        yield Section(
            "Quality and scores",
            text="How many faces. Left of its gate a face makes no new person; a score of 1 and more is a match.",
            parts=self._bars(),
        )
        if self.request.with_people and self.request.run_id is None:
            yield Section("The last runs", parts=[self._runs()])
        yield Section("Where the time went", parts=[self._stages()])
        yield Section("How it was made", [*self._made()])

    def _overview(self) -> Iterator[Row]:
        report = self.request.report
        yield Row("photos", f"{report['new']:,} new, {report['changed']:,} changed; {report['already_in']:,} were in")
        if report["images"]:
            yield Row("", listed(report["statuses"]))
            yield Row("faces", f"{report['faces']:,}: {listed(report['outcomes'])}")
            yield Row("rejected", listed(report["rejected"]))
        yield Row("people", f"{report['persons']:,}, {report['new_persons']:,} of them new")
        rate = f"; {report['images_per_second']:.1f} photos/s" if report["decoded"] else ""
        yield Row("time", f"{report['seconds']:,.1f} s{rate}")
        for warning in report.get("warnings", ()):
            yield Row("warning", warning)

    def _totals(self) -> Iterator[Row]:
        rows = self.data.rows("totals")
        for kind, label in (("images", "photos"), ("faces", "faces"), ("people", "people")):
            counts = {row["name"]: row["count"] for row in rows if row["kind"] == kind}
            yield Row(label, f"{sum(counts.values()):,}: {listed(counts)}")

    def _people(self) -> Iterator[Sheet]:
        faces = {key: [*rows] for key, rows in groupby(self.data.rows("faces_seen"), lambda row: row["person_id"])}
        for person in self.data.rows("people_seen"):
            # Half of what may be decoded is for the sections that follow.
            cuts = [self.pictures.cut(face, spare=0.5) for face in faces.get(person["person_id"], ())]
            directory = "" if person["directory"] == "main" else f" in {person['directory']}"
            pictures = _pictures([self.pictures.stored(person), *cuts])
            yield Sheet(_name_and_id(person), pictures, f"{_photos(person['photos'])}{directory}")

    def _pairs(self) -> Iterator[Sheet]:
        for pair in self.data.doubts.pairs:
            sides = [Picture(self.pictures.stored(person), _name_and_id(person)) for person in (pair.one, pair.other)]
            warning = f"Both are on {_photos(pair.photos)}: hardly one person." if pair.photos else ""
            yield Sheet(f"{pair.score:.3f}", sides, warning)

    def _weakest(self) -> Iterator[Sheet]:
        for face in self.data.rows("weakest_matches"):
            cut = self.pictures.cut(face, spare=0.25)
            self.pictures.media_ids.add(face["media_id"])  # by its path
            sides = [Picture(cut), Picture(self.pictures.stored(face), _name_and_id(face))]
            yield Sheet(f"{face['similarity_score']:.3f}", sides, f"{face['path']} (face {face['face_id']})")

    def _rejected(self) -> Iterator[Sheet]:
        for reason, rows in groupby(self.data.rows("rejection_samples"), lambda row: row["reason"]):
            faces = [*rows]
            cuts = [self.pictures.cut(face) for face in faces]
            yield Sheet(f"{reason}: {faces[0]['count']:,}", _pictures(cuts))

    def _refused(self) -> Table:
        rows = self.data.rows("refused_files")
        self.pictures.media_ids.update(row["media_id"] for row in rows)
        return Table(
            ("status", "of so many", "photo", "reason"),
            [(row["status"], f"{row['count']:,}", row["path"], row["reason"]) for row in rows],
        )

    def _lists(self) -> Iterator[Section]:
        """Without persons who are gone, and paths at which the store has no photo any more: they may be forgotten."""
        names, media = self.data.names, self.data.rows("media_at")
        self.pictures.person_ids.update(names)
        self.pictures.media_ids.update(row["media_id"] for row in media)
        known = {None, *names, *(row["path"] for row in media)}
        for name, (title, head) in _LISTS.items():
            entries = self.request.report.get(name, ())
            rows = [_cells(e, head, names) for e in entries if name in _NO_PHOTOS or known.issuperset(_subject(e))]
            rest = f"The first {_LISTED} of {len(rows):,}." if len(rows) > _LISTED else ""
            yield Section(title, text=rest, parts=[Table(head, rows[:_LISTED])])

    def _bars(self) -> Iterator[Bars]:
        counts: dict[str, dict[int, int]] = {}
        for row in self.data.rows("face_histograms"):
            counts.setdefault(row["measure"], {})[row["bin"]] = row["count"]
        match = self.request.match
        gates = dict(zip(QUALITIES, (match.min_cpq, match.min_fsq, match.min_fcq), strict=True))
        for name, title in _QUALITY_NAMES.items():
            yield Bars(title, _filled(counts.get(name, {}), 1.0), BIN, {"gate": gates[name]})
        marks = {"match": 1.0}
        yield Bars("Scores of the matches", _filled(counts.get("similarity_score", {}), _SCORE_END), BIN, marks)
        if self.request.with_people:
            nearest = Counter(int(score / BIN) for score in self.data.doubts.nearest)
            marks = {"doubtful": self.data.doubts.wider_score, **marks}
            yield Bars("Scores of each person with the most similar other", _filled(nearest, _SCORE_END), BIN, marks)

    def _runs(self) -> Table:
        return Table(
            ("begun (UTC)", "source", "photos", "run"),
            [
                (f"{row['started_at']:%Y-%m-%d %H:%M}", row["source"], f"{row['rows'] or 0:,}", row["run_id"])
                for row in self.data.rows("last_runs")
            ],
        )

    def _stages(self) -> Table:
        stages = ((self.request.report.get("profile") or {}).get("stages") or {}).items()
        return Table(
            ("stage", "seconds", "share"), [(n, f"{s['seconds']:.2f}", f"{s['share']:.0%}") for n, s in stages]
        )

    def _made(self) -> Iterator[Row]:
        identity, match = self.identity, self.request.match
        yield Row("weights", f"{identity.weights}, SHA-256 {identity.weights_sha256}")
        anchor = Calibration.from_dict(identity.calibration).anchor
        yield Row("threshold", f"{match.threshold:g}" + (f"; {anchor}" if anchor else ""))
        yield Row("gate", f"pose {match.min_cpq:g}, sharpness {match.min_fsq:g}, contrast {match.min_fcq:g}")
        for section, values in identity.output_settings.items():
            yield Row(section, json.dumps(values).strip("{}").replace('"', ""))
        for name in ("device", "backend"):
            if self.request.report.get(name):
                yield Row(name, str(self.request.report[name]))
        yield Row("versions", f"{', '.join(_versions())}, Python {platform.python_version()}")
        if self.request.run_id is not None:
            yield Row("run", self.request.run_id)
        if self.request.with_people and self.request.source is not None:
            yield Row("again", shlex.join(self._command(self.request.source)))

    def _command(self, source: str) -> list[str]:
        """What brings the same photos into a new store."""
        words = ["facepipe", "run", source, "--store", "NEW", "--weights", self.identity.weights]
        words += ["--mode", self.identity.mode]
        for name in ("threshold", "min_cpq", "min_fsq", "min_fcq"):
            value = getattr(self.request.match, name)
            if value != getattr(MatchSettings(), name):
                words += [f"--{name.replace('_', '-')}", f"{value:g}"]
        return words


def _pictures(uris: Sequence[str | None]) -> list[Picture]:
    """The pictures that are there; if none is, a picture that says so."""
    return [Picture(uri) for uri in uris if uri] or [Picture(None, "no picture")]


def _photos(count: int) -> str:
    return f"{count:,} photo{'s' if count != 1 else ''}"


def _name_and_id(person: Mapping[str, Any]) -> str:
    return " · ".join(text for text in (person["name"], person["person_id"][:SHORT_ID]) if text)


def _subject(entry: Any) -> tuple[str | None, str | None]:
    """The person, unless the run deleted it, and the photo that an entry is about; of a photo that moved the path where
    it is."""
    if isinstance(entry, Mapping):
        return None if entry.get("change") == "deleted" else entry.get("person_id"), entry.get("path")
    return None, entry if isinstance(entry, str) else entry[-1]


def _cells(entry: Any, head: Sequence[str], names: Mapping[str, str | None]) -> list[Cell]:
    if isinstance(entry, Mapping):
        person_id = entry.get("person_id")
        who = _name_and_id({"person_id": person_id, "name": names.get(person_id)}) if person_id else "nobody"
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
