"""Collects the rows that a correction changes, before and after."""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import replace
from typing import Any, Final, TypeAlias

from pipeline.errors import CorrectionImpossible, FaceUnknown, PhotoUnknown, PictureMissing
from pipeline.extraction.stored_picture import MEDIA_TYPE
from pipeline.people.reference_pictures import Pictures
from pipeline.people.rules import NOT_SAME, row_of, two_people
from pipeline.store import (
    FACE_COLUMNS,
    FOLDER_DIGITS,
    Change,
    Correction,
    DrawnFace,
    FaceVector,
    Fact,
    MediaLabel,
    PersonRecord,
    Remembered,
    Rows,
    StoredFace,
)
from pipeline.types import DRAWN, FORGOTTEN, utc_now

# Kinds of constraints, besides NOT_SAME. TWICE: somebody may be twice on the photo of the face.
IS, IS_NOT, NOBODY, TWICE = "is", "is_not", "nobody", "twice"
Columns: TypeAlias = Mapping[str, Any] | None  # of a person or a face; None: no row
_COUNTS: Final = ("occurrence", "last_occurrence_at", "modified_at")  # changed by posts and runs


class Plan:
    """The rows of one correction, or of photos that a shard replaces."""

    def __init__(self, pictures: Pictures) -> None:
        """`pictures`: the directory's."""
        self.client, self.directory = pictures.client, pictures.directory
        # Rejected faces that were extracted again; if one gets a person, its vector is stored.
        self.decoded: Mapping[int, FaceVector] = {}
        self.known_vectors: dict[int, FaceVector] = {}  # those that the caller has
        self.pictures = pictures
        self.now = utc_now()
        self.said: dict[str, Any] = {}  # additional fields of CorrectionAnswer
        # If decided without the lock: the persons that change, or lose or get faces, as read; for `is_outdated`.
        self.known: dict[str, PersonRecord] = {}
        self._persons: dict[str, tuple[Columns, Columns]] = {}  # (before, after), like the two below
        self._faces: dict[int, tuple[Columns, Mapping[str, Any]]] = {}
        self._drawn: DrawnFace | None = None
        self._references: dict[str, tuple[int | None, int | None]] = {}
        self._withdrawn: dict[Fact, None] = {}  # an ordered set
        self._stated: list[Fact] = []
        self._remembered: tuple[Remembered, Remembered] | None = None
        self.undoes: Correction | None = None  # the plan's rows are then its rows, reversed
        self.guids: dict[int, str] = {}  # of new references' pictures, by face id
        self._folder = str(uuid.uuid4())[:FOLDER_DIGITS]  # of all pictures: made and synced once
        self.leaving: list[int] = []  # media to delete
        self.leaving_status = FORGOTTEN
        self.gone_faces: set[int] = set()  # of deleted media or persons
        self.deleted: list[str] = []  # persons
        self.remembered: Set[str] = frozenset()  # as `Change.remembered`
        self.seen: Mapping[str, int] = {}  # as `Change.seen`
        self.labels: list[MediaLabel] = []  # stored with it
        self.new_faces: list[StoredFace] = []  # added by the same commit

    def rows(self) -> tuple[Rows, Rows]:
        """The changed rows, before and after."""
        if self.undoes is not None:
            return self.undoes.after, self.undoes.before
        persons, faces, references = self._persons.items(), self._faces.items(), self._references.items()
        before = Rows(
            {p: b for p, (b, _) in persons}, {f: b for f, (b, _) in faces}, {p: b for p, (b, _) in references}
        )
        after = Rows({p: a for p, (_, a) in persons}, {f: a for f, (_, a) in faces}, {p: a for p, (_, a) in references})
        was, is_now = self._remembered or (None, None)
        return (
            replace(before, facts=list(self._withdrawn), remembered=was),
            replace(after, facts=self._stated, remembered=is_now),
        )

    @property
    def remembers(self) -> Remembered | None:
        """What the directory remembers from now on; None if it does not change."""
        return None if self._remembered is None else self._remembered[1]

    def remember(self, values: Remembered) -> None:
        """Sets what the directory remembers."""
        was = self.directory.remembered
        if values != was:
            self._remembered = was, values

    def change(self, kind: str, origin: str, *, dry_run: bool = False) -> Change:
        """Builds the `Change`; for a `dry_run` without pictures and vectors."""
        before, after = self.rows()
        chosen = {} if dry_run else {p: face_id for p, face_id in after.references.items() if face_id is not None}
        pictures = {person_id: self.pictures[face_id] for person_id, face_id in chosen.items()}
        stored = self.directory.of((*after.persons, *after.references, *self.seen))
        last = self.undoes
        return Change(
            self.directory.account_id,
            self.directory.name,
            "redo" if last is not None and last.kind == "undo" else kind,
            origin,
            before,
            after,
            self.seen,
            seqs={person_id: record.seq for person_id, record in stored.items()},
            pictures={p: (self.guid(chosen[p]), file, MEDIA_TYPE) for p, file in pictures.items() if file is not None},
            vectors=self.vectors(list(chosen.values())),
            drawn=self._drawn,
            admitted={face_id: self.decoded[face_id].embedding for face_id in self._faces if face_id in self.decoded},
            undoes=None if last is None else last.undoes or last.correction_id,
            deleted=self.deleted,
            remembered=self.remembered,
            leaving=self.leaving,
            leaving_status=self.leaving_status,
            labels=self.labels,
        )

    def is_outdated(self) -> bool:
        """Validation: whether a post or run changed a person in `known` (`Directory.changed` covers corrections)."""
        _, after = self.rows()
        gone = {person_id for person_id, columns in after.persons.items() if columns is None}
        children = (child.person_id for person_id in gone for child in self.directory.children(person_id))
        now = self.directory.of(self.known)
        return any(child not in after.persons for child in children) or any(
            not _same(record, now.get(person_id), whole=person_id in gone) for person_id, record in self.known.items()
        )

    def faces(
        self, face_ids: Sequence[int] = (), person_ids: Sequence[str] = (), media_ids: Sequence[int] = ()
    ) -> list[StoredFace]:
        """These stored faces and all of these persons and media; decoded ones count as having an embedding."""
        account_id, name = self.directory.account_id, self.directory.name
        faces = self.client.stored_faces(account_id, name, face_ids, person_ids, media_ids)
        return [replace(f, has_embedding=True) if f.face_id in self.decoded else f for f in faces]

    def vectors(self, face_ids: Sequence[int]) -> dict[int, FaceVector]:
        """Vectors by face id."""
        known = {face_id: self.known_vectors[face_id] for face_id in face_ids if face_id in self.known_vectors}
        missing = sorted(set(face_ids) - known.keys())
        return known | (self.client.face_vectors(missing) if missing else {})

    def guid(self, face_id: int) -> str:
        """The guid of a new reference's picture."""
        return self.guids.setdefault(face_id, self._folder + str(uuid.uuid4())[FOLDER_DIGITS:])

    def movable(self, face_ids: Sequence[int]) -> list[StoredFace]:
        """These faces. Raises FaceUnknown, and CorrectionImpossible for a posted face."""
        faces = self.faces([face_id for face_id in face_ids if face_id < 2**63])
        unknown = sorted(set(face_ids) - {face.face_id for face in faces})
        if unknown:
            raise FaceUnknown(face_ids=", ".join(map(str, unknown)))
        for face in faces:
            if face.path is None:
                detail = f"The face {face.face_id} was posted, and is kept only as the one that its person is known by."
                raise CorrectionImpossible(detail=f"{detail} Merge the person, or forget it.")
        return faces

    # Changes

    def update(self, record: PersonRecord, **columns: Any) -> None:
        """Sets columns of a person, except those that have the value already."""
        before, after = self._persons.get(record.person_id, ({}, {}))
        known = after or {}
        new = {name: value for name, value in columns.items() if value != known.get(name, getattr(record, name))}
        if new:
            old = {name: getattr(record, name) for name in new}
            self._persons[record.person_id] = {**old, **(before or {})}, {**(after or {}), **new}

    def insert(self, record: PersonRecord, face_id: int | None = None) -> None:
        """Inserts a person. `face_id`: its reference; None: `settle` chooses it."""
        self._persons[record.person_id] = None, row_of(record)
        if face_id is not None:
            self._references[record.person_id] = None, face_id

    def add_reference(self, face_id: int, guid: str, picture: bytes, vector: FaceVector) -> None:
        """Adds the data of a reference that the same commit stores."""
        self.guids[face_id], self.known_vectors[face_id] = guid, vector
        self.pictures.add(face_id, picture)

    def move(self, face: StoredFace, person_id: str | None) -> None:
        """Assigns the face to a person or, with None, to nobody."""
        if face.person_id != person_id:
            outcome = "recognised" if person_id is None else "matched"
            outcome = DRAWN if face.outcome == DRAWN else outcome
            new = {**dict.fromkeys(FACE_COLUMNS), "person_id": person_id, "outcome": outcome}
            self._faces[face.face_id] = {name: getattr(face, name) for name in FACE_COLUMNS}, new

    def draw(self, drawn: DrawnFace, face: StoredFace) -> None:
        """Adds a face. `face`: as it will be stored."""
        self._drawn = drawn
        self._faces[face.face_id] = None, {name: getattr(face, name) for name in FACE_COLUMNS}
        self.new_faces.append(face)

    def state(self, facts: Sequence[Fact]) -> None:
        """Adds constraints; removes those that they contradict."""
        faces = [fact.face_id for fact in facts if fact.face_id is not None]
        persons = [fact.person_id for fact in facts if fact.kind == NOT_SAME and fact.person_id is not None]
        known = self.client.facts_about(faces, persons)
        of_face: dict[int | None, list[Fact]] = defaultdict(list)
        for fact in facts:
            of_face[fact.face_id].append(fact)
        self.withdraw(old for old in known if any(contradicts(old, fact) for fact in of_face[old.face_id]))
        self._stated += facts

    def withdraw(self, facts: Iterable[Fact]) -> None:
        self._withdrawn.update(dict.fromkeys(facts))

    def delete(self, person_ids: Sequence[str], remembered: Set[str]) -> None:
        """Deletes persons with all their data. `remembered`: as `Change.remembered`."""
        self.deleted = list(dict.fromkeys(person_ids))
        self.remembered = remembered

    def forget_photos(self, media_ids: Sequence[int]) -> list[StoredFace]:
        """Removes photos and returns their faces, skipping forgotten ones. Raises PhotoUnknown."""
        known = self.client.photos_of_runs(self.directory.account_id, self.directory.name, media_ids)
        _require_photos(set(media_ids) - known.keys())
        going = [media_id for media_id, status in known.items() if status != FORGOTTEN]
        faces = self.faces(media_ids=going)
        self.remove_photos(going, faces)
        return faces

    def faces_of_copies(self, media_ids: Sequence[int]) -> list[StoredFace]:
        """The faces of these photos of runs, and of those with identical bytes. Raises PhotoUnknown."""
        copies = self.client.copies_of_photos(self.directory.account_id, self.directory.name, media_ids)
        _require_photos({*media_ids}.difference(copies))
        return self.faces(media_ids=copies)

    def remove_photos(self, media_ids: Sequence[int], faces: Sequence[StoredFace], status: str = FORGOTTEN) -> None:
        """Removes photos of runs; `faces`: all their faces."""
        self.leaving, self.leaving_status = list(media_ids), status
        self.gone_faces = {face.face_id for face in faces}

    def succeed(self, old: StoredFace, face_id: int, facts: Iterable[Fact], *, reference: bool) -> None:
        """A new face takes over a removed one's constraints and, if `reference`, its role as reference."""
        self.withdraw(facts)
        self._stated += [replace(fact, face_id=face_id) for fact in facts]
        if reference:
            self._references[str(old.person_id)] = old.face_id, face_id

    @property
    def leaves_nobody(self) -> bool:
        """Whether the directory would be empty."""
        return len(self.directory) + sum((old is None) - (new is None) for old, new in self._persons.values()) == 0

    def settle(self, person_ids: Iterable[str], failed: set[str] | None = None) -> None:
        """Gives persons who lost faces or got their first a new reference if needed; deletes those without face and
        name. Raises the errors of `Pictures.pick`, or adds the persons to `failed` if given."""
        wanted = sorted(set(person_ids))
        references = self.client.reference_faces(wanted)
        own: dict[str | None, list[StoredFace]] = {person_id: [] for person_id in wanted}
        for face in (*self.faces(list(self._faces), wanted), *self.new_faces):
            if face.face_id in self.gone_faces:
                continue
            moved = self._faces.get(face.face_id)
            owner = face.person_id if moved is None else moved[1]["person_id"]
            if owner in own:
                own[owner].append(face)
        for person_id in wanted:
            if person_id in self._references:
                continue  # it has a successor
            old, faces = references.get(person_id), own[person_id]
            new = old
            if faces and old not in [face.face_id for face in faces]:
                try:
                    new = self.pictures.pick(person_id, faces)
                except (PictureMissing, CorrectionImpossible):
                    if failed is None:
                        raise
                    failed.add(person_id)
            if new != old or (not faces and old is not None):
                self._references[person_id] = old, new if faces else None
        self._without_faces([person_id for person_id in wanted if not own[person_id]])

    def _without_faces(self, person_ids: Sequence[str]) -> None:
        """Deletes those without a name; their not-same constraints pass to the heir, the new root."""
        heirs: dict[str | None, str | None] = {}
        for record in self.directory.those(person_ids):
            if has_name(record):
                continue
            children = [p for p in self.directory.merged_set(record.person_id) if self._parent(p) == record.person_id]
            heir = self._parent(record) or (children[0].person_id if children else None)
            for child in children:
                self.update(child, parent_id=None if child.person_id == heir else heir)
            self._persons[record.person_id] = row_of(record), None
            heirs[record.person_id] = heir
        if not heirs:
            return
        known = self.client.facts_about([], list(map(str, heirs)))
        known = [fact for fact in known if fact not in self._withdrawn]
        lost = [fact for fact in (*known, *self._stated) if heirs.keys() & {fact.person_id, fact.other_id}]
        self.withdraw(known)
        self._stated = [fact for fact in self._stated if not heirs.keys() & {fact.person_id, fact.other_id}]
        apart = []
        for fact in lost:
            one, other = fact.person_id, fact.other_id
            while one in heirs:
                one = heirs[one]
            while other in heirs:
                other = heirs[other]
            if fact.kind == NOT_SAME and one and other and one != other:
                apart.append(two_people(one, other))
        self.state(list(dict.fromkeys(apart)))

    def _parent(self, record: PersonRecord) -> str | None:
        """The planned parent; None if the person is deleted."""
        _, after = self._persons.get(record.person_id, ({}, {}))
        return None if after is None else after.get("parent_id", record.parent_id)


def _require_photos(unknown: Set[int]) -> None:
    """Raises PhotoUnknown if there are any."""
    if unknown:
        ids = sorted(unknown)
        raise PhotoUnknown(media_ids=", ".join(map(str, ids[:20])) + (", ..." if ids[20:] else ""))


def _same(old: PersonRecord, now: PersonRecord | None, *, whole: bool) -> bool:
    if now is None or whole:
        return old == now
    return old == replace(now, **{name: getattr(old, name) for name in _COUNTS})


def has_name(record: PersonRecord) -> bool:
    """Whether the person has a name or an external id."""
    return any((record.name, record.first_name, record.last_name, record.external_id))


def contradicts(known: Fact, new: Fact) -> bool:
    """Whether two constraints contradict each other or are equal."""
    same = (known.face_id, known.person_id, known.other_id) == (new.face_id, new.person_id, new.other_id)
    if same and {known.kind, new.kind} in ({known.kind}, {IS, IS_NOT}):
        return True
    return known.face_id is not None and known.face_id == new.face_id and {known.kind, new.kind} <= {IS, NOBODY}
