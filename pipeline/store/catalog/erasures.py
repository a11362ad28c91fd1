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
from pipeline.types import DUPLICATE_ROW, FORGOTTEN

_ERASURE: Final = ", ".join(field.name for field in fields(Erasure))
_CALLED: Final = {"name": "name", "first_name": "name", "last_name": "name", "external_id": "external_id"}
_COMPARED: Final = {"name": "nfc_normalize({})", "external_id": "{}"}  # how label columns are compared
_THESE: Final = "person_id IN (SELECT unnest($1::UUID[]))"


def seed(catalog: Catalog) -> str:
    """The private key of receipts, as 64 hexadecimal digits. A secret."""
    return str(catalog.one("SELECT receipt_key FROM core.store"))


def with_receipt(catalog: Catalog, sha256: str) -> list[Erasure]:
    """The erasures of a receipt, by the hash of the pending one."""
    rows = catalog.rows(f"SELECT {_ERASURE} FROM core.erasures WHERE receipt = ?", [sha256])
    return [Erasure(*row) for row in rows]


def recorded(catalog: Catalog) -> list[Erasure]:
    """All, the oldest first."""
    return [Erasure(*row) for row in catalog.rows(f"SELECT {_ERASURE} FROM core.erasures ORDER BY deleted_at")]


def erasures(catalog: Catalog) -> pa.Table:
    """All, the oldest first: account (of a deleted one `#` and its number), and as `Erasure`."""
    return catalog.read(
        f"SELECT coalesce(user_id, '#' || account_id) AS account, {_ERASURE} FROM core.erasures"
        " LEFT JOIN core.accounts USING (account_id)"
        " ORDER BY deleted_at"
    )


def values_of_people(
    catalog: Catalog, account_id: int, directory: str, person_ids: Sequence[str]
) -> dict[str, list[str]]:
    """What a deletion of these persons erases, by kind: present and former names, external ids, tags and texts of
    metadata, ids, and paths and hashes of photos that show nobody else."""
    number = directory_id(catalog, account_id, directory)
    records = [("person_id", person_id) for person_id in person_ids]
    own = catalog.read(
        f"SELECT {', '.join(_CALLED)}, tags, metadata FROM core.persons WHERE {_THESE}", [list(person_ids)]
    )
    present = ({**row, "tags": json.loads(row["tags"] or "[]")} for row in own.to_pylist())
    for columns in (*present, *_former(catalog, number, person_ids)):
        records += [(kind, columns[name]) for name, kind in _CALLED.items() if columns.get(name)]
        records += [("metadata", text) for text in _texts(json.loads(columns.get("metadata") or "{}"))]
        records += [("tag", tag) for tag in columns.get("tags") or ()]
    labelled = labelled_with(catalog, number, person_ids)
    media = photos_of(catalog, person_ids, labelled, with_others=False)["media_id"].to_pylist()
    return _by_kind([*records, *_of_photos(catalog, media)])


def photos_with_others(
    catalog: Catalog, account_id: int, directory: str, person_ids: Sequence[str]
) -> tuple[dict[str, int], int]:
    """path -> media_id of the photos of runs that show others beside these persons, or are labelled with these; and the
    number of such posted photos."""
    number = directory_id(catalog, account_id, directory)
    labelled = labelled_with(catalog, number, person_ids)
    found = photos_of(catalog, person_ids, labelled, with_others=True).to_pylist()
    of_runs = {row["path"]: row["media_id"] for row in found if row["path"] is not None}
    return of_runs, len(found) - len(of_runs)


def photos_of(catalog: Catalog, person_ids: Sequence[str], labelled: Sequence[int], *, with_others: bool) -> pa.Table:
    """media_id, path: the photos that show these persons, and those of `labelled` that have a label, if they
    also show others, or else if not. A face said not to be theirs is another's. A posted photo without others, which
    is deleted with its faces, is left out."""
    which = "IN" if with_others else "NOT IN"
    posts = "" if with_others else " AND run_id IS NOT NULL"
    others = (
        f"SELECT media_id FROM core.faces WHERE person_id IS NOT NULL AND NOT {_THESE} UNION ALL SELECT media_id FROM"
        f" core.faces WHERE face_id IN (SELECT face_id FROM core.facts WHERE kind = 'is_not' AND {_THESE})"
    )
    return catalog.read(
        "SELECT media_id, path FROM core.media"
        f" WHERE (media_id IN (SELECT media_id FROM core.faces WHERE {_THESE})"
        " OR coalesce(name, external_id) IS NOT NULL AND media_id IN (SELECT unnest($2::BIGINT[])))"
        f" AND status NOT IN ('{FORGOTTEN}', '{DUPLICATE_ROW}'){posts} AND media_id {which} ({others})"
        " ORDER BY media_id",
        [list(person_ids), list(labelled)],
    )


def values_of_photos(catalog: Catalog, media_ids: Sequence[int], person_ids: Sequence[str]) -> dict[str, list[str]]:
    """What a deletion of these photos erases, with these persons who are left without a face."""
    return _by_kind([*(("person_id", person_id) for person_id in person_ids), *_of_photos(catalog, media_ids)])


def labelled_with(catalog: Catalog, directory: int | None, person_ids: Sequence[str]) -> list[int]:
    """Media that may be labelled with these persons although the faces are others' or there is none: the label is a
    present or former name or external id of theirs, or the largest face was theirs before a correction. Excludes labels
    that fit another person of the directory."""
    these = list(person_ids)
    faces = set(catalog.column(f"SELECT face_id FROM core.facts WHERE kind = 'is_not' AND {_THESE}", [these]))
    gone, said = set(person_ids), catalog.rows(f"SELECT name, external_id FROM core.persons WHERE {_THESE}", [these])
    for shown in shown_persons(catalog, directory, person_ids):  # undone ones moved faces, too
        faces.update(face for face, person_id in shown.owners.items() if person_id in gone)
        known = [columns for person_id, columns in shown.persons.items() if columns and person_id in gone]
        said += [(columns.get("name"), columns.get("external_id")) for columns in known]
    remaining = "FROM core.persons WHERE directory_id = $1 AND person_id NOT IN (SELECT unnest($3::UUID[]))"
    of_others = " AND ".join(
        f"(m.{column} IS NULL OR {as_compared.format(f'm.{column}')} IN (SELECT {as_compared.format(column)}"
        f" {remaining} AND {column} IS NOT NULL))"
        for column, as_compared in _COMPARED.items()
    )
    media = catalog.column(
        "SELECT m.media_id FROM core.faces f JOIN core.media m ON m.media_id = f.media_id WHERE f.ordinal = 0"
        " AND f.face_id IN (SELECT unnest($2::BIGINT[]))"
        f" AND NOT (coalesce(m.name, m.external_id) IS NOT NULL AND {of_others})",
        [directory, sorted(faces), these],
    )
    for place, (column, as_compared) in enumerate(_COMPARED.items()):
        if wanted := sorted({row[place] for row in said if row[place]}):
            media += catalog.column(
                "SELECT m.media_id FROM core.media m JOIN core.directories d ON d.account_id = m.account_id"
                f" AND d.name = m.directory WHERE d.directory_id = $1 AND {as_compared.format(f'm.{column}')} IN"
                f" (SELECT {as_compared.format('unnest($2::VARCHAR[])')} EXCEPT SELECT {as_compared.format(column)}"
                f" {remaining})",
                [directory, wanted, these],
            )
    return media


def _former(catalog: Catalog, directory: int | None, person_ids: Sequence[str]) -> Iterator[Mapping[str, Any]]:
    """Columns of these persons that corrections changed."""
    gone = set(person_ids)
    for rows in shown_persons(catalog, directory, person_ids):
        yield from (columns for person_id, columns in rows.persons.items() if columns and person_id in gone)


def _texts(value: Any) -> Iterator[str]:
    """The values in JSON, at any depth."""
    if isinstance(value, (dict, list)):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _texts(each)
    else:
        yield value if isinstance(value, str) else json.dumps(value)


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
