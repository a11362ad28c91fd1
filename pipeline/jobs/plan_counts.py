"""What the scan of a source found against the store, in numbers and, as far as that is useful, in paths."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final

from pipeline.report.page import SHORT_ID, listed

LISTED: Final = 1000  # files of a kind, for each source
_SHOWN: Final = 5  # files or folders of a kind, in the lines for people
FACE_COUNTS: Final = ("faces_lost", "faces_gained", "people_deleted")  # because photos changed
# Found by every scan again; the rest is found once.
_FOUND_AGAIN: Final = (
    *("already_in", "forgotten", "too_many_missing", "forgotten_files"),
    *("other_files", "left_alone", "left_out", "left_out_folders"),
)
_SECRET: Final = ("forgotten_files", "forgotten_missing_files", "pages")  # paths that the store does not keep
# Lists of people, of whom the store keeps no names: one who is deleted later is not named there.
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
    """What a scan found: rows of the source, and what it left alone. An unfinished run keeps it."""

    new: int = 0
    changed: int = 0  # at a known path, with other bytes
    already_in: int = 0
    moved: int = 0  # to a new path; nothing else changed
    vanished: int = 0  # since the last run
    back: int = 0  # that earlier runs missed
    moved_sources: list[list[str]] = field(default_factory=list)  # old and new path of a whole source
    forgotten: int = 0  # new or changed, but they were forgotten, or their only person was
    forgotten_missing: int = 0  # that were forgotten because they are missing
    too_many_missing: int = 0  # that were not, because they are more than the limit
    # Of each of these the first thousand.
    changed_files: list[str] = field(default_factory=list)
    moved_files: list[list[str]] = field(default_factory=list)  # old and new path
    vanished_files: list[str] = field(default_factory=list)
    forgotten_files: list[str] = field(default_factory=list)
    forgotten_missing_files: list[str] = field(default_factory=list)
    other_files: int = 0  # that are left alone
    left_alone: dict[str, int] = field(default_factory=dict)  # the same by kind: raw, video, sidecar, hidden, ...
    left_out: dict[str, int] = field(default_factory=dict)  # folders: hidden, thumbnails, excluded
    left_out_folders: list[str] = field(default_factory=list)  # the first thousand of them
    labels_changed: int = 0  # of photos whose bytes are the same
    # What followed from them, as FollowedLabels has it.
    renamed: int = 0
    relabelled: int = 0
    unsettled: int = 0
    renamed_persons: list[dict[str, Any]] = field(default_factory=list)
    relabelled_faces: list[dict[str, Any]] = field(default_factory=list)
    unsettled_labels: list[dict[str, Any]] = field(default_factory=list)
    # What changed photos did to people, as FaceChange has it; with names, of those who have one.
    faces_lost: int = 0
    faces_gained: int = 0
    people_deleted: int = 0  # they had no name, and lost their last face
    face_changes: list[dict[str, Any]] = field(default_factory=list)

    def then(self, later: PlanCounts) -> PlanCounts:
        """With a later scan of the same source, which met all but the rows of the first again."""
        return dataclasses.replace(self + later, **{name: getattr(later, name) for name in _FOUND_AGAIN})

    def __add__(self, other: PlanCounts) -> PlanCounts:
        """With those of another source."""
        return PlanCounts(**{f.name: _sum(getattr(self, f.name), getattr(other, f.name)) for f in fields(PlanCounts)})

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return dataclasses.asdict(self)

    def kept(self) -> dict[str, Any]:
        """`as_dict` as the store keeps it: without the paths of what it must not know any more, and without names, as a
        person may be deleted later."""
        report = {name: value for name, value in self.as_dict().items() if name not in _SECRET}
        for key in report.keys() & _NAMING:
            report[key] = [{name: entry[name] for name in entry if name in _UNNAMED} for entry in report[key]]
        return report

    def file_lines(self) -> Iterator[str]:
        """For people: the photos that are not where, or not as, they were, and those that stay out."""
        if self.forgotten:
            why = "they were forgotten, or their only person was"
            yield f"            {self.forgotten} left out: {why}; --json lists them"
        yield from (f"            all moved: {old} -> {new}" for old, new in self.moved_sources)
        if self.moved or self.vanished or self.back:
            back = f", {self.back} back" if self.back else ""
            yield f"            {self.moved} moved, {self.vanished} vanished{back}"
        if self.forgotten_missing:
            yield f"            {self.forgotten_missing} missing photos forgotten"
        yield from shortened((f"changed: {path}" for path in self.changed_files), self.changed)
        yield from shortened((f"moved: {old} -> {new}" for old, new in self.moved_files), self.moved)
        # Those that are forgotten at once are in the count, and listed as such.
        left = max(len(self.vanished_files), self.vanished - self.forgotten_missing)
        yield from shortened((f"vanished: {path}" for path in self.vanished_files), left)
        yield from shortened((f"forgotten: {path}" for path in self.forgotten_missing_files), self.forgotten_missing)
        if self.missing_warning():
            yield f"warning     {self.missing_warning()}"

    def face_change_line(self) -> str | None:
        """For people: who lost and who gained faces because photos changed; None if nobody did."""
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
        """What to say where so many photos are missing that none was forgotten."""
        if not self.too_many_missing:
            return None
        return (
            f"{self.too_many_missing:,} photos are missing, more than run.missing_limit of their source: a disk that "
            "is not mounted looks like that. They are marked, and none is forgotten; `--yes` forgets them."
        )

    def label_lines(self) -> Iterator[str]:
        """For people: what followed from labels that changed."""
        if not self.labels_changed:
            return
        yield (
            f"labels      {self.labels_changed} changed: {self.renamed} people renamed, {self.relabelled} faces became"
            f" others', {self.unsettled} not followed"
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
        """For people: the files and folders of the sources that were left alone."""
        if self.other_files:
            yield f"left alone  files: {listed(self.left_alone)}"
        if self.left_out:
            yield f"left out    folders: {listed(self.left_out)}"
            yield from shortened(self.left_out_folders, sum(self.left_out.values()))


def _faces(count: int) -> str:
    return "a face" if count == 1 else f"{count} faces"


def _called(entry: Mapping[str, Any], prefix: str = "") -> str:
    """A name and an external id, as far as there are any."""
    parts = (entry.get(prefix + "name"), entry.get(prefix + "external_id"))
    return " ".join(f'"{part}"' for part in parts if part) or "(no name)"


def shortened(entries: Iterable[str], count: int) -> Iterator[str]:
    """The first of the entries, and how many of the `count` there are beside them."""
    shown = [*entries][:_SHOWN]
    yield from (f"            {entry}" for entry in shown)
    if count > len(shown) > 0:
        yield f"            and {count - len(shown)} more"


def _sum(one: Any, other: Any) -> Any:
    """Of two numbers, lists or counts."""
    return {**Counter(one) + Counter(other)} if isinstance(one, dict) else one + other
