"""What a store holds after each night and each correction, by the documents: plain Python, one thing after another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from coded_faces import SIDE, Shown, vector

from tests.people.coded_archive import SIZE
from tests.people.year.archive import Archive, Picture

GATE = 0.59  # a face of a lower quality makes no person
SAME_PLACE = 0.5  # intersection over union
PLACE_BOUND = 2 * 0.54  # the T beyond which a face at the same place is a stranger's
IMPOSSIBLE, TWO_PEOPLE, NO_PICTURE, BLOCKED = 61, 62, 63, 64  # exit codes of refused corrections
IS, IS_NOT, NOBODY, NOT_SAME = "is", "is_not", "nobody", "not_same"


class Refused(Exception):
    """A correction that can't be made, and changes nothing."""

    def __init__(self, exit_code: int) -> None:
        self.exit_code = exit_code


@cache
def _vector(face: Shown) -> Any:
    return vector(face, SIZE).astype(np.float64)


def distance(one: Shown, other: Shown) -> float:
    """Of two faces, in [0, 2]."""
    return max(0.0, 2.0 - 2.0 * float(_vector(one) @ _vector(other))) ** 0.5


@dataclass(eq=False)
class Photo:
    """A file that a run took up: one path with one content."""

    path: str
    picture: Picture
    status: str = "ok"  # or forgotten, or replaced: then nothing is known of the two above
    gone: bool = False
    faces: list[Face] = field(default_factory=list)


@dataclass(eq=False)
class Face:
    photo: Photo
    ordinal: int
    shown: Shown
    outcome: str = "recognised"
    person: Person | None = None
    score: float | None = None
    has_vector: bool = True
    successor: Face | None = None  # the same face of the photo as it is now
    id: int | None = None  # as the store has it, since it was first seen there

    @property
    def known_id(self) -> int:
        assert self.id is not None
        return self.id

    def is_like(self, other: Face) -> bool:
        """Whether it is the same face of the same picture, however that was saved."""
        same = self.photo.picture.faces == other.photo.picture.faces
        return same and self.ordinal == other.ordinal

    def overlap(self, other: Face) -> float:
        """The intersection over union of the places in the photos, as shares of their sides."""
        (left, right, low), (x1, x2, other_low) = self._place(), other._place()
        shared = max(0.0, min(right, x2) - max(left, x1)) * min(low, other_low)
        return shared / ((right - left) * low + (x2 - x1) * other_low - shared)

    def _place(self) -> tuple[float, float, float]:
        """Left, right and lower end: the faces stand in a row, each a little smaller than the one before."""
        count, side = len(self.photo.picture.faces), max(40 - self.ordinal, 20) / SIDE
        return self.ordinal / count, (self.ordinal + side) / count, side


@dataclass(eq=False)
class Person:
    """A record."""

    age: int  # a number that grows
    occurrence: int = 1
    name: str | None = None
    hidden: bool = False
    parent: Person | None = None
    joined_by: str | None = None  # the correction that said last whether it has a parent
    was_below: Person | None = None  # the parent before that one
    joined_at: int = 0  # a number that grows, of that correction
    reference: Face | None = None
    id: str | None = None  # as the store has it, since it was first seen there

    @property
    def known_id(self) -> str:
        assert self.id is not None
        return self.id


Fact: TypeAlias = "tuple[str, Face | None, Person | None, Person | None]"
State: TypeAlias = "dict[tuple[Any, ...], Any]"


@dataclass
class Correction:
    """What it changed: each thing as it was and as it is; None: it was not there."""

    kind: str
    changed: dict[tuple[Any, ...], tuple[Any, Any]]

    def shows(self, people: Iterable[Person]) -> bool:
        """Whether one of the people, or a face as theirs, is in it."""
        gone = set(people)

        def parts(value: Any) -> Iterable[Any]:
            return value if isinstance(value, tuple) else (value,)

        rows = ((key, *pair) for key, pair in self.changed.items() if key[0] != "joint")
        values = (value for row in rows for part in row for value in parts(part))
        return any(isinstance(value, Person) and value in gone for value in values)


@dataclass
class Night:
    """What the report of a run says."""

    new: int = 0
    already_in: int = 0
    back: int = 0
    decoded: int = 0
    changed_files: list[str] = field(default_factory=list)
    forgotten_files: list[str] = field(default_factory=list)
    moved_files: list[tuple[str, str]] = field(default_factory=list)
    vanished_files: list[str] = field(default_factory=list)
    vanished: int = 0  # these, and those that are forgotten at once
    forgotten_missing_files: list[str] = field(default_factory=list)
    too_many_missing: int = 0
    statuses: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)


class Model:
    def __init__(self, archive: Archive) -> None:
        self._archive = archive  # pictures are cut from its photos
        self.photos: list[Photo] = []  # in the order in which they came
        self.people: list[Person] = []  # the oldest first
        self.facts: dict[Fact, int] = {}  # each with the number of its statement
        self.corrections: list[Correction] = []  # not undone
        self._root = archive.root  # last night
        self._forgotten_paths: set[Path] = set()
        self._forgotten_pictures: set[Picture] = set()
        self._forgotten_faces: set[tuple[Picture, int]] = set()
        self._count = 0  # of all that is numbered

    # What there is

    def faces(self) -> list[Face]:
        return [face for photo in self.photos for face in photo.faces if face.outcome != "removed"]

    def faces_of(self, *people: Person) -> list[Face]:
        return [face for face in self.faces() if face.person in people]

    def root(self, person: Person) -> Person:
        while person.parent is not None:
            person = person.parent
        return person

    def set_of(self, person: Person) -> list[Person]:
        """All who are merged with it, itself included."""
        return [one for one in self.people if self.root(one) is self.root(person)]

    def roots(self) -> list[Person]:
        return [person for person in self.people if person.parent is None]

    def _number(self) -> int:
        self._count += 1
        return self._count

    # A night

    def night(self, threshold: float, *, forget: bool = False, limit: float = 0.2) -> Night:
        """A run over the archive. `forget`: photos that are missing, unless they are more than `limit` of all."""
        report, there = Night(), self._archive.photos
        known: dict[str, list[Photo]] = {}
        for photo in self._remembered():
            known.setdefault(photo.path, []).append(photo)
        fresh = []
        for path in self._archive.in_order():
            stored = next((p for p in known.get(path, ()) if p.picture == there[path]), None)
            if stored is None:
                fresh.append(path)
            else:
                report.back += stored.gone
                stored.gone = False
                report.already_in += 1
        missing = sorted(path for path in known if path not in there)
        for path in sorted(fresh):
            old = next((old for old in missing if known[old][-1].picture == there[path]), None)
            if path not in known and old is not None:
                missing.remove(old)
                report.moved_files.append((old, path))
        moves = dict(report.moved_files)
        report.vanished_files = [path for path in missing if not all(photo.gone for photo in known[path])]
        report.vanished = len(report.vanished_files)
        for photo in self._remembered():
            photo.gone = (photo.gone or photo.path in missing) and photo.path not in moves
            photo.path = moves.get(photo.path, photo.path)
        self._take_up([path for path in fresh if path not in moves.values()], known, threshold, report)
        if forget and len(missing) > limit * len(known):
            report.too_many_missing = len(missing)
        elif forget:
            report.forgotten_missing_files = missing
            report.vanished_files = []
            self._forget_photos([photo for path in missing for photo in known[path]])
        self._root = self._archive.root
        return report

    def _remembered(self) -> list[Photo]:
        return [photo for photo in self.photos if photo.status not in ("forgotten", "replaced")]

    def _forget_photos(self, photos: Sequence[Photo]) -> None:
        self._leave(photos, "forgotten")
        for photo in photos:
            if all(other.path != photo.path for other in self._remembered()):
                self._forgotten_paths.add(self._archive.root / photo.path)
            if all(other.picture != photo.picture for other in self._remembered()):
                self._forgotten_pictures.add(photo.picture)

    def _leave(self, photos: Sequence[Photo], status: str) -> None:
        """With their faces. Who was known by one of them is known by another, whether or not it can be cut."""
        losers = [face.person for photo in photos for face in photo.faces]
        for photo in photos:
            photo.status = status
        for face in [face for photo in photos for face in photo.faces]:
            self._hand_on(face)
        for photo in photos:
            self._remove_faces(photo.faces)
        before = [*self.people]
        self.settle(losers, must_be_cut=False)
        self._forget_corrections({p for p in before if p not in self.people})

    def _hand_on(self, face: Face) -> None:
        """What was stated of a face that leaves holds for the photo's bytes, so for a copy, and for its successor. That
        one also is what the person is known by."""
        own = {fact: number for fact, number in self.facts.items() if fact[1] is face}
        stated = {fact[1] for fact in self.facts}
        copies = [
            photo.faces[face.ordinal]
            for photo in self._remembered()
            if photo.picture == face.photo.picture and photo.faces[face.ordinal].outcome != "removed"
        ]
        able = (copy for copy in copies if copy.person is face.person and copy not in stated)
        for heir in (next(able, None), face.successor):
            if heir is not None:
                self.facts |= {(kind, heir, one, other): number for (kind, _, one, other), number in own.items()}
        person, heir = face.person, face.successor
        if person is not None and person.reference is face and heir is not None and heir.has_vector:
            person.reference = heir

    def _remove_faces(self, faces: Iterable[Face]) -> None:
        for face in faces:
            face.outcome, face.person, face.score, face.has_vector = "removed", None, None, False
        for fact in [fact for fact in self.facts if fact[1] is not None and fact[1].outcome == "removed"]:
            del self.facts[fact]

    def _forget_corrections(self, gone: Iterable[Person]) -> None:
        self.corrections = [correction for correction in self.corrections if not correction.shows(gone)]

    def _take_up(self, paths: Sequence[str], known: Mapping[str, list[Photo]], threshold: float, report: Night) -> None:
        first_of = {
            photo.picture: photo
            for photo in reversed(self._remembered())
            if all(face.outcome != "removed" and face.has_vector for face in photo.faces)
        }
        taken: list[Photo] = []
        decoded, leaving = set(), dict[Photo, None]()
        for path in paths:
            picture = self._archive.photos[path]
            if self._root / path in self._forgotten_paths:  # before the archive moved
                self._forgotten_paths.add(self._archive.root / path)
            if self._archive.root / path in self._forgotten_paths or picture in self._forgotten_pictures:
                report.forgotten_files.append(path)
                continue
            photo = Photo(path, picture, "ok" if picture.faces else "no_face")
            if picture in decoded or first_of.get(picture, photo) not in (photo, *leaving):
                photo.status = "duplicate"
            else:
                report.decoded += 1
                decoded.add(picture)
            if path in known:
                report.changed_files.append(path)
                leaving |= dict.fromkeys(known[path])
            else:
                report.new += 1
            report.statuses[photo.status] += 1
            taken.append(photo)
        for photo in taken:
            self.photos.append(photo)
            photo.faces = [Face(photo, ordinal, shown) for ordinal, shown in enumerate(photo.picture.faces)]
            self._decide(photo, [face for old in known.get(photo.path, ()) for face in old.faces], threshold)
            report.outcomes.update(face.outcome for face in photo.faces)
        before = {p: p.reference for p in self.people}
        self._leave(list(leaving), "replaced")
        # A picture is cut from each photo that was not decoded of which somebody is known from now on.
        known_by = {p.reference for p in self.people if p.reference is not before[p]}
        known_by |= {p.reference for p in self.people if p.reference is not None and p.reference.photo in taken}
        cut = {face.photo for face in known_by if face is not None and self._is_there(face.photo)}
        report.decoded += len(cut - {photo for photo in taken if photo.status == "ok"})

    def _same_faces(self, photo: Photo, earlier: Sequence[Face], threshold: float) -> dict[Face, Face]:
        """Which of its faces is which earlier one: one to one, the surest first."""
        pairs = []
        for (number, face), (other, old) in product(enumerate(photo.faces), enumerate(earlier)):
            far, overlap = distance(face.shown, old.shown), face.overlap(old)
            like, there = old.has_vector and far <= threshold**0.5, overlap >= SAME_PLACE
            bound = max(PLACE_BOUND, threshold) ** 0.5
            if old.outcome != "removed" and (like or (there and (not old.has_vector or far <= bound))):
                pairs.append((not (like and there), not like, far if like else -overlap, number, other))
        found: dict[Face, Face] = {}
        for *_, number, other in sorted(pairs):
            if photo.faces[number] not in found and earlier[other] not in found.values():
                found[photo.faces[number]] = earlier[other]
        return found

    def _decide(self, photo: Photo, earlier: Sequence[Face], threshold: float) -> None:
        made, again = set(), set()
        for face in photo.faces:
            if (photo.picture, face.ordinal) in self._forgotten_faces:
                face.outcome, face.has_vector = "removed", False
        same = self._same_faces(photo, earlier, threshold)
        for face in photo.faces:
            old = same.get(face)
            if old is not None and old.person is None and all(fact[1] is not old for fact in self.facts):
                old = None
            stated = self._stated_of_copies(face)
            if face.outcome == "removed":
                continue
            if old is not None and (not stated or stated[-1] is old.person):
                face.person, old.successor = old.person, face
                face.outcome = "recognised" if face.person is None else "matched"
                face.has_vector = face.person is None or old.has_vector or face.shown.quality >= GATE
                if face.person is not None:
                    again.add(self.root(face.person))
            elif stated:
                face.person = stated[-1]
                face.outcome = "recognised" if face.person is None else "matched"
                face.has_vector = face.person is None or face.shown.quality >= GATE
            else:
                self._match(face, threshold)
                if face.outcome == "inserted":
                    made.add(face.person)
        seen: dict[Person, Person] = {}
        for face in photo.faces:
            if face.person is not None and face.person not in made:
                seen.setdefault(self.root(face.person), face.person)
        for root, person in seen.items():
            person.occurrence += root not in again

    def _stated_of_copies(self, face: Face) -> list[Person | None]:
        """Whose the same face of a photo with the same bytes is, by statement, the last one last."""
        found = [
            (number, person)
            for (kind, other, person, _), number in self.facts.items()
            if kind in (IS, NOBODY) and other is not None
            if other.photo.picture == face.photo.picture and other.ordinal == face.ordinal
        ]
        return [person for _, person in sorted(found, key=lambda entry: entry[0])]

    def _match(self, face: Face, threshold: float) -> None:
        """With the nearest reference; else it is a new person, if it is good enough."""
        near = [
            (0.0 if face.is_like(p.reference) else distance(face.shown, p.reference.shown), p.age, p)
            for p in self.people
            if p.reference is not None
        ]
        if near and min(near)[0] <= threshold**0.5:
            far, _, face.person = min(near)
            face.outcome, face.score = "matched", _score(far, threshold)
        elif face.shown.quality >= GATE:
            face.outcome, face.score = "inserted", _score(0.0, threshold)
            face.person = self.new_person(face)
        else:
            face.outcome, face.has_vector = "rejected", False

    def new_person(self, reference: Face | None) -> Person:
        person = Person(self._number(), reference=reference)
        self.people.append(person)
        return person

    # Corrections

    def name(self, person: Person, name: str | None) -> None:
        def change() -> None:
            if person.reference is None and name is None:
                raise Refused(IMPOSSIBLE)
            person.name = name

        self.correct("name", change)

    def hide(self, person: Person, hidden: bool) -> None:
        self.correct("hide" if hidden else "unhide", lambda: setattr(person, "hidden", hidden))

    def merge(self, *people: Person, anyway: bool = False) -> None:
        def change() -> None:
            roots = {self.root(person): None for person in people}
            if len(roots) < 2:
                raise Refused(IMPOSSIBLE)
            for fact in list(self.facts):
                if fact[0] == NOT_SAME and self._joins(fact, roots):
                    if not anyway:
                        raise Refused(TWO_PEOPLE)
                    del self.facts[fact]
            named = sorted(people, key=lambda p: p.age)
            own_roots = [p for p in named if p.parent is None]
            with_others = [p for p in own_roots if len(self.set_of(p)) > 1]
            top = next(iter((*with_others, *own_roots)), self.root(named[0]))
            for root in roots:
                if root is not top:
                    self.put_below(root, top, "merge")

        self.correct("merge", change)

    def _joins(self, fact: Fact, roots: Iterable[Person]) -> bool:
        """Whether a merge of these roots makes one of the two whom a fact says to be two."""
        one, other = (self.root(p) for p in fact[2:] if p is not None)
        return one is not other and {one, other} <= set(roots)

    def unmerge(self, person: Person) -> None:
        """Takes a person out of whom it is merged with; one who stands for others lets them go."""

        def change() -> None:
            below = [person] if person.parent is not None else [p for p in self.people if p.parent is person]
            pairs = [(other, one) for one in below for other in (self.root(one), one.parent)]
            for one in below:
                self.put_below(one, None, "unmerge")
            for other, one in pairs:
                assert other is not None
                self.state_two(other, one)

        self.correct("unmerge", change)

    def put_below(self, person: Person, parent: Person | None, kind: str) -> None:
        person.was_below, person.parent, person.joined_by = person.parent, parent, kind
        person.joined_at = self._number()

    def not_same(self, one: Person, other: Person) -> None:
        def change() -> None:
            if self.root(one) is self.root(other):
                raise Refused(IMPOSSIBLE)
            self.state_two(self.root(one), self.root(other))

        self.correct("not_same", change)

    def move(self, face: Face, to: Person | None) -> None:
        def change() -> None:
            before = face.person
            self.put(face, to)
            self._state((NOBODY, face, None, None) if to is None else (IS, face, to, None))
            if before not in (None, to):
                self._state((IS_NOT, face, before, None))
            self.settle([before, to])
            if not self.people:
                raise Refused(IMPOSSIBLE)

        self.correct("move", change)

    def split(self, person: Person, faces: Sequence[Face]) -> None:
        def change() -> None:
            members, root = self.set_of(person), self.root(person)
            if not 0 < len(faces) < len(self.faces_of(*members)) or any(face.person not in members for face in faces):
                raise Refused(IMPOSSIBLE)
            losers = [face.person for face in faces]
            new = self.new_person(None)
            for face in faces:
                self.put(face, new)
                self._state((IS, face, new, None))
            self.state_two(root, new)
            self.settle([new, *losers])

        self.correct("split", change)

    def forget(self, person: Person) -> None:
        gone, alone = self.set_of(person), dict[Photo, None]()
        for face in self.faces_of(*gone):
            photo = face.photo
            self._forgotten_faces.add((photo.picture, face.ordinal))
            if all(other.person in (None, *gone) for other in photo.faces):
                alone[photo] = None
                self._forgotten_paths.add(self._archive.root / photo.path)
                self._forgotten_pictures.add(photo.picture)
        for fact in [fact for fact in self.facts if {*gone} & {*fact[2:]}]:
            del self.facts[fact]
        self._remove_faces(self.faces_of(*gone))
        self.people = [one for one in self.people if one not in gone]
        self._forget_corrections(gone)
        self._leave([*alone], "forgotten")

    def undo(self) -> None:
        if not self.corrections:
            raise Refused(IMPOSSIBLE)
        last, now = self.corrections[-1], self._state_of_all()
        made = {key[1] for key, (before, _) in last.changed.items() if key[0] == "person" and before is None}
        if any(now.get(key) != after for key, (_, after) in last.changed.items() if key[0] != "joint"):
            raise Refused(BLOCKED)
        came = [face for face in self.faces() if face.person in made and ("face", face) not in last.changed]
        if came:
            raise Refused(BLOCKED)
        for key, (before, _) in last.changed.items():
            if key[0] == "reference" and before is not None and not self.can_be_cut(before):
                raise Refused(NO_PICTURE)
        self._restore({key: before for key, (before, _) in last.changed.items()})
        self.corrections.pop()

    def swap(self) -> None:
        """Another model answers: no face has a score by it yet, nor an undo one to bring back."""
        for face in self.faces():
            face.score = None
        for correction in self.corrections:
            for key, values in correction.changed.items():
                if key[0] == "face":
                    before, after = (value and (*value[:2], None) for value in values)
                    correction.changed[key] = before, after

    # What corrections have in common

    def correct(self, kind: str, change: Callable[[], object]) -> None:
        """Makes a change, or raises Refused and makes none; keeps what it changed."""
        before = self._state_of_all()
        try:
            change()
        except Refused:
            self._restore({key: before.get(key) for key in {**self._state_of_all(), **before}})
            raise
        after = self._state_of_all()
        changed = {key: (before.get(key), after.get(key)) for key in {**before, **after}}
        changed = {key: (old, new) for key, (old, new) in changed.items() if old != new}
        if changed:
            self.corrections.append(Correction(kind, changed))

    def _state_of_all(self) -> State:
        """All that corrections change."""
        state: State = {("fact", *fact): number for fact, number in self.facts.items()}
        for face in self.faces():
            state["face", face] = face.person, face.outcome, face.score
        for p in self.people:
            state["person", p] = True
            state |= {(column, p): getattr(p, column) for column in ("name", "hidden", "parent", "reference")}
            state["joint", p] = p.joined_by, p.was_below, p.joined_at
        return state

    def _restore(self, state: State) -> None:
        for (what, *which), value in state.items():
            if what == "fact":
                fact: Fact = tuple(which)  # type: ignore[assignment]
                self.facts.pop(fact, None)
                if value is not None:
                    self.facts[fact] = value
            elif what == "face":
                face: Face = which[0]
                face.person, face.outcome, face.score = value
            elif what == "person":
                self.people = [p for p in self.people if p is not which[0]] + [which[0]] * bool(value)
            elif what == "joint":
                which[0].joined_by, which[0].was_below, which[0].joined_at = value or (None, None, 0)
            else:
                setattr(which[0], what, value)
        self.people.sort(key=lambda p: p.age)

    def put(self, face: Face, person: Person | None) -> None:
        if face.person is not person:
            face.person, face.score = person, None
            face.outcome = "recognised" if person is None else "matched"

    def _state(self, new: Fact) -> None:
        """In place of what it contradicts."""
        kind, face, *_ = new
        for old in list(self.facts):
            same = old[1:] == new[1:] and {old[0], kind} in ({kind}, {IS, IS_NOT})
            whose = face is not None and old[1] is face and {old[0], kind} <= {IS, NOBODY}
            if same or whose:
                del self.facts[old]
        self.facts[new] = self._number()

    def state_two(self, one: Person, other: Person) -> None:
        first, second = sorted((one, other), key=lambda p: p.age)
        self._state((NOT_SAME, None, first, second))

    def can_be_cut(self, face: Face) -> bool:
        """Whether the face's picture can be had: it is stored, or the photo is as it was."""
        if any(p.reference is face for p in self.people):
            return True
        return self._is_there(face.photo)

    def _is_there(self, photo: Photo) -> bool:
        return self._archive.photos.get(photo.path) == photo.picture

    def settle(self, people: Iterable[Person | None], *, must_be_cut: bool = True) -> None:
        """People who lost the face that they are known by get the best of their others; without faces only those
        with a name stay."""
        wanted = {p: None for p in people if p is not None}
        can_be_cut = {face for face in self.faces_of(*wanted) if self.can_be_cut(face)}
        for p in wanted:
            own = self.faces_of(p)
            if own and p.reference not in own:
                able = [face for face in own if face.has_vector]
                cut = [face for face in able if face in can_be_cut]
                if must_be_cut and not cut:
                    raise Refused(NO_PICTURE if able else IMPOSSIBLE)
                best = sorted(cut or able, key=lambda face: (-face.shown.quality, face.ordinal))
                p.reference = best[0] if best else None
            elif not own:
                p.reference = None
                if p.name is None:
                    self._remove(p)

    def _remove(self, gone: Person) -> None:
        """One of those who are merged takes the place."""
        children = [p for p in self.people if p.parent is gone]
        heir = gone.parent or next(iter(children), None)
        for child in children:
            self.put_below(child, None if child is heir else heir, "heir")
        self.people.remove(gone)
        for fact in [fact for fact in self.facts if gone in fact[2:]]:
            del self.facts[fact]
            if fact[0] == NOT_SAME:
                (other,) = (p for p in fact[2:] if p is not None and p is not gone)
                if heir is not None and heir is not other:
                    self.state_two(heir, other)


def _score(far: float, threshold: float) -> float:
    return (2.0 - far) / (2.0 - threshold**0.5)
