"""Merging identities: the parent pointers that a merge sets and an unmerge removes.

A merge sets only empty pointers, so an unmerge of the same roots removes exactly these. (It also detaches a given id
that was a child before.) Records keep their data.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from pipeline.people.directory import Directory
from pipeline.store import PersonRecord


def _records(directory: Directory, person_ids: Sequence[str], new: PersonRecord | None = None) -> list[PersonRecord]:
    """Distinct records, oldest first. `new`: a person being inserted. Raises PersonUnknown."""
    inserted = [new] if new is not None else []
    known = directory.those(one for one in person_ids if new is None or one != new.person_id)
    return [*sorted(known, key=lambda person: person.seq), *inserted]


def merged_parents(
    directory: Directory, person_ids: Sequence[str], new: PersonRecord | None = None
) -> dict[str, str | None]:
    """The parents that a merge sets, by person. All get the oldest root with children, else the oldest root; if none is
    a root, the root of the oldest. `new`: as in `_records`. Raises PersonUnknown."""
    persons = _records(directory, person_ids, new)
    roots = [person.person_id for person in persons if person.parent_id is None]
    tops = list(dict.fromkeys(directory.root_id(person.person_id) for person in persons))
    root = next((root for root in roots if directory.children(root)), (roots or tops)[0])
    return {top: root for top in tops if top != root}


def unmerged(directory: Directory, person_ids: Sequence[str]) -> list[PersonRecord]:
    """The records that an unmerge detaches: these persons or, if all are roots, their children. Raises
    PersonUnknown."""
    persons = _records(directory, person_ids)
    changed = [person for person in persons if person.parent_id is not None]
    return changed or [child for person in persons for child in directory.children(person.person_id)]


def lineage(directory: Directory, parents: Mapping[str, str | None], person_id: str) -> Iterator[str]:
    """The person and its ancestors with these new parents (id -> parent's id); stops at a cycle."""
    passed: set[str] = set()
    at: str | None = person_id
    while at is not None and at not in passed:
        yield at
        passed.add(at)
        at = parents.get(at, directory.parent_id(at))


def below_itself(directory: Directory, parents: Mapping[str, str | None]) -> str | None:
    """The first person in a cycle with these new parents (id -> parent's id), or None."""
    for person_id, parent_id in parents.items():
        if parent_id is not None and person_id in lineage(directory, parents, parent_id):
            return person_id
    return None


def orphaned(directory: Directory, person: PersonRecord) -> dict[str, str | None]:
    """The children's new parents if the person is deleted: its parent, or the oldest child as the new root."""
    children = [child.person_id for child in directory.children(person.person_id)]
    heir = person.parent_id or next(iter(children), None)
    return {child: None if child == heir else heir for child in children}
