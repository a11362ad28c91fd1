"""What a correction changes: the rows as they are and as they will be, collected under the directory's lock."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import datetime
from typing import Any, Final, TypeAlias

from pipeline.errors import CorrectionImpossible, FaceUnknown, PersonUnknown
from pipeline.identities.directory import Directory
from pipeline.store.local import LocalStore
from pipeline.store.records import Correction, Fact, PersonRecord, Rows, StoredFace

IS, IS_NOT, NOBODY, NOT_SAME = "is", "is_not", "nobody", "not_same"  # kinds of facts
FACE_COLUMNS: Final = ("person_id", "outcome", "similarity_score", "rejection_reasons")  # that a correction sets
Columns: TypeAlias = Mapping[str, Any] | None  # of a person; None: there is none
PickFace = Callable[[str, Sequence[StoredFace]], int]  # the person, faces to choose from -> the face's id


def best_first(faces: Iterable[StoredFace]) -> list[StoredFace]:
    """Those that can be a reference: by the product of their qualities, then by size, then the earlier."""
    return sorted((f for f in faces if f.has_embedding), key=lambda f: (-f.quality, -f.area, f.face_id))


def row_of(record: PersonRecord) -> dict[str, Any]:
    """A person as the rows of a correction have it."""
    return {name: value for name, value in asdict(record).items() if name != "image_guid"}


class Plan:
    """The rows of one correction."""

    def __init__(self, client: LocalStore, directory: Directory, now: datetime) -> None:
        self._client = client
        self.directory = directory
        self.now = now
        self._persons: dict[str, tuple[Columns, Columns]] = {}  # before, after; as those below
        self._faces: dict[int, tuple[Mapping[str, Any], Mapping[str, Any]]] = {}
        self._references: dict[str, tuple[int | None, int | None]] = {}
        self._withdrawn: list[Fact] = []
        self._stated: list[Fact] = []

    def rows(self) -> tuple[Rows, Rows]:
        """All that it changes: as it is, and as it will be."""
        persons, faces, references = self._persons.items(), self._faces.items(), self._references.items()
        before = Rows(
            {p: b for p, (b, _) in persons}, {f: b for f, (b, _) in faces}, {p: b for p, (b, _) in references}
        )
        after = Rows({p: a for p, (_, a) in persons}, {f: a for f, (_, a) in faces}, {p: a for p, (_, a) in references})
        return replace(before, facts=self._withdrawn), replace(after, facts=self._stated)

    def record(self, person_id: str) -> PersonRecord:
        """Raises PersonUnknown."""
        record = self.directory.get(person_id)
        if record is None:
            raise PersonUnknown
        return record

    def faces(self, face_ids: Sequence[int] = (), person_ids: Sequence[str] = ()) -> list[StoredFace]:
        """These faces and all of these persons, as they are stored."""
        return self._client.stored_faces(self.directory.account_id, self.directory.name, face_ids, person_ids)

    def facts(self, person_ids: Sequence[str], face_ids: Sequence[int] = ()) -> list[Fact]:
        """The facts that mention one of these."""
        return self._client.facts_about(face_ids, person_ids)

    def reference_faces(self, person_ids: Sequence[str]) -> dict[str, int]:
        """person id -> face id, of those that have a reference."""
        return self._client.reference_faces(person_ids)

    def last_correction(self) -> Correction | None:
        """The directory's last one that is not undone."""
        return self._client.last_correction(self.directory.account_id, self.directory.name)

    def movable(self, face_ids: Sequence[int]) -> list[StoredFace]:
        """These faces. Raises FaceUnknown, and CorrectionImpossible for one that was posted."""
        faces = self.faces(face_ids)
        unknown = sorted(set(face_ids) - {face.face_id for face in faces})
        if unknown:
            raise FaceUnknown(face_ids=", ".join(map(str, unknown)))
        for face in faces:
            if face.path is None:
                detail = f"The face {face.face_id} was posted, and is kept only as the one that its person is known by."
                raise CorrectionImpossible(detail=f"{detail} Merge the person, or forget it.")
        return faces

    # Changes

    def change(self, record: PersonRecord, **columns: Any) -> None:
        """Sets columns of a person, where they are not so already."""
        before, after = self._persons.get(record.person_id, ({}, {}))
        known = after or {}
        new = {name: value for name, value in columns.items() if value != known.get(name, getattr(record, name))}
        if new:
            old = {name: getattr(record, name) for name in new}
            self._persons[record.person_id] = {**old, **(before or {})}, {**(after or {}), **new}

    def insert(self, record: PersonRecord) -> None:
        self._persons[record.person_id] = None, row_of(record)

    def move(self, face: StoredFace, person_id: str | None) -> None:
        """The face is this person's, or nobody's. Nothing where it is so already."""
        if face.person_id != person_id:
            outcome = "recognised" if person_id is None else "matched"
            new = {**dict.fromkeys(FACE_COLUMNS), "person_id": person_id, "outcome": outcome}
            self._faces[face.face_id] = {name: getattr(face, name) for name in FACE_COLUMNS}, new

    def state(self, facts: Sequence[Fact]) -> None:
        """Adds facts, in place of those that they contradict."""
        faces = [fact.face_id for fact in facts if fact.face_id is not None]
        persons = [fact.person_id for fact in facts if fact.kind == NOT_SAME and fact.person_id is not None]
        known = self.facts(persons, faces)
        self.withdraw(old for old in known if any(contradicts(old, fact) for fact in facts))
        self._stated += facts

    def withdraw(self, facts: Iterable[Fact]) -> None:
        self._withdrawn += [fact for fact in facts if fact not in self._withdrawn]

    @property
    def leaves_nobody(self) -> bool:
        """Whether the directory would have no person."""
        return len(self.directory) + sum((old is None) - (new is None) for old, new in self._persons.values()) == 0

    def settle(self, person_ids: Iterable[str], pick: PickFace) -> None:
        """What follows for persons who lost faces, or got their first: another reference, or the end of one without a
        name. Raises what `pick` does."""
        wanted = sorted(set(person_ids))
        references = self.reference_faces(wanted)
        own: dict[str | None, list[StoredFace]] = {person_id: [] for person_id in wanted}
        for face in self.faces(list(self._faces), wanted):
            moved = self._faces.get(face.face_id)
            owner = face.person_id if moved is None else moved[1]["person_id"]
            if owner in own:
                own[owner].append(face)
        for person_id in wanted:
            old, faces = references.get(person_id), own[person_id]
            if faces and old not in [face.face_id for face in faces]:
                self._references[person_id] = old, pick(person_id, faces)
            elif not faces:
                self._without_faces(person_id, old)

    def _without_faces(self, person_id: str, reference: int | None) -> None:
        """A named person stays, and another goes; who takes its place is not the same as those it was not."""
        if reference is not None:
            self._references[person_id] = reference, None
        record = self.record(person_id)
        if has_name(record):
            return
        children = [p for p in self.directory.merged_set(person_id) if self._parent(p) == person_id]
        heir = self._parent(record) or (children[0].person_id if children else None)
        for child in children:
            self.change(child, parent_id=None if child.person_id == heir else heir)
        self._persons[person_id] = row_of(record), None
        known = [fact for fact in self.facts([person_id]) if fact not in self._withdrawn]
        lost = [fact for fact in (*known, *self._stated) if person_id in (fact.person_id, fact.other_id)]
        self.withdraw(known)
        self._stated = [fact for fact in self._stated if fact not in lost]
        apart = [fact.other_id if fact.person_id == person_id else fact.person_id for fact in lost if fact.other_id]
        self.state([two_people(heir, other) for other in apart if heir and other and other != heir])

    def _parent(self, record: PersonRecord) -> str | None:
        """As this correction has it so far; None of one who goes."""
        _, after = self._persons.get(record.person_id, ({}, {}))
        return None if after is None else after.get("parent_id", record.parent_id)


def has_name(record: PersonRecord) -> bool:
    """Whether there is more to the person than faces."""
    return any((record.name, record.first_name, record.last_name, record.external_id))


def two_people(one: str, other: str) -> Fact:
    """The fact that two persons are not the same."""
    return Fact(NOT_SAME, None, min(one, other), max(one, other))


def contradicts(known: Fact, new: Fact) -> bool:
    """Whether both cannot be so, or say the same."""
    same = (known.face_id, known.person_id, known.other_id) == (new.face_id, new.person_id, new.other_id)
    if same and {known.kind, new.kind} in ({known.kind}, {IS, IS_NOT}):
        return True
    return known.face_id is not None and known.face_id == new.face_id and {known.kind, new.kind} <= {IS, NOBODY}
