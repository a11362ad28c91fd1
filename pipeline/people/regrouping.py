"""The changes of a re-clustering: which faces move, and which persons are merged.

A part is a person's faces in a cluster. One with a fixed face (posted, or pinned by a constraint) or the reference
keeps the person. Other faces of the cluster go to a person that keeps a part there, or become a new one. Persons that
keep parts in one cluster are merged, unless `Group.reason_against` says no. A face stays if it would go to a person, or
with the faces of one, that a user keeps apart from its own (`Group.word_against`). A face whose photo shows the person
already becomes a new person's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

# Why two persons are not merged.
NAME, EXTERNAL_ID, STATED, PHOTO, HIDDEN = "name", "external id", "stated", "photo", "hidden"


@dataclass(frozen=True)
class ClusteredFace:
    """A face with its person and its cluster."""

    face_id: int
    photo: int  # two faces of one are of two people; -1: no constraint
    person_id: str | None  # the record
    root: str | None  # the record's root by the merges of users
    fixed: bool  # must stay
    reference: bool  # of its record
    founds: bool  # may be a person's first
    barred: frozenset[str] = frozenset()  # cannot-link roots
    cluster: int | None = None  # None: it matches nobody and founds no person

    @property
    def stays(self) -> bool:
        """Whether it is its person's whatever its cluster."""
        return self.root is not None and (self.fixed or self.reference)


@dataclass
class Group:
    """Merged persons, and what prevents further merges."""

    roots: set[str]
    names: set[tuple[str, ...]]
    external_ids: set[str]
    against: set[str]  # cannot-link roots
    held: bool  # stay even if none of their faces could found a person
    hidden: bool = False
    # Constraints on two people, by number: n for those on one side, -n for those on the other. Unlike `against` also of
    # those whom a regroup had joined with such a person when the user said so, and without those of faces.
    two: set[int] = field(default_factory=set)
    photos: set[int] = field(default_factory=set)  # of faces that stay
    merged: bool = False  # by a user
    corrected: bool = False  # by a user: named, constrained, merged, ...

    @property
    def is_bound(self) -> bool:
        """Whether its references must be together, and separate from those of others."""
        return bool(self.names or self.external_ids or self.against or self.merged)

    @property
    def has_words(self) -> bool:
        """Whether a user said something by which faces are not its."""
        return bool(self.names or self.external_ids or self.two)

    def reason_against(self, other: Group) -> str | None:
        """Why the two cannot be merged, or None."""
        if self.against & other.roots or other.against & self.roots:
            return STATED
        return self.word_against(other) or (PHOTO if self.photos & other.photos else None)

    def word_against(self, other: Group) -> str | None:
        """Why no face of one may become the other's either, or None."""
        if any(-number in other.two for number in self.two):
            return STATED
        if self.external_ids and other.external_ids and self.external_ids != other.external_ids:
            return EXTERNAL_ID
        if self.names and other.names and self.names != other.names:
            return NAME
        return HIDDEN if self.hidden != other.hidden else None

    def join(self, other: Group) -> None:
        self.roots |= other.roots
        self.names |= other.names
        self.external_ids |= other.external_ids
        self.against |= other.against
        self.two |= other.two
        self.photos |= other.photos
        self.held |= other.held
        self.corrected |= other.corrected


@dataclass
class Changes:
    """The changes; faces in neither `moved` nor `new` stay."""

    moved: dict[int, str | None] = field(default_factory=dict)  # face id -> record; None: nobody
    new: list[list[int]] = field(default_factory=list)  # the faces of each new person
    group_of: dict[str, Group] = field(default_factory=dict)  # by root
    # two roots -> the reason, and the faces of the first that are in a cluster with the other's and stay
    kept_apart: dict[tuple[str, str], tuple[str, list[int]]] = field(default_factory=dict)
    settled: set[int] = field(default_factory=set)  # faces that stay where they are
    shown: set[tuple[int, int]] = field(default_factory=set)  # a photo and the id of a group on it

    def show(self, face: ClusteredFace, root: str) -> None:
        if face.photo >= 0:
            self.shown.add((face.photo, id(self.group_of[root])))

    def settle(self, face: ClusteredFace) -> bool:
        """Whether the face can stay its person's: no other face of the photo is."""
        if self.shows(face, str(face.root)):
            return False
        self.show(face, str(face.root))
        self.settled.add(face.face_id)
        return True

    def keep(self, face: ClusteredFace, other: str, reason: str) -> bool:
        """As `settle`, of a face that is like those of the root `other`, and why it is not moved there."""
        if settled := self.settle(face):
            self.kept_apart.setdefault((str(face.root), other), (reason, []))[1].append(face.face_id)
        return settled

    def shows(self, face: ClusteredFace, root: str) -> bool:
        """Whether another face of the photo is this person's."""
        return (face.photo, id(self.group_of[root])) in self.shown


def changes(faces: Sequence[ClusteredFace], groups: Mapping[str, Group]) -> Changes:
    """`faces`: in the order of the store. `groups`: one for each root; this joins them."""
    made = Changes(group_of=dict(groups))
    staying = [face for face in faces if face.stays]
    for face in staying:
        groups[str(face.root)].photos |= {face.photo} - {-1}
    parts = _parts(faces)
    anchored = _anchored(faces, parts)
    clusters: dict[int, list[ClusteredFace]] = {}
    for face in faces:
        if face.cluster is not None:
            clusters.setdefault(face.cluster, []).append(face)
    at_home = [face for face in faces if not face.stays and face.root in anchored.get(_cluster(face), ())]
    for face in (*staying, *at_home):
        made.show(face, str(face.root))
    kept = [each for cluster, members in clusters.items() for each in _kept(made, anchored.get(cluster, {}), members)]
    for face, _, _ in kept:
        groups[str(face.root)].photos |= {face.photo} - {-1}
    for cluster, members in clusters.items():
        _join(made, anchored.get(cluster, {}), members)
    made.shown.clear()
    for face in staying:
        made.show(face, str(face.root))
    for face, other, reason in kept:
        made.keep(face, other, reason)
    for face in at_home:
        made.settle(face)
    for cluster, members in clusters.items():
        _place(made, anchored.get(cluster, {}), members)
    keeping = {face.root for face in faces if face.fixed} | {root for root, _ in parts}
    for face in faces:
        leaves = not face.reference or (face.root not in keeping and not groups[str(face.root)].held)
        if face.cluster is None and face.root is not None and leaves and not face.fixed:
            made.moved[face.face_id] = None
    return made


def _cluster(face: ClusteredFace) -> int:
    return -1 if face.cluster is None else face.cluster


def _parts(faces: Iterable[ClusteredFace]) -> dict[tuple[str, int], list[ClusteredFace]]:
    parts: dict[tuple[str, int], list[ClusteredFace]] = {}
    for face in faces:
        if face.root is not None and face.cluster is not None:
            parts.setdefault((face.root, face.cluster), []).append(face)
    return parts


def _anchored(
    faces: Iterable[ClusteredFace], parts: Mapping[tuple[str, int], Sequence[ClusteredFace]]
) -> dict[int, dict[str, str]]:
    """Cluster -> root of each person that keeps its part there -> record for further faces."""
    anchored: dict[int, dict[str, str]] = {}
    kept = set()
    for face in faces:
        if face.cluster is not None and face.root is not None and face.stays:
            anchored.setdefault(face.cluster, {}).setdefault(face.root, str(face.person_id))
            kept.add(face.root)
    # Others keep their largest part, of equals the earliest.
    rest: dict[str, tuple[int, str]] = {}
    for (root, cluster), members in parts.items():
        if root not in kept and (root not in rest or len(members) > len(parts[root, rest[root][0]])):
            rest[root] = cluster, str(members[0].person_id)
    for root, (cluster, person_id) in rest.items():
        anchored.setdefault(cluster, {})[root] = person_id
    return anchored


def _join(made: Changes, anchored: Mapping[str, str], members: Sequence[ClusteredFace]) -> None:
    """Merges each person of a cluster with the first face's or not at all: all faces match the first, but perhaps not
    each other. Hidden ones, if that is not hidden, with the first of them; and the other way around."""
    roots = _first_face_first(anchored, members)
    firsts: dict[bool, str] = {}
    for other in roots:
        two = made.group_of[other]
        first = firsts.setdefault(two.hidden, other)
        one = made.group_of[first if other != first else roots[0]]
        if one is two:
            continue
        reason = one.reason_against(two)
        if reason is not None:
            made.kept_apart[roots[0] if other == first else first, other] = reason, []
            continue
        if len(one.roots) < len(two.roots):
            one, two = two, one
        one.join(two)
        for root in two.roots:
            made.group_of[root] = one


def _first_face_first(anchored: Mapping[str, str], members: Sequence[ClusteredFace]) -> list[str]:
    """The persons that keep a part in the cluster, that of its first face first."""
    return sorted(anchored, key=lambda root: root != members[0].root)


def _kept(
    made: Changes, anchored: Mapping[str, str], members: Sequence[ClusteredFace]
) -> Iterator[tuple[ClusteredFace, str, str]]:
    """The cluster's faces that must not leave their person, each with a root that it must not be of, and why. It
    must not if a user keeps its person from one that keeps a part there, or whose faces leave with it: in a third
    person both would be one. Or if all who keep a part are hidden and it is not, or the other way around."""
    leaving = {str(face.root) for face in members if face.root is not None and not face.stays} - anchored.keys()
    barred: dict[str, tuple[str, str]] = {}
    for root in sorted(leaving):
        group = made.group_of[root]
        others = (*anchored, *sorted(leaving)) if group.has_words else ()
        word = next((each for each in _reasons(made, root, others) if each[1] != HIDDEN), None)
        if word is None and anchored and all(made.group_of[other].hidden != group.hidden for other in anchored):
            word = next(iter(anchored)), HIDDEN
        if word is not None:
            barred[root] = word
    for face in members:
        if not face.stays and face.root in barred and not made.shows(face, face.root):
            made.show(face, face.root)
            yield face, *barred[face.root]


def _reasons(made: Changes, root: str, others: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Those of these roots whose faces must not be this one's, and why."""
    for other in others:
        if (reason := made.group_of[other].word_against(made.group_of[root])) is not None:
            yield other, reason


def _place(made: Changes, anchored: Mapping[str, str], members: Sequence[ClusteredFace]) -> None:
    """Assigns the cluster's faces whose part does not keep its person, or whose photo shows the person already."""
    roots = _first_face_first(anchored, members)
    new: dict[bool, list[ClusteredFace]] = {}  # whether hidden
    for face in members:
        if face.stays or face.face_id in made.settled:
            continue
        own = None if face.root is None else made.group_of[face.root]
        fits = [root for root in roots if not face.barred & made.group_of[root].roots and not made.shows(face, root)]
        barred = {} if own is None else dict(_reasons(made, str(face.root), fits))
        fits = [root for root in fits if root not in barred]
        if barred and not fits and made.keep(face, *next(iter(barred.items()))):
            continue
        target = next((root for root in fits if made.group_of[root] is own), fits[0] if fits else None)
        if target is None:
            new.setdefault(own is not None and own.hidden, []).append(face)
            continue
        made.show(face, target)
        if made.group_of[target] is not own:
            made.moved[face.face_id] = anchored[target]
    for faces in new.values():
        if any(face.founds for face in faces):
            made.new.append([face.face_id for face in faces])
        else:
            made.moved.update((face.face_id, None) for face in faces if face.root is not None)
