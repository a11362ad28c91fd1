"""Merging identities: which parent pointers a merge sets and an unmerge removes.

A merge only sets the pointers of records that had none, so an unmerge of the same roots, which removes them,
restores exactly what was (of the same ids where one was a child already, it takes that one out of its set too);
every record keeps its own data throughout.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from pipeline.errors import PersonUnknown
from pipeline.identities.directory import Directory
from pipeline.store.records import PersonRecord


def _records(directory: Directory, person_ids: Sequence[str]) -> list[PersonRecord]:
    """Distinct, the oldest first. Raises PersonUnknown."""
    found = {}
    for person_id in person_ids:
        record = directory.get(person_id)
        if record is None:
            raise PersonUnknown
        found[person_id] = record
    return sorted(found.values(), key=lambda person: person.seq)


def _root(directory: Directory, person: PersonRecord) -> PersonRecord:
    return directory.root(person.person_id) or person


def merged(directory: Directory, person_ids: Sequence[str], now: datetime) -> list[PersonRecord]:
    """The records that a merge changes, as they are afterwards.

    The root is the one among them that is a root with others below it already (the oldest of several), else the
    oldest that has no parent; where all have one, the root above the oldest. Raises PersonUnknown.
    """
    given = _records(directory, person_ids)
    roots = [person for person in given if person.parent_id is None]
    root = next((p for p in roots if directory.children(p.person_id)), roots[0] if roots else None)
    if root is None:
        root = _root(directory, given[0])
    tops = {top.person_id: top for top in (_root(directory, person) for person in given)}
    return [
        replace(top, parent_id=root.person_id, modified_at=now)
        for top in tops.values()
        if top.person_id != root.person_id
    ]


def unmerged(directory: Directory, person_ids: Sequence[str], now: datetime) -> list[PersonRecord]:
    """The records that an unmerge changes, as they are afterwards: those given lose their parents. Where all that
    are given are roots, those right below them do. Raises PersonUnknown."""
    given = _records(directory, person_ids)
    changed = [person for person in given if person.parent_id is not None]
    if not changed:
        changed = [child for person in given for child in directory.children(person.person_id)]
    return [replace(person, parent_id=None, modified_at=now) for person in changed]


def orphaned(directory: Directory, person: PersonRecord, now: datetime) -> list[PersonRecord]:
    """The records that change when `person` is deleted: its children go to its parent; where it was the root, the
    oldest of them becomes the root of the others."""
    children = directory.children(person.person_id)
    if not children:
        return []
    heir = person.parent_id or children[0].person_id
    return [replace(child, parent_id=None if child.person_id == heir else heir, modified_at=now) for child in children]
