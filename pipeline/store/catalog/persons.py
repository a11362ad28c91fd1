"""Records of persons. Answers have the number of the last commit that they reflect, for readers that cache them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Final

from pipeline.store.catalog.connection import Catalog
from pipeline.store.catalog.directories import directory_id
from pipeline.store.records import Merges, PersonRows
from pipeline.texts import is_unicode, nfc
from pipeline.types import utc_now

_RECORDS: Final = """
    SELECT p.person_id::VARCHAR AS person_id, p.seq, p.name, p.first_name, p.last_name, p.external_id,
        p.parent_id::VARCHAR AS parent_id, p.tags, p.metadata, coalesce(p.ignored, false) AS ignored, p.occurrence,
        p.last_occurrence_at, p.added_at, p.modified_at, p.cover,
        coalesce(r.image_guid, o.image_guid) AS image_guid
    FROM (FROM core.persons WHERE directory_id = $2 {}) p
    LEFT JOIN core.reference_faces r ON r.person_id = p.person_id AND r.generation = $1
    LEFT JOIN core.reference_faces o ON o.person_id = p.person_id AND o.generation <> $1  -- of another face, then
    ORDER BY p.seq
"""
_REMEMBERED: Final = timedelta(days=1)
_THESE: Final = _RECORDS.format("AND person_id IN (SELECT unnest($3::UUID[]))")
_LATER: Final = _RECORDS.format("AND seq > $3 ORDER BY seq LIMIT $4")


def persons(catalog: Catalog, account_id: int, directory: str, person_ids: Sequence[str]) -> PersonRows:
    """The directory's persons with one of these ids (UUIDs)."""
    here = [catalog.generation, directory_id(catalog, account_id, directory)]
    return PersonRows(catalog.last_number, catalog.read(_THESE, [*here, list(person_ids)]))


def persons_after(catalog: Catalog, account_id: int, directory: str, seq: int, count: int) -> PersonRows:
    """The first `count` persons of the directory after number `seq`, in insertion order."""
    here = [catalog.generation, directory_id(catalog, account_id, directory)]
    return PersonRows(catalog.last_number, catalog.read(_LATER, [*here, seq, count]))


def persons_called(
    catalog: Catalog, account_id: int, directory: str, names: Sequence[str], external_ids: Sequence[str]
) -> list[str]:
    """Ids of the directory's persons with one of these names (in any Unicode form) or external ids, in insertion
    order."""
    wanted: list[object] = [directory_id(catalog, account_id, directory), [*filter(is_unicode, external_ids)]]
    called = "external_id IN (SELECT unnest($2::VARCHAR[]))"
    if names:  # normalising all names takes ten times as long
        called += " OR nfc_normalize(name) IN (SELECT unnest($3::VARCHAR[]))"
        wanted.append([nfc(name) for name in filter(is_unicode, names)])
    sql = f"SELECT person_id::VARCHAR FROM core.persons WHERE directory_id = $1 AND ({called}) ORDER BY seq"
    return catalog.column(sql, wanted)


def merges(catalog: Catalog, account_id: int, directory: str) -> Merges:
    """Empty if the directory does not exist."""
    here = [directory_id(catalog, account_id, directory)]
    count = catalog.one("SELECT count(*) FROM core.persons WHERE directory_id = ?", here)
    parents = catalog.rows(
        "SELECT person_id::VARCHAR, parent_id::VARCHAR FROM core.persons"
        " WHERE directory_id = ? AND parent_id IS NOT NULL ORDER BY seq",
        here,
    )
    return Merges(catalog.last_number, int(count), dict(parents))


def is_picture(catalog: Catalog, account_id: int, directory: str, guid: str) -> bool:
    """Whether it is the picture of a person in the directory."""
    return bool(
        catalog.rows(
            "SELECT 1 FROM core.reference_faces r JOIN core.persons p ON p.person_id = r.person_id"
            " WHERE r.image_guid = ? AND p.directory_id = ? LIMIT 1",
            [guid, directory_id(catalog, account_id, directory)],
        )
    )


# Pictures that an update removed, kept for a day so that clients learn of a newer one.


def add_replaced(catalog: Catalog, images: Sequence[tuple[str, str]]) -> None:
    """Inside a transaction: adds these pictures (guid, person id)."""
    now = utc_now()
    rows = [{"image_guid": guid, "person_id": person_id, "replaced_at": now} for guid, person_id in images]
    catalog.insert("replaced_images", rows)


def was_replaced(catalog: Catalog, account_id: int, directory: str, guid: str) -> bool:
    """Whether a person of the directory had this picture within the last day."""
    rows = catalog.rows(
        "SELECT 1 FROM core.replaced_images r JOIN core.persons p ON p.person_id = r.person_id"
        " WHERE r.image_guid = ? AND r.replaced_at > ? AND p.directory_id = ?",
        [guid, utc_now() - _REMEMBERED, directory_id(catalog, account_id, directory)],
    )
    return bool(rows)


def forget_replaced(catalog: Catalog) -> None:
    """Part of `LocalStore.fold`: deletes rows older than a day."""
    old = [utc_now() - _REMEMBERED]
    if catalog.rows("SELECT 1 FROM core.replaced_images WHERE replaced_at <= ? LIMIT 1", old):
        with catalog.transaction("fold"):
            catalog.execute("DELETE FROM core.replaced_images WHERE replaced_at <= ?", old)
