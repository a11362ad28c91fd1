"""Erasures: when how much was deleted, and what that was, as long as it is there."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any, Final

import pyarrow as pa

from pipeline.store.catalog.connection import Catalog
from pipeline.store.catalog.corrections import shown_persons
from pipeline.store.catalog.directories import directory_id
from pipeline.store.records import Erasure

_ERASURE: Final = ", ".join(field.name for field in fields(Erasure))
_CALLED: Final = {"name": "name", "first_name": "name", "last_name": "name", "external_id": "external_id"}
_THESE: Final = "person_id IN (SELECT unnest($1::UUID[]))"


def seed(catalog: Catalog) -> str:
    """The private key of receipts, as 64 hexadecimal digits. A secret."""
    return str(catalog.one("SELECT receipt_key FROM core.store"))


def with_receipt(catalog: Catalog, sha256: str) -> list[Erasure]:
    """The erasures of a receipt, by the hash of the pending one."""
    rows = catalog.rows(f"SELECT {_ERASURE} FROM core.erasures WHERE receipt = ?", [sha256])
    return [Erasure(*row) for row in rows]


def erasures(catalog: Catalog) -> pa.Table:
    """All, the oldest first: account, and as `Erasure`."""
    return catalog.read(
        f"SELECT user_id AS account, {_ERASURE} FROM core.erasures JOIN core.accounts USING (account_id)"
        " ORDER BY deleted_at"
    )


def values_of_people(
    catalog: Catalog, account_id: int, directory: str, person_ids: Sequence[str]
) -> dict[str, list[str]]:
    """What a deletion of these persons erases, by kind: present and former names and external ids, tags, ids, and paths
    and hashes of photos that show nobody else."""
    number = directory_id(catalog, account_id, directory)
    records = [("person_id", person_id) for person_id in person_ids]
    own = catalog.read(f"SELECT {', '.join(_CALLED)}, tags FROM core.persons WHERE {_THESE}", [list(person_ids)])
    present = ({**row, "tags": json.loads(row["tags"] or "[]")} for row in own.to_pylist())
    for columns in (*present, *_former(catalog, number, person_ids)):
        records += [(kind, columns[name]) for name, kind in _CALLED.items() if columns.get(name)]
        records += [("tag", tag) for tag in columns.get("tags") or ()]
    media = catalog.column(
        f"SELECT media_id FROM core.faces WHERE {_THESE} EXCEPT"
        f" SELECT media_id FROM core.faces WHERE person_id IS NOT NULL AND NOT {_THESE}",
        [list(person_ids)],
    )
    return _by_kind([*records, *_of_photos(catalog, media)])


def values_of_photos(catalog: Catalog, media_ids: Sequence[int], person_ids: Sequence[str]) -> dict[str, list[str]]:
    """What a deletion of these photos erases, with these persons who are left without a face."""
    return _by_kind([*(("person_id", person_id) for person_id in person_ids), *_of_photos(catalog, media_ids)])


def _former(catalog: Catalog, directory: int | None, person_ids: Sequence[str]) -> Iterator[Mapping[str, Any]]:
    """Columns of these persons that corrections changed."""
    gone = set(person_ids)
    for rows in shown_persons(catalog, directory, person_ids):
        yield from (columns for person_id, columns in rows.persons.items() if columns and person_id in gone)


def _of_photos(catalog: Catalog, media_ids: Sequence[int]) -> list[tuple[str, str]]:
    """Paths and hashes."""
    rows = catalog.rows(
        "SELECT path, sha256, pixel_hash FROM core.media WHERE media_id IN (SELECT unnest(?::BIGINT[]))",
        [list(media_ids)],
    )
    return [
        (kind, text) for row in rows for kind, text in zip(("path", "sha256", "pixel_hash"), row, strict=True) if text
    ]


def _by_kind(values: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    kinds: dict[str, set[str]] = {}
    for kind, text in values:
        kinds.setdefault(kind, set()).add(text)
    return {kind: sorted(texts) for kind, texts in kinds.items()}
