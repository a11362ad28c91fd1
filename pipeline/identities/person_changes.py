"""What a request says of a person, applied to the record."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Final

from pipeline.errors import MetadataTooLarge
from pipeline.identities.types import PersonChange
from pipeline.store.records import PersonRecord

_MAX_METADATA_BYTES: Final = 8192


def changed(record: PersonRecord, change: PersonChange) -> PersonRecord:
    """The record with the change. Raises MetadataTooLarge."""
    return replace(
        record,
        name=_text(record.name, change.name),
        first_name=_text(record.first_name, change.first_name),
        last_name=_text(record.last_name, change.last_name),
        external_id=_text(record.external_id, change.external_id),
        tags=record.tags if change.tags is None else change.tags,
        ignored=record.ignored if change.ignored is None else change.ignored,
        metadata=_metadata(record, change) if change.metadata else record.metadata,
    )


def _text(old: str | None, new: str | None) -> str | None:
    return old if new is None else new or None


def _metadata(record: PersonRecord, change: PersonChange) -> str | None:
    fields = {key: value for key, value in {**record.further_fields, **change.metadata}.items() if value is not None}
    text = json.dumps(fields, ensure_ascii=False, separators=(",", ":"))
    if len(text.encode()) > _MAX_METADATA_BYTES:
        raise MetadataTooLarge(limit_bytes=_MAX_METADATA_BYTES)
    return text if fields else None
