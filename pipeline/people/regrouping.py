"""What grouping the faces of a directory anew changes: which faces go elsewhere, and which persons become one.

Grouping gives clusters; persons are what is there already. A part is what a cluster has of one person. The part with a
face that must stay (pinned by a fact, posted) or with the face that the person is known by keeps the person; any other
goes to who has such a part in the cluster, or is a new person. Persons with such parts in one cluster become one,
unless something is said against it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

NAME, EXTERNAL_ID, STATED = "name", "external id", "stated"  # why two persons stay two


@dataclass(frozen=True)
class ClusteredFace:
    """A face, whose it is, and where the grouping put it."""

    face_id: int
    person_id: str | None  # the record
    root: str | None  # the person: what the merges of users made of the record
    cluster: int | None  # None: it is like nobody, and makes no person
    fixed: bool  # it stays where it is
    reference: bool  # its record is known by it
    founds: bool  # it may be a person's first
    barred: frozenset[str] = frozenset()  # the persons that it is not, as facts say


@dataclass
class Group:
    """Persons that are one, and what speaks against others."""

    roots: set[str]
    names: set[tuple[str, ...]]
    external_ids: set[str]
    against: set[str]  # roots that are stated to be others
    held: bool  # they stay, even if none of their faces could make a person

    def reason_against(self, other: Group) -> str | None:
        """Why the two can't be one."""
        if self.against & other.roots or other.against & self.roots:
            return STATED
        if self.external_ids and other.external_ids and self.external_ids != other.external_ids:
            return EXTERNAL_ID
        return NAME if self.names and other.names and self.names != other.names else None

    def join(self, other: Group) -> None:
        self.roots |= other.roots
        self.names |= other.names
        self.external_ids |= other.external_ids
        self.against |= other.against
        self.held |= other.held


@dataclass
class Changes:
    """What is to become of the faces. Those that are in neither mapping stay."""

    moved: dict[int, str | None] = field(default_factory=dict)  # face id -> the record; None: nobody's
    new: list[list[int]] = field(default_factory=list)  # the faces of each new person
    group_of: dict[str, Group] = field(default_factory=dict)  # root -> all that are one with it
    kept_apart: dict[tuple[str, str], str] = field(default_factory=dict)  # two roots -> why


def changes(faces: Sequence[ClusteredFace], groups: Mapping[str, Group]) -> Changes:
    """`faces` in the order of the store; `groups`: each root alone, which this joins."""
    made = Changes(group_of=dict(groups))
    parts = _parts(faces)
    anchored = _anchored(faces, parts)
    clusters: dict[int, list[ClusteredFace]] = {}
    for face in faces:
        if face.cluster is not None:
            clusters.setdefault(face.cluster, []).append(face)
    for cluster, members in clusters.items():
        _join(made, anchored.get(cluster, {}), members)
    for cluster, members in clusters.items():
        _place(made, anchored.get(cluster, {}), members)
    staying = {face.root for face in faces if face.fixed} | {root for root, _ in parts}
    for face in faces:
        leaves = not face.reference or (face.root not in staying and not groups[str(face.root)].held)
        if face.cluster is None and face.root is not None and leaves and not face.fixed:
            made.moved[face.face_id] = None
    return made


def _parts(faces: Iterable[ClusteredFace]) -> dict[tuple[str, int], list[ClusteredFace]]:
    parts: dict[tuple[str, int], list[ClusteredFace]] = {}
    for face in faces:
        if face.root is not None and face.cluster is not None:
            parts.setdefault((face.root, face.cluster), []).append(face)
    return parts


def _anchored(
    faces: Iterable[ClusteredFace], parts: Mapping[tuple[str, int], Sequence[ClusteredFace]]
) -> dict[int, dict[str, str]]:
    """Cluster -> root of each person that keeps its part there -> a record to which more faces can go."""
    anchored: dict[int, dict[str, str]] = {}
    kept = set()
    for face in faces:
        if face.root is not None and face.cluster is not None and (face.fixed or face.reference):
            anchored.setdefault(face.cluster, {}).setdefault(face.root, str(face.person_id))
            kept.add(face.root)
    # Of persons whose reference is in no cluster: the largest part, else the earliest.
    rest: dict[str, tuple[int, str]] = {}
    for (root, cluster), members in parts.items():
        if root not in kept and (root not in rest or len(members) > len(parts[root, rest[root][0]])):
            rest[root] = cluster, str(members[0].person_id)
    for root, (cluster, person_id) in rest.items():
        anchored.setdefault(cluster, {})[root] = person_id
    return anchored


def _join(made: Changes, anchored: Mapping[str, str], members: Sequence[ClusteredFace]) -> None:
    """Makes the persons of a cluster one. All its faces are like its first one, and maybe not like each other: so each
    is joined with the first one's person or not at all."""
    roots = _first_face_first(anchored, members)
    for other in roots[1:]:
        one, two = made.group_of[roots[0]], made.group_of[other]
        if one is two:
            continue
        reason = one.reason_against(two)
        if reason is not None:
            made.kept_apart[roots[0], other] = reason
            continue
        if len(one.roots) < len(two.roots):
            one, two = two, one
        one.join(two)
        for root in two.roots:
            made.group_of[root] = one


def _first_face_first(anchored: Mapping[str, str], members: Sequence[ClusteredFace]) -> list[str]:
    """The persons that keep a part in the cluster: that of its first face, then in the order of their first faces."""
    return sorted(anchored, key=lambda root: root != members[0].root)


def _place(made: Changes, anchored: Mapping[str, str], members: Sequence[ClusteredFace]) -> None:
    """Finds a person for the faces of a cluster whose part does not keep one."""
    roots = _first_face_first(anchored, members)
    new: list[ClusteredFace] = []
    for face in members:
        if face.root in anchored:
            continue
        own = None if face.root is None else made.group_of[face.root]
        fits = [root for root in roots if not face.barred & made.group_of[root].roots]
        if own is not None and any(made.group_of[root] is own for root in fits):
            continue
        if fits:
            made.moved[face.face_id] = anchored[fits[0]]
        else:
            new.append(face)
    if any(face.founds for face in new):
        made.new.append([face.face_id for face in new])
    else:
        made.moved.update((face.face_id, None) for face in new if face.root is not None)
