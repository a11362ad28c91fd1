"""Merging identities: which parent pointers a merge sets and an unmerge removes.

A merge only sets the pointers of records that had none, so an unmerge of the same roots removes exactly these. (Of
the same ids where one was a child already, it takes that one out of its set too.) Every record keeps its own data.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from pipeline.people.directory import Directory
from pipeline.store import PersonRecord


def _records(directory: Directory, person_ids: Sequence[str], new: PersonRecord | None = None) -> list[PersonRecord]:
    """Distinct records, the oldest first; `new` is about to be inserted. Raises PersonUnknown."""
    inserted = [new] if new is not None else []
    known = directory.those(one for one in person_ids if new is None or one != new.person_id)
    return [*sorted(known, key=lambda person: person.seq), *inserted]


def root_of_merge(directory: Directory, person_ids: Sequence[str]) -> PersonRecord:
    """The record that stands for the persons after a merge: the oldest of those that are roots with children already,
    else the oldest without a parent; if all have one, the root above the oldest. Raises PersonUnknown."""
    return _root_among(directory, _records(directory, person_ids))


def _root_among(directory: Directory, persons: Sequence[PersonRecord]) -> PersonRecord:
    roots = [person for person in persons if person.parent_id is None]
    root = next((p for p in roots if directory.children(p.person_id)), roots[0] if roots else None)
    return root or directory.record(directory.root_id(persons[0].person_id))


def merged_parents(
    directory: Directory, person_ids: Sequence[str], new: PersonRecord | None = None
) -> dict[str, str | None]:
    """The parents that a merge sets, by person; its root gets none. `new`: one of the persons, who is being inserted.
    Raises PersonUnknown."""
    persons = _records(directory, person_ids, new)
    root = _root_among(directory, persons)
    tops = dict.fromkeys(directory.root_id(person.person_id) for person in persons)
    return {top: root.person_id for top in tops if top != root.person_id}


def unmerged(directory: Directory, person_ids: Sequence[str]) -> list[PersonRecord]:
    """The records that lose their parent by an unmerge: these persons; if all are roots, their children. Raises
    PersonUnknown."""
    persons = _records(directory, person_ids)
    changed = [person for person in persons if person.parent_id is not None]
    return changed or [child for person in persons for child in directory.children(person.person_id)]


def lineage(directory: Directory, parents: Mapping[str, str | None], person_id: str) -> Iterator[str]:
    """The person and all above with these new parents (id -> parent's id), up to the root; of a circle each once."""
    passed: set[str] = set()
    at: str | None = person_id
    while at is not None and at not in passed:
        yield at
        passed.add(at)
        at = parents.get(at, directory.parent_id(at))


def below_itself(directory: Directory, parents: Mapping[str, str | None]) -> str | None:
    """The first of these persons who would be below itself with these parents (id -> parent's id)."""
    for person_id, parent_id in parents.items():
        if parent_id is not None and person_id in lineage(directory, parents, parent_id):
            return person_id
    return None


def orphaned(directory: Directory, person: PersonRecord) -> dict[str, str | None]:
    """The parents that change if the person is deleted, by child: its children go to its parent; if it is a root, the
    oldest child becomes the root of the others."""
    children = [child.person_id for child in directory.children(person.person_id)]
    heir = person.parent_id or next(iter(children), None)
    return {child: None if child == heir else heir for child in children}
