"""What a scan found: counts, and some paths."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final

from pipeline.report.page import SHORT_ID, listed
from pipeline.texts import counted

LISTED: Final = 1000  # files of a kind, per source
_SHOWN: Final = 5  # files or folders of a kind, in texts
FACE_COUNTS: Final = ("faces_lost", "faces_gained", "people_deleted")  # because photos changed
# Every scan finds these again, all others only once.
_FOUND_AGAIN: Final = (
    *("already_in", "forgotten", "too_many_missing", "forgotten_files"),
    *("other_files", "left_alone", "left_out", "left_out_folders"),
)
_SECRET: Final = ("forgotten_files", "forgotten_missing_files", "pages")  # paths that the store does not keep
# Stored without names, as people may be deleted later.
_NAMING: Final = {
    "renamed_persons",
    "relabelled_faces",
    "unsettled_labels",
    "label_conflicts",
    "shared_external_id",
    "face_changes",
}
_UNNAMED: Final = {"path", "person_id", "old_person_id", "face_id", "reason", "directory", "persons", "change"}


@dataclass
class PlanCounts:
    """The counts of a scan, stored with an unfinished run."""

    new: int = 0
    changed: int = 0  # known path, other bytes
    already_in: int = 0
    moved: int = 0  # to a new path, otherwise unchanged
    vanished: int = 0  # since the last run
    back: int = 0  # missed by earlier runs
    moved_sources: list[list[str]] = field(default_factory=list)  # old and new path of a whole source
    forgotten: int = 0  # new or changed, but forgotten, or their only person was
    forgotten_missing: int = 0  # forgotten because they are missing
    too_many_missing: int = 0  # not forgotten, because they exceed the limit
    # The first thousand of each:
    changed_files: list[str] = field(default_factory=list)
    moved_files: list[list[str]] = field(default_factory=list)  # old and new path
    vanished_files: list[str] = field(default_factory=list)
    forgotten_files: list[str] = field(default_factory=list)
    forgotten_missing_files: list[str] = field(default_factory=list)
    other_files: int = 0  # ignored
    left_alone: dict[str, int] = field(default_factory=dict)  # the same by kind: raw, video, sidecar, hidden, ...
    left_out: dict[str, int] = field(default_factory=dict)  # folders: hidden, thumbnails, excluded
    left_out_folders: list[str] = field(default_factory=list)  # the first thousand
    labels_changed: int = 0  # of photos with unchanged bytes
    labels_removed: int = 0  # of these; no name changes
    # Their effects, as in FollowedLabels.
    renamed: int = 0
    relabelled: int = 0
    unsettled: int = 0
    renamed_persons: list[dict[str, Any]] = field(default_factory=list)
    relabelled_faces: list[dict[str, Any]] = field(default_factory=list)
    unsettled_labels: list[dict[str, Any]] = field(default_factory=list)
    # Effects of changed photos on people, as in FaceChange, with known names.
    faces_lost: int = 0
    faces_gained: int = 0
    people_deleted: int = 0  # unnamed, and lost their last face
    face_changes: list[dict[str, Any]] = field(default_factory=list)

    def then(self, later: PlanCounts) -> PlanCounts:
        """Adds a later scan of the same source, which found the other rows again."""
        return dataclasses.replace(self + later, **{name: getattr(later, name) for name in _FOUND_AGAIN})

    def __add__(self, other: PlanCounts) -> PlanCounts:
        """Adds another source's counts."""
        return PlanCounts(**{f.name: _sum(getattr(self, f.name), getattr(other, f.name)) for f in fields(PlanCounts)})

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return dataclasses.asdict(self)

    def kept(self) -> dict[str, Any]:
        """`as_dict` without paths that the store must not keep, and without names, as people may be deleted later."""
        report = {name: value for name, value in self.as_dict().items() if name not in _SECRET}
        for key in report.keys() & _NAMING:
            report[key] = [{name: entry[name] for name in entry if name in _UNNAMED} for entry in report[key]]
        return report

    def file_lines(self) -> Iterator[str]:
        """For people: moved, changed, missing and forgotten photos."""
        if self.forgotten:
            why = "they were forgotten, or their only person was"
            yield f"            {self.forgotten} left out: {why}; --json lists them"
        yield from (f"            all moved: {old} -> {new}" for old, new in self.moved_sources)
        if self.moved or self.vanished or self.back:
            back = f", {self.back} back" if self.back else ""
            yield f"            {self.moved} moved, {self.vanished} vanished{back}"
        if self.forgotten_missing:
            yield f"            {counted(self.forgotten_missing, 'missing photo')} forgotten"
        yield from shortened((f"changed: {path}" for path in self.changed_files), self.changed)
        yield from shortened((f"moved: {old} -> {new}" for old, new in self.moved_files), self.moved)
        # Includes those forgotten at once, also listed.
        left = max(len(self.vanished_files), self.vanished - self.forgotten_missing)
        yield from shortened((f"vanished: {path}" for path in self.vanished_files), left)
        yield from shortened((f"forgotten: {path}" for path in self.forgotten_missing_files), self.forgotten_missing)
        if self.missing_warning():
            yield f"warning     {self.missing_warning()}"

    def face_change_line(self) -> str | None:
        """For people: who lost or gained faces, or None."""
        if not self.face_changes:
            return None
        names = {p["person_id"]: p.get("name") or p["person_id"][:SHORT_ID] for p in self.face_changes}
        found = Counter((p["person_id"], p["change"]) for p in self.face_changes)
        deleted = [f"{who} lost the last face and was deleted" for p, who in names.items() if found[p, "deleted"]]
        lost = [f"{who} lost {_faces(n)}" for p, who in names.items() if (n := found[p, "lost"])]
        gained = [f"{who} gained {_faces(n)}" for p, who in names.items() if (n := found[p, "gained"])]
        told = [*deleted, *lost, *gained]
        rest = f"; {len(told) - _SHOWN} more in the report" if len(told) > _SHOWN else ""
        return f"Because photos changed: {'; '.join(told[:_SHOWN])}{rest}."

    def missing_warning(self) -> str | None:
        """The warning if too many photos are missing to forget any."""
        if not self.too_many_missing:
            return None
        return (
            f"{self.too_many_missing:,} photos are missing, more than run.missing_limit of their source: a disk that "
            "is not mounted looks like that. They are marked, and none is forgotten; `--yes` forgets them."
        )

    def label_lines(self) -> Iterator[str]:
        """For people."""
        if self.labels_removed:
            yield f"labels      {self.labels_removed} removed (a run without --labels has none); all names stay"
        changed = self.labels_changed - self.labels_removed
        if not changed:
            return
        yield (
            f"labels      {changed} changed: {counted(self.renamed, 'person', 'people')} renamed,"
            f" {counted(self.relabelled, 'face')} became others', {self.unsettled} not followed"
        )
        renamed = (f"renamed: {p['person_id']}  {_called(p, 'old_')} -> {_called(p)}" for p in self.renamed_persons)
        yield from shortened(renamed, self.renamed)
        faces = (f"{_called(f)}: {f['path']} (face {f['face_id']})" for f in self.relabelled_faces)
        yield from shortened(faces, self.relabelled)
        labels = (
            f"not followed: {_called(u, 'person_')} -> {_called(u)}: {u['path']} ({u['person_id']}; {u['reason']})"
            for u in self.unsettled_labels
        )
        yield from shortened(labels, self.unsettled)

    def left_alone_lines(self) -> Iterator[str]:
        """For people."""
        if self.other_files:
            yield f"left alone  files: {listed(self.left_alone)}"
        if self.left_out:
            yield f"left out    folders: {listed(self.left_out)}"
            yield from shortened(self.left_out_folders, sum(self.left_out.values()))


def _faces(count: int) -> str:
    return "a face" if count == 1 else counted(count, "face")


def _called(entry: Mapping[str, Any], prefix: str = "") -> str:
    """The name and the external id, if any."""
    parts = (entry.get(prefix + "name"), entry.get(prefix + "external_id"))
    return " ".join(f'"{part}"' for part in parts if part) or "(no name)"


def shortened(entries: Iterable[str], count: int) -> Iterator[str]:
    """Yields the first entries, and the number of further ones."""
    shown = [*entries][:_SHOWN]
    yield from (f"            {entry}" for entry in shown)
    if count > len(shown) > 0:
        yield f"            and {count - len(shown)} more"


def _sum(one: Any, other: Any) -> Any:
    """Adds two numbers, lists or counters."""
    return {**Counter(one) + Counter(other)} if isinstance(one, dict) else one + other
