"""What a request says of a person: whether it is this one, and what becomes of the record."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Final

from pipeline.errors import MetadataTooLarge
from pipeline.identities.types import Conflict, PersonChange
from pipeline.store.records import PersonRecord
from pipeline.store.texts import same_name

_MAX_METADATA_BYTES: Final = 8192


def joined_name(first: str | None, last: str | None) -> str | None:
    """The whole name if only these are known."""
    return " ".join(part for part in (first, last) if part) or None


def label_conflict(record: PersonRecord, said: PersonChange) -> Conflict | None:
    """What in the headers says that a face is not this person, whatever its score. External ids decide if both have
    one; else first, last and whole names do, each compared with the stored one of its kind."""
    if said.external_id is not None and record.external_id is not None:
        return "external-id" if said.external_id != record.external_id else None
    names = (*_parts(record, said), (_said_name(record, said), record.name))
    return "name" if any(new and old and not same_name(new, old) for new, old in names) else None


def changed(record: PersonRecord, change: PersonChange) -> PersonRecord:
    """The record with the change. Raises MetadataTooLarge."""
    return replace(
        record,
        name=_text(record.name, _said_name(record, change)),
        first_name=_text(record.first_name, change.first_name),
        last_name=_text(record.last_name, change.last_name),
        external_id=_text(record.external_id, change.external_id),
        tags=record.tags if change.tags is None else change.tags,
        ignored=record.ignored if change.ignored is None else change.ignored,
        metadata=_metadata(record, change) if change.metadata else record.metadata,
    )


def _parts(record: PersonRecord, said: PersonChange) -> tuple[tuple[str | None, str | None], ...]:
    """The first and the last name, each as it is said and as it is stored."""
    return (said.first_name, record.first_name), (said.last_name, record.last_name)


def _said_name(record: PersonRecord, said: PersonChange) -> str | None:
    """The whole name. One that is only joined takes a part that was not sent from the record, and says nothing of a
    record that has a name and these parts already."""
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
