"""Directories: an account's named sets of identities. A directory exists while it holds an identity."""

from __future__ import annotations

from dataclasses import fields
from datetime import datetime
from typing import Final

from pipeline.errors import DirectoryUnknown, StoreError, TooManyDirectories
from pipeline.store import cleanup
from pipeline.store.catalog.connection import Catalog
from pipeline.store.records import NO_ROWS, DirectoryRow, Remembered
from pipeline.store.schema import MAX_DIRECTORIES

_REMEMBERED: Final = ", ".join(f'd."{column.name}"' for column in fields(Remembered))


def directory_id(catalog: Catalog, account_id: int, name: str) -> int | None:
    """The directory's id; None if it holds no identity."""
    rows = catalog.rows(
        "SELECT directory_id FROM core.directories WHERE account_id = ? AND name = ?", [account_id, name]
    )
    return int(rows[0][0]) if rows else None


def directory_ids(catalog: Catalog) -> list[int]:
    """Of all accounts."""
    return catalog.column("SELECT directory_id FROM core.directories ORDER BY 1")


def require_directory(catalog: Catalog, account_id: int, name: str) -> int:
    """The directory's id. Raises DirectoryUnknown."""
    number = directory_id(catalog, account_id, name)
    if number is None:
        others = [row.name for row in directories(catalog) if row.account_id == account_id]
        raise DirectoryUnknown(account=_user_id(catalog, account_id), directory=name, known=", ".join(others) or "none")
    return number


def contents(catalog: Catalog, account_id: int, name: str) -> tuple[list[str], list[int]]:
    """The directory's persons, and the photos of runs into it; photos may be left without any person. Raises
    DirectoryUnknown if there is neither."""
    photos = catalog.column(
        "SELECT media_id FROM core.media WHERE account_id = ? AND directory = ? AND path IS NOT NULL ORDER BY media_id",
        [account_id, name],
    )
    number = directory_id(catalog, account_id, name) if photos else require_directory(catalog, account_id, name)
    sql = "SELECT person_id::VARCHAR FROM core.persons WHERE directory_id = ? ORDER BY seq"
    return catalog.column(sql, [number]), photos


def with_contents(catalog: Catalog, account_id: int) -> list[str]:
    """The names of an account's directories with persons, or photos of runs."""
    return catalog.column(
        "SELECT name FROM core.directories WHERE account_id = $1 UNION"
        " SELECT directory FROM core.media WHERE account_id = $1 AND path IS NOT NULL ORDER BY 1",
        [account_id],
    )


def make_directory(catalog: Catalog, account_id: int, name: str, now: datetime) -> int:
    """Adds a directory, in the transaction that adds its first identity; returns its id.

    Raises TooManyDirectories, and StoreError for an unknown account.
    """
    user_id = _user_id(catalog, account_id)
    count = catalog.one("SELECT count(*) FROM core.directories WHERE account_id = ?", [account_id]) + 1
    if count > MAX_DIRECTORIES:
        raise TooManyDirectories(account=user_id, count=count, limit=MAX_DIRECTORIES)
    number = int(catalog.one("SELECT coalesce(max(directory_id), 0) + 1 FROM core.directories"))
    row = {"directory_id": number, "account_id": account_id, "name": name, "added_at": now}
    catalog.insert("directories", [row])
    return number


def drop_if_empty(catalog: Catalog, directory: int) -> None:
    """Deletes a directory without identities, with its segments and corrections. Corrections that deleted persons keep
    only their ids."""
    if catalog.rows("SELECT 1 FROM core.persons WHERE directory_id = ? LIMIT 1", [directory]):
        return
    catalog.execute("DELETE FROM core.corrections WHERE directory_id = ? AND gone IS NULL", [directory])
    catalog.execute(
        "UPDATE core.corrections SET directory_id = NULL, undoes = NULL, merges_only = true, before = ?, after = ?,"
        " person_ids = [] WHERE directory_id = ?",
        [NO_ROWS, NO_ROWS, directory],
    )
    catalog.execute("DELETE FROM core.directories WHERE directory_id = ?", [directory])
    drop_segments(catalog, directory)


def drop_segments(catalog: Catalog, directory: int) -> None:
    """Inside a transaction: removes the directory's segments and tombstones. The files are deleted later."""
    files = catalog.column("DELETE FROM core.segments WHERE directory_id = ? RETURNING file", [directory])
    catalog.execute("DELETE FROM core.tombstones WHERE directory_id = ?", [directory])
    cleanup.delete_later(catalog, files)


def directories(catalog: Catalog) -> list[DirectoryRow]:
    """All accounts' directories, by account and age."""
    rows = catalog.rows(
        f"SELECT d.account_id, a.user_id, d.name, coalesce(p.identities, 0), coalesce(p.records, 0), {_REMEMBERED}"
        " FROM core.directories d JOIN core.accounts a ON a.account_id = d.account_id"
        " LEFT JOIN (SELECT directory_id, count_if(parent_id IS NULL) AS identities, count(*) AS records"
        " FROM core.persons GROUP BY directory_id) p"
        " ON p.directory_id = d.directory_id ORDER BY d.account_id, d.directory_id"
    )
    return [
        DirectoryRow(account_id, user_id, name, identities, records, Remembered(*own))
        for account_id, user_id, name, identities, records, *own in rows
    ]


def remembered(catalog: Catalog, account_id: int, name: str) -> Remembered:
    """What a regroup set for the directory; nothing if it holds no identity."""
    rows = catalog.rows(
        f"SELECT {_REMEMBERED} FROM core.directories d WHERE account_id = ? AND name = ?", [account_id, name]
    )
    return Remembered(*rows[0]) if rows else Remembered()


def remember(catalog: Catalog, directory: int, values: Remembered) -> None:
    """Inside a transaction: sets what the directory remembers."""
    columns = vars(values)
    settings = ", ".join(f'"{name}" = ?' for name in columns)
    catalog.execute(f"UPDATE core.directories SET {settings} WHERE directory_id = ?", [*columns.values(), directory])


def _user_id(catalog: Catalog, account_id: int) -> str:
    rows = catalog.rows("SELECT user_id FROM core.accounts WHERE account_id = ?", [account_id])
    if not rows:
        raise StoreError(message=f"The store {catalog.folder.root} has no account {account_id}.")
    return str(rows[0][0])
