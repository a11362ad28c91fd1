"""Records as answers show them: with their root, and what is merged with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

from pipeline.identities.directory import Directory
from pipeline.identities.types import PersonView
from pipeline.store.records import PersonRecord

_EPOCH: Final = datetime(1970, 1, 1)
_MS: Final = timedelta(milliseconds=1)


def epoch_ms(moment: datetime) -> int:
    """Whole milliseconds since 1970 of a naive time in UTC."""
    return (moment - _EPOCH) // _MS


def root_view(directory: Directory, person_id: str) -> PersonView | None:
    """The root of a person, None for an unknown one."""
    members = directory.merged_set(person_id)
    return _view(members[0], members) if members else None


def person_view(directory: Directory, record: PersonRecord) -> PersonView:
    """One record."""
    return _view(record, directory.merged_set(record.person_id) or [record])


def all_views(records: Sequence[PersonRecord]) -> list[PersonView]:
    """Every record of a directory, given in the order of insertion."""
    by_id = {record.person_id: record for record in records}
    sets: dict[str, list[PersonRecord]] = {}
    root_of: dict[str, str] = {}
    for record in records:
        if record.parent_id is not None:
            root = root_of[record.person_id] = _root_id(by_id, record)
            sets.setdefault(root, []).append(record)
    found = []
    for record in records:
        root_id = root_of.get(record.person_id, record.person_id)
        found.append(_view(record, [by_id[root_id], *sets.get(root_id, ())]))
    return found


def _root_id(by_id: Mapping[str, PersonRecord], record: PersonRecord) -> str:
    while record.parent_id is not None:
        record = by_id[record.parent_id]
    return record.person_id


def _view(record: PersonRecord, members: Sequence[PersonRecord]) -> PersonView:
    """`members`: the merged set of the record, its root first."""
    root = members[0]
    counted = members if record.person_id == root.person_id else [record]
    return PersonView(
        record=record,
        root=root,
        children_images=tuple(member.image_guid for member in counted[1:]),
        occurrence=sum(member.occurrence for member in counted),
        last_occurrence_at_ms=epoch_ms(max(member.last_occurrence_at for member in counted)),
    )
