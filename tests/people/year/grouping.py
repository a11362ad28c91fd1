"""What `facepipe regroup` makes of the people of a model (docs/people.md, docs/decisions/regrouping.md)."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from itertools import groupby, product

from tests.people.year.model import GATE, IS, IS_NOT, NOBODY, NOT_SAME, Face, Model, Person, Photo, distance


@dataclass(eq=False)
class Side:
    """Persons who are one; at first those whom users merged."""

    root: Person
    members: list[Person]
    names: set[str]
    hidden: bool
    not_these: set[Person] = field(default_factory=set)  # roots who are stated to be others
    # Constraints on two people by number: n for those on one side, -n for those on the other. Also of those whom a
    # regroup had joined with such a person by then.
    words: set[int] = field(default_factory=set)

    def is_held(self, model: Model) -> bool:
        """Whether they stay, even where none of their faces could make a person."""
        stated = {p for fact in model.facts for p in fact[2:]}
        parents = {p.parent for p in model.people}
        own = any(p.name or p.hidden or p in parents or p in stated for p in self.members)
        return own or len(self.members) > 1


class Regroup:
    def __init__(self, model: Model, threshold: float) -> None:
        self._model = model
        self._threshold = threshold
        self.sides = self._by_users()
        self.side_of = {p: side for side in self.sides for p in side.members}
        self._groups = {id(side): [side] for side in self.sides}  # what is joined, by each of its sides
        self._stated = {face for kind, face, _, _ in model.facts if kind == IS}
        self._left_out = {face for kind, face, _, _ in model.facts if kind == NOBODY}
        self.moved: dict[Face, Person | None] = {}
        self.new: list[list[Face]] = []
        self._shown: set[tuple[Photo, int]] = set()  # whose groups photos show
        self._settled: set[Face] = set()  # stay where they are
        self.two = self._words()  # two people, and the number of what was said; None: an unmerge

    def _by_users(self) -> list[Side]:
        """Without the joins of other regroups."""

        def root(p: Person) -> Person:
            return p if p.parent is None or p.joined_by == "regroup" else root(p.parent)

        sides: dict[Person, Side] = {}
        for p in self._model.people:
            side = sides.setdefault(root(p), Side(root(p), [], set(), self._model.root(p).hidden))
            side.members.append(p)
            side.names |= {p.name} if p.name else set()
        two = [(one, other) for kind, _, one, other in self._model.facts if kind == NOT_SAME]
        two += [(p, p.was_below) for p in self._model.people if p.joined_by == "unmerge"]
        two += [(face.person, p) for kind, face, p, _ in self._model.facts if kind == IS_NOT and face is not None]
        for one, other in two:
            if one in self._model.people and other in self._model.people and root(one) is not root(other):
                sides[root(one)].not_these.add(root(other))
                sides[root(other)].not_these.add(root(one))
        return list(sides.values())

    def _words(self) -> list[tuple[Person, Person, int | None]]:
        two: list[tuple[Person, Person, int | None]] = [
            (one, other, number)
            for (kind, _, one, other), number in self._model.facts.items()
            if kind == NOT_SAME and one in self.side_of and other in self.side_of
        ]
        two += [
            (p, p.was_below, None)
            for p in self._model.people
            if p.joined_by == "unmerge" and p.was_below in self.side_of
        ]
        for number, (one, other, said) in enumerate(two, 1):
            ones, others = self._meant(one, said), self._meant(other, said)
            for side in self.sides:
                if side in ones and side not in others:
                    side.words.add(number)
                elif side in others and side not in ones:
                    side.words.add(-number)
        return two

    def _meant(self, person: Person, said: int | None) -> list[Side]:
        found = [self.side_of[person]]
        for side in found:
            for p in self._model.people:
                joined = p.joined_by == "regroup" and p.parent is not None and said is not None and p.joined_at < said
                if joined and self.side_of[p.parent] is side and self.side_of[p] not in found:
                    found.append(self.side_of[p])
        return found

    def decide(self) -> None:
        clusters = self._clusters()
        kept = self._kept(clusters)
        faces = [face for face in self._to_cluster() if face.person is not None]
        staying = [face for face in faces if self._stays(face)]
        cluster_of = {face: cluster for cluster, members in enumerate(clusters) for face in members}
        at_home = [
            face for face in faces
            if not self._stays(face) and face in cluster_of and self._side(face) in kept[cluster_of[face]]
        ]  # fmt: skip
        self._shown = {self._showing(face) for face in (*staying, *at_home)}
        bound = [face for cluster, members in enumerate(clusters) for face in self._bound(kept[cluster], members)]
        self._photos: dict[int, set[Photo]] = {id(side): {f.photo for f in self._staying(side)} for side in self.sides}
        for face in bound:
            self._photos[id(self._side(face))].add(face.photo)
        for cluster, members in enumerate(clusters):
            first_of: dict[bool, Side] = {}
            for side in self._hub_first(kept[cluster], members):
                if side is not None:
                    self._join(first_of.setdefault(side.hidden, side), side)
        self._shown = {self._showing(face) for face in staying}
        for face in (*bound, *at_home):
            self._settle(face)
        for cluster, members in enumerate(clusters):
            self._place(kept[cluster], members)
        self._leave_out(clusters)

    def _clusters(self) -> list[list[Face]]:
        """Each photo in its turn: its faces with the nearest first face of a cluster, else the first of one; while two
        of them are with the same one, again without all but one of them."""
        clusters: dict[Face, list[Face]] = {}
        for _, faces in groupby(self._to_cluster(), key=lambda face: face.photo):
            own = list(faces)
            barred: dict[Face, set[Face]] = {face: set() for face in own}
            while True:
                first_of = self._firsts(own, list(clusters), barred)
                losing = self._losing(first_of)
                if not losing:
                    break
                for face in losing:
                    barred[face].add(first_of[face])
            for face, first in first_of.items():
                clusters.setdefault(first, []).append(face)
        return list(clusters.values())

    def _to_cluster(self) -> list[Face]:
        return [face for face in self._model.faces() if face.has_vector and face not in self._left_out]

    def _firsts(self, faces: list[Face], firsts: list[Face], barred: dict[Face, set[Face]]) -> dict[Face, Face]:
        """The first face of the cluster of each face that has one."""
        found: dict[Face, Face] = {}
        for face in faces:
            near = [(_far(face, first), n) for n, first in enumerate(firsts) if first not in barred[face]]
            if near and min(near)[0] <= self._threshold**0.5:
                found[face] = firsts[min(near)[1]]
            elif self._founds(face):
                firsts.append(face)
                found[face] = face
        return found

    def _losing(self, first_of: dict[Face, Face]) -> list[Face]:
        rivals = defaultdict(list)
        for face, first in first_of.items():
            rivals[first].append(face)
        losing = []
        for first, faces in rivals.items():
            keeper, *others = sorted(faces, key=lambda f: (f is not first, self._word(f, first), _far(f, first)))
            given = self._given(keeper)
            losing += [face for face in others if given is None or self._given(face) is not given]
        return losing

    def _word(self, face: Face, first: Face) -> int:
        """0 if users gave the face to the cluster's person, 2 if to another."""
        given = self._given(face)
        return 1 if given is None else 0 if given is self._given(first) else 2

    def _given(self, face: Face) -> Side | None:
        if face.person is None:
            return None
        side = self.side_of[face.person]
        bound = side.names or side.not_these or len(side.members) > 1
        return side if face in self._stated or (bound and face.person.reference is face) else None

    def _stays(self, face: Face) -> bool:
        return face.person is not None and (face in self._stated or face.person.reference is face)

    def _founds(self, face: Face) -> bool:
        if face.shown.quality >= GATE:
            return True
        return (
            face.person is not None and face.person.reference is face and self.side_of[face.person].is_held(self._model)
        )

    def _kept(self, clusters: list[list[Face]]) -> list[dict[Side, Person]]:
        """Of each cluster the sides that keep their part there, each with the record that more faces can go to."""
        kept: list[dict[Side, Person]] = [{} for _ in clusters]
        parts: dict[Side, dict[int, list[Face]]] = {}
        anchored = set()
        for cluster, members in enumerate(clusters):
            for face in members:
                if face.person is not None:
                    side = self.side_of[face.person]
                    parts.setdefault(side, {}).setdefault(cluster, []).append(face)
                    if face in self._stated or face.person.reference is face:
                        kept[cluster].setdefault(side, face.person)
                        anchored.add(side)
        for side, of_side in parts.items():
            if side not in anchored:  # the largest part, else the earliest
                largest = max(of_side, key=lambda c: (len(of_side[c]), -self._order(of_side[c][0])))
                kept[largest][side] = of_side[largest][0].person  # type: ignore[assignment]
        return kept

    def _order(self, face: Face) -> int:
        return self._model.faces().index(face)

    def _hub_first(self, kept: dict[Side, Person], members: list[Face]) -> list[Side | None]:
        """The side of the first face, if it keeps a part, then the others by their first face."""
        first = members[0].person and self.side_of[members[0].person]
        return [*sorted(kept, key=lambda side: side is not first)] or [None]

    def group(self, side: Side) -> list[Side]:
        return self._groups[id(side)]

    def _join(self, one: Side, other: Side) -> None:
        ours, theirs = self.group(one), self.group(other)
        if ours is theirs:
            return
        names, others = (frozenset().union(*(s.names for s in group)) for group in (ours, theirs))
        stated = any(s.root in t.not_these for s in ours for t in theirs)
        photos, their_photos = ({photo for s in group for photo in self._photos[id(s)]} for group in (ours, theirs))
        if photos & their_photos or stated or (names and others and names != others) or self._word_against(one, other):
            return
        ours += theirs
        for side in theirs:
            self._groups[id(side)] = ours

    def _staying(self, side: Side) -> list[Face]:
        of_side = [face for face in self._to_cluster() if face.person is not None and self.side_of[face.person] is side]
        return [face for face in of_side if self._stays(face)]

    def _side(self, face: Face) -> Side:
        assert face.person is not None
        return self.side_of[face.person]

    def _showing(self, face: Face) -> tuple[Photo, int]:
        return face.photo, id(self.group(self._side(face)))

    def _settle(self, face: Face) -> bool:
        if self._showing(face) in self._shown:
            return False
        self._shown.add(self._showing(face))
        self._settled.add(face)
        return True

    def _bound(self, kept: dict[Side, Person], members: list[Face]) -> list[Face]:
        """The faces that a user's word keeps with their person: else they would meet those of one it is kept from."""
        moving = [face for face in members if face.person is not None and not self._stays(face)]
        leaving = [side for side in dict.fromkeys(map(self._side, moving)) if side not in kept]
        barred = [
            side for side in leaving
            if any(self._word_against(other, side) == "said" for other in (*kept, *leaving))
            or (kept and all(other.hidden != side.hidden for other in kept))
        ]  # fmt: skip
        found = []
        for face in moving:
            if self._side(face) in barred and self._showing(face) not in self._shown:
                self._shown.add(self._showing(face))
                found.append(face)
        return found

    def _word_against(self, one: Side, other: Side) -> str | None:
        """Why no face of the group of one may be of the other's."""
        ours, theirs = self.group(one), self.group(other)
        words, others = (frozenset().union(*(s.words for s in group)) for group in (ours, theirs))
        names, their_names = (frozenset().union(*(s.names for s in group)) for group in (ours, theirs))
        if any(-word in others for word in words) or (names and their_names and names != their_names):
            return "said"
        return "hidden" if ours[0].hidden != theirs[0].hidden else None

    def _place(self, kept: dict[Side, Person], members: list[Face]) -> None:
        new: dict[bool, list[Face]] = {}
        for face in members:
            side = self.side_of[face.person] if face.person is not None else None
            if self._stays(face) or face in self._settled:
                continue
            is_not = [p for kind, f, p, _ in self._model.facts if kind == IS_NOT and f is face]
            barred = {self.side_of[p].root for p in is_not if p in self.side_of}
            able = [
                s for s in self._hub_first(kept, members)
                if s is not None and not barred & {t.root for t in self.group(s)}
                and (face.photo, id(self.group(s))) not in self._shown
            ]  # fmt: skip
            apart = [s for s in able if side is not None and self._word_against(s, side)]
            able = [s for s in able if s not in apart]
            if apart and not able and self._settle(face):
                continue
            if not able:
                new.setdefault(side is not None and side.hidden, []).append(face)
            elif side is not None and any(self.group(s) is self.group(side) for s in able):
                self._shown.add((face.photo, id(self.group(side))))
            else:
                self._shown.add((face.photo, id(self.group(able[0]))))
                self.moved[face] = kept[able[0]]
        for faces in new.values():
            if any(self._founds(face) for face in faces):
                self.new.append(faces)
            else:
                self.moved |= {face: None for face in faces if face.person is not None}

    def _leave_out(self, clusters: list[list[Face]]) -> None:
        """Who is like nobody, and can be nobody's first."""
        grouped = {face for members in clusters for face in members}
        staying = {self.side_of[f.person] for f in (*grouped, *self._stated) if f is not None and f.person is not None}
        for face in self._model.faces():
            if face in grouped or face in self._left_out or not face.has_vector or face.person is None:
                continue
            side = self.side_of[face.person]
            known_by = face.person.reference is face and (side in staying or side.is_held(self._model))
            if face not in self._stated and not known_by:
                self.moved[face] = None


def _far(face: Face, first: Face) -> float:
    return 0.0 if face.is_like(first) else distance(face.shown, first.shown)


def regroup(model: Model, threshold: float) -> None:
    """As one correction."""
    decided = Regroup(model, threshold)

    def change() -> None:
        decided.decide()
        decided_people = list(model.people)
        losers: list[Person | None] = []
        for faces in decided.new:
            if any(model.can_be_cut(face) for face in faces):
                new = model.new_person(None)
                new.hidden = faces[0].person is not None and decided.side_of[faces[0].person].hidden
                decided.moved |= dict.fromkeys(faces, new)
                losers.append(new)
        inherited = _inherited(decided, losers)
        for face, person in decided.moved.items():
            losers.append(face.person)
            model.put(face, person)
        for pair in inherited:
            model.state_two(*pair)
        _join_records(model, decided, decided_people)
        model.settle(losers)

    model.correct("regroup", change)


def _apart(decided: Regroup, p: Person) -> bool:
    """Whether a regroup joined it with somebody, and this one does not."""
    joined = p.parent is not None and p.joined_by == "regroup"
    return joined and decided.group(decided.side_of[p]) is not decided.group(decided.side_of[p.parent])  # type: ignore[index]


def _inherited(decided: Regroup, new: list[Person | None]) -> list[tuple[Person, Person]]:
    """The not-same constraints of people, for new ones with their faces and for those no longer joined with them."""
    sides_of: dict[Person, set[Side]] = {p: {side} for p, side in decided.side_of.items() if _apart(decided, p)}
    sides_of |= {p: set() for p in new if p is not None}
    for face, person in decided.moved.items():
        if person in sides_of and person in new and face.person is not None:
            sides_of[person].add(decided.side_of[face.person])
    on: dict[int, list[Person]] = defaultdict(list)
    for p, sides in sides_of.items():
        words = {word for side in sides for word in side.words}
        for word in words - {-word for word in words}:
            on[word].append(p)

    def group_of(p: Person) -> int | None:
        return id(decided.group(decided.side_of[p])) if p in decided.side_of else None

    found: list[tuple[Person, Person]] = []
    for number, (one, other, said) in enumerate(decided.two, 1):
        pairs = [(p, other) for p in on[number]] + [(one, p) for p in on[-number]] + [*product(on[number], on[-number])]
        found += [
            pair
            for pair in pairs
            if said is not None and (group_of(pair[0]) is None or group_of(pair[0]) != group_of(pair[1]))
        ]
    known = [{one, other} for one, other, said in decided.two if said is not None]
    return [pair for pair in found if {*pair} not in known]


def _join_records(model: Model, decided: Regroup, people: list[Person]) -> None:
    """The one with a name stands for the others, then one with whom others are merged, then the oldest."""
    parted = [p for p in people if _apart(decided, p)]
    for p in parted:
        model.put_below(p, None, "regroup")
    for side in decided.sides:
        members = [p for one in decided.group(side) for p in one.members]
        tops = {model.root(p): None for p in members}
        parents = {p.parent for p in model.people}
        first, *others = sorted(tops, key=lambda p: (p.name is None, p not in parents, p.age))
        for other in others:
            model.put_below(other, first, "regroup")
    for p in parted:
        if p.parent is None:
            p.hidden = decided.side_of[p].hidden
