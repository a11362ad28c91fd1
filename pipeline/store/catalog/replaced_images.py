"""Pictures that an update removed, kept for a day so that clients learn of a newer one."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Final

from pipeline.store.catalog.connection import Catalog
from pipeline.store.catalog.opening import utc_now

_REMEMBERED: Final = timedelta(days=1)


def add(catalog: Catalog, images: Sequence[tuple[str, str]]) -> None:
    """Inside a transaction: adds these images (guid, person id)."""
    now = utc_now()
    rows = [{"image_guid": guid, "person_id": person_id, "replaced_at": now} for guid, person_id in images]
    catalog.insert("replaced_images", rows)


def was_replaced(catalog: Catalog, account_id: int, directory: str, guid: str) -> bool:
    """Whether a person of the directory had this picture within the last day."""
    rows = catalog.rows(
        "SELECT 1 FROM core.replaced_images r JOIN core.persons p ON p.person_id = r.person_id"
        " JOIN core.directories d ON d.directory_id = p.directory_id"
        " WHERE r.image_guid = ? AND r.replaced_at > ? AND d.account_id = ? AND d.name = ?",
        [guid, utc_now() - _REMEMBERED, account_id, directory],
    )
    return bool(rows)


def forget_old(catalog: Catalog) -> None:
    """Part of `LocalStore.fold`: deletes rows older than a day."""
    old = [utc_now() - _REMEMBERED]
    if catalog.rows("SELECT 1 FROM core.replaced_images WHERE replaced_at <= ? LIMIT 1", old):
        with catalog.transaction("fold"):
            catalog.execute("DELETE FROM core.replaced_images WHERE replaced_at <= ?", old)
