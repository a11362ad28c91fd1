"""The persons and photos that report pages show. A page is deleted as soon as one of them is forgotten."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pipeline.store import cleanup
from pipeline.store.catalog.connection import Catalog
from pipeline.types import FORGOTTEN

PAGE: Final = "report.html"  # in a run's folder


def note_page(catalog: Catalog, file: str, person_ids: Sequence[str], media_ids: Sequence[int]) -> bool:
    """Must precede writing a page to `file` (relative to the store): records its subjects, in addition to those of an
    earlier page there.

    Returns False, recording nothing, if a subject was forgotten meanwhile.
    """
    shown = [list(person_ids), list(media_ids)]
    with catalog.transaction("note_page"):
        ((persons, media),) = catalog.rows(
            "SELECT (SELECT count(*) FROM core.persons WHERE person_id IN (SELECT unnest(?::UUID[]))),"
            f" (SELECT count(*) FROM core.media WHERE status <> '{FORGOTTEN}'"
            " AND media_id IN (SELECT unnest(?::BIGINT[])))",
            shown,
        )
        if (persons, media) != (len(person_ids), len(media_ids)):
            return False
        catalog.execute(
            "INSERT INTO core.page_subjects (SELECT $1, unnest($2::UUID[]), NULL"
            " UNION ALL SELECT $1, NULL, unnest($3::BIGINT[])"
            " UNION ALL SELECT $1, NULL, NULL) EXCEPT SELECT * FROM core.page_subjects",
            [file, *shown],
        )
    return True


def is_noted(catalog: Catalog, file: str) -> bool:
    """Whether the page's subjects are recorded: no longer after one of them was forgotten."""
    return bool(catalog.rows("SELECT 1 FROM core.page_subjects WHERE file = ? LIMIT 1", [file]))


def remove_pages(catalog: Catalog, person_ids: Sequence[str] = (), media_ids: Sequence[int] = ()) -> None:
    """Inside a transaction: removes the pages that show one of these."""
    files = catalog.column(
        "SELECT DISTINCT file FROM core.page_subjects WHERE person_id IN (SELECT unnest(?::UUID[]))"
        " OR media_id IN (SELECT unnest(?::BIGINT[]))",
        [list(person_ids), list(media_ids)],
    )
    if not files:
        return
    catalog.execute("DELETE FROM core.page_subjects WHERE file IN (SELECT unnest(?::VARCHAR[]))", [files])
    cleanup.delete_later(catalog, files)
