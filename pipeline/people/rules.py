"""Rules for all changes of people: not-same constraints, unique external ids, conflicting labels."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import fields, replace
from typing import Any, Final

from pipeline.errors import ExternalIdTaken, MetadataTooLarge
from pipeline.people.directory import Directory
from pipeline.people.merging import lineage
from pipeline.people.types import Conflict
from pipeline.store import Fact, LocalStore, PersonChange, PersonRecord
from pipeline.texts import same_name

NOT_SAME: Final = "not_same"  # the kind of a constraint on two persons
_MAX_METADATA_BYTES: Final = 8192
_COLUMNS: Final = tuple(field.name for field in fields(PersonRecord) if field.name != "image_guid")


def two_people(one: str, other: str) -> Fact:
    """The not-same constraint of two persons."""
    return Fact(NOT_SAME, None, min(one, other), max(one, other))


def broken_constraints(
    client: LocalStore, directory: Directory, parents: Mapping[str, str | None], withdrawn: Collection[Fact] = ()
) -> list[Fact]:
    """The not-same constraints that these new parents (id -> parent's id) would violate, except `withdrawn`."""
    ids = {person_id for pair in parents.items() for person_id in pair if person_id is not None}
    joined = {member for one in ids for member in directory.merged_ids(one)}
    constraints = [fact for fact in client.facts_about([], sorted(joined)) if fact not in withdrawn]
    merged_already = set(together(directory, {}, constraints))
    return [fact for fact in together(directory, parents, constraints) if fact not in merged_already]


def together(directory: Directory, parents: Mapping[str, str | None], constraints: Iterable[Fact]) -> list[Fact]:
    """The not-same constraints of two people with one root by these new parents (id -> parent's id)."""

    def root(person_id: str) -> str:
        *_, top = lineage(directory, parents, person_id)  # cycles are refused elsewhere
        return top

    return [f for f in constraints if f.kind == NOT_SAME and root(str(f.person_id)) == root(str(f.other_id))]


def require_free(directory: Directory, external_id: str | None, owner_id: str | None) -> None:
    """Raises ExternalIdTaken if anyone but the owner has this external id."""
    if external_id is not None and any(p.person_id != owner_id for p in directory.with_external_id(external_id)):
        raise ExternalIdTaken


def joined_name(first: str | None, last: str | None) -> str | None:
    """The full name from its parts."""
    return " ".join(part for part in (first, last) if part) or None


def label_conflict(record: PersonRecord, said: PersonChange) -> Conflict | None:
    """How the headers contradict that a face is this person, or None. External ids decide if both have one; else first,
    last and full names."""
    if said.external_id is not None and record.external_id is not None:
        return "external-id" if said.external_id != record.external_id else None
    names = (*_parts(record, said), (_said_name(record, said), record.name))
    return "name" if any(new and old and not same_name(new, old) for new, old in names) else None


def changed(record: PersonRecord, change: PersonChange) -> PersonRecord:
    """The changed record. Raises MetadataTooLarge."""
    return replace(
        record,
        name=_text(record.name, _said_name(record, change)),
        first_name=_text(record.first_name, change.first_name),
        last_name=_text(record.last_name, change.last_name),
        external_id=_text(record.external_id, change.external_id),
        tags=record.tags if change.tags is None else tuple(change.tags),
        ignored=record.ignored if change.ignored is None else change.ignored,
        cover=record.cover if change.cover is None else change.cover,
        metadata=_metadata(record, change) if change.metadata else record.metadata,
    )


def difference(old: PersonRecord, new: PersonRecord) -> dict[str, Any]:
    """The columns that differ, with their new values."""
    return {name: getattr(new, name) for name in _COLUMNS if getattr(new, name) != getattr(old, name)}


def row_of(record: PersonRecord) -> dict[str, Any]:
    """A person as a row of a `Change`."""
    return {name: getattr(record, name) for name in _COLUMNS}


def _parts(record: PersonRecord, said: PersonChange) -> tuple[tuple[str | None, str | None], ...]:
    """(new, stored) of the first and the last name."""
    return (said.first_name, record.first_name), (said.last_name, record.last_name)


def _said_name(record: PersonRecord, said: PersonChange) -> str | None:
    """The full name to set. One joined from parts takes a missing part from the record; it is None if the record has a
    name and these parts."""
    parts = _parts(record, said)
    if not said.joined:
        return said.name
    if record.name and all(same_name(new, old) for new, old in parts if new):
        return None
    return joined_name(*(new or old for new, old in parts))


def _text(old: str | None, new: str | None) -> str | None:
    return old if new is None else new or None


def _metadata(record: PersonRecord, change: PersonChange) -> str | None:
    fields = {key: value for key, value in {**record.further_fields, **change.metadata}.items() if value is not None}
    text = json.dumps(fields, ensure_ascii=False, separators=(",", ":"))
    if len(text.encode()) > _MAX_METADATA_BYTES:
        raise MetadataTooLarge(limit_bytes=_MAX_METADATA_BYTES)
    return text if fields else None
