"""Constraints and merges that contradict each other, named with the corrections that made them and the way out.

Most are refused when they are made (`rules`). A store may have these: a face that is not P's but Q's, and later a post
merged P and Q; copies of one face that were given to several people; and what earlier versions did not refuse.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Final

from pipeline.people.correction_plan import IS, IS_NOT, NOBODY
from pipeline.people.directory import Directory
from pipeline.people.merging import lineage
from pipeline.people.rules import NOT_SAME
from pipeline.store import Contradiction, FaceToRegroup, Fact, LastMerge, PersonRecord, StoredFace

Place = tuple[str, int]  # a photo's bytes, and a face's place in it: the same for the faces of copies
_NO_PARENTS: Final[Mapping[str, str | None]] = {}


class Chains:
    """Through which merges two people of a directory are one."""

    def __init__(
        self,
        directory: Directory,
        last: Mapping[str, LastMerge],
        parents: Mapping[str, str | None] = _NO_PARENTS,
    ) -> None:
        """`last`: of `LocalStore.last_merges`. `parents`: new parents (id -> parent's id), which are not committed."""
        self._directory, self._last, self._parents = directory, last, parents

    def between(self, one: str, other: str) -> list[tuple[str, str]]:
        """(child, parent) of each merge between two people, from one to the other; empty if they are two."""
        up, down = (list(lineage(self._directory, self._parents, each)) for each in (one, other))
        top = next((person_id for person_id in up if person_id in down), None)
        if top is None:
            return []
        return [*pairwise(up[: up.index(top) + 1]), *pairwise(down[: down.index(top) + 1])]

    def corrections(self, pairs: Iterable[tuple[str, str]]) -> list[int]:
        """The corrections that made these merges, as far as they are committed and logged."""
        made = (self._last[child].correction_id for child, _ in pairs if self._is_logged(child))
        return list(dict.fromkeys(made))

    def text(self, pairs: Sequence[tuple[str, str]]) -> str:
        """These merges in words, each with its correction."""
        names = Names(self._directory.of({each for pair in pairs for each in pair}))
        return ", ".join(f"{names[child]} and {names[parent]} by {self._by(child)}" for child, parent in pairs)

    def _by(self, child: str) -> str:
        if child in self._parents:
            return "this change"
        if not self._is_logged(child):
            return "an earlier merge"
        last = self._last[child]
        return f"correction {last.correction_id} ({last.kind.replace('_', '-')})"

    def _is_logged(self, child: str) -> bool:
        return child not in self._parents and child in self._last

    def why_one(self, one: str, other: str) -> str:
        """A sentence about the merges that make two people one, and how to take them back."""
        pairs = self.between(one, other)
        committed = [child for child, _ in pairs if child not in self._parents]
        if not committed:
            return ""
        undo = "".join(f"`people undo {number}` or " for number in self.corrections(pairs)[-1:])
        are = "are" if len(committed) == len(pairs) else "would be"
        return f" They {are} one through {self.text(pairs)}: {undo}`people unmerge {committed[-1]}` parts them."


class Names(dict[str, str]):
    """How a text calls people: by name and id."""

    def __init__(self, records: Mapping[str, PersonRecord]) -> None:
        super().__init__({one: f"{r.name} ({one})" for one, r in records.items() if r.name})

    def __missing__(self, person_id: str) -> str:
        return person_id


def place_of(face: FaceToRegroup) -> Place | None:
    """None: the photo's bytes are unknown."""
    return None if face.stored.sha256 is None else (face.stored.sha256, face.ordinal)


def contradictions(
    facts: Sequence[Fact],
    faces: Mapping[int, FaceToRegroup],
    roots: Mapping[str, str],
    records: Mapping[str, PersonRecord],
    chains: Chains,
) -> list[Contradiction]:
    """All of these constraints on these faces and people. `roots`: by the merges of users."""
    names = Names(records)
    found = []
    for fact in facts:
        face = faces.get(fact.face_id or 0)
        if fact.kind == NOT_SAME:
            found += _of_two_people(fact, roots, names, chains)
        elif fact.kind == IS_NOT and face is not None:
            found += _of_a_face(fact, face.stored, roots, names, chains)
    return found + _of_copies(facts, faces, roots, names)


def _of_two_people(
    fact: Fact, roots: Mapping[str, str], names: Mapping[str, str], chains: Chains
) -> list[Contradiction]:
    one, other = str(fact.person_id), str(fact.other_id)
    if one not in roots or other not in roots or roots[one] != roots[other]:
        return []
    pairs = chains.between(one, other)
    said = f"{names[one]} and {names[other]} were said to be two people (correction {fact.correction_id})"
    out = f"`people undo {fact.correction_id}` takes that back.{chains.why_one(one, other)}"
    return [Contradiction(f"{said}, but are one. {out}", _numbers([fact], chains.corrections(pairs)), [one, other], [])]


def _of_a_face(
    fact: Fact, face: StoredFace, roots: Mapping[str, str], names: Mapping[str, str], chains: Chains
) -> list[Contradiction]:
    """A face that was said not to be of the person that it is of."""
    one, owner = str(fact.person_id), face.person_id
    if owner is None or one not in roots or owner not in roots or roots[one] != roots[owner]:
        return []
    pairs = chains.between(owner, one)
    said = f"The face {face.face_id} was said not to be {names[one]}'s (correction {fact.correction_id})"
    out = f"`people move {face.face_id} WHO` says whose it is.{chains.why_one(owner, one)}"
    detail = f"{said}, but is {names[owner]}'s, who is the same person. {out}"
    numbers = _numbers([fact], chains.corrections(pairs))
    return [Contradiction(detail, numbers, list(dict.fromkeys((owner, one))), [face.face_id])]


def _of_copies(
    facts: Sequence[Fact], faces: Mapping[int, FaceToRegroup], roots: Mapping[str, str], names: Mapping[str, str]
) -> list[Contradiction]:
    """Copies of one face that were said to be of several people, or of somebody and of nobody."""
    by_place: dict[Place, list[Fact]] = {}
    for fact in facts:
        face = faces.get(fact.face_id or 0) if fact.kind in (IS, IS_NOT, NOBODY) else None
        if face is not None and (place := place_of(face)) is not None:
            by_place.setdefault(place, []).append(fact)
    found = []
    for own in by_place.values():
        given = {roots.get(fact.person_id or ""): fact for fact in own if fact.kind != IS_NOT}  # None: to nobody
        said = list(given.values())
        if len(said) == 1:
            is_not = (fact for fact in own if fact.kind == IS_NOT and roots.get(fact.person_id or "") in given)
            said += [fact for fact in is_not if fact.face_id != said[0].face_id]
        if len(said) > 1:
            parts = ", ".join(f"{_said(fact, names)} (correction {fact.correction_id})" for fact in said)
            detail = f"The same face of identical photos was said to be {parts}. `people move FACE WHO` says who it is."
            people = list(dict.fromkeys(fact.person_id for fact in said if fact.person_id is not None))
            face_ids = list(dict.fromkeys(fact.face_id for fact in said if fact.face_id is not None))
            found.append(Contradiction(detail, _numbers(said), people, face_ids))
    return found


def _said(fact: Fact, names: Mapping[str, str]) -> str:
    who = "nobody's" if fact.person_id is None else f"{'not ' * (fact.kind == IS_NOT)}{names[fact.person_id]}'s"
    return f"{who} as face {fact.face_id}"


def _numbers(facts: Iterable[Fact], merges: Iterable[int] = ()) -> list[int]:
    own = (fact.correction_id for fact in facts if fact.correction_id is not None)
    return list(dict.fromkeys([*own, *merges]))
