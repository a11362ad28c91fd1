"""Rewrites the catalog into a new file, without the bytes of deleted rows and former values.

DuckDB overwrites such bytes only when it reuses their blocks. So the rows are copied, under one snapshot, while
transactions go on; these are recorded, and repeated in the copy, the last ones while no other can begin. Then CURRENT
names the new file and the old one is unlinked, never overwritten: a backup may be a hard link to it.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any, Final

import duckdb

from pipeline.errors import StoreError
from pipeline.store import schema
from pipeline.store.catalog.connection import Catalog, OpenStore, Statement, log_of
from pipeline.store.catalog.opening import CURRENT_NAME, catalog_file, new_catalog_name, next_catalog_name
from pipeline.store.files.durable import PRIVATE_FILE, disk_errors
from pipeline.store.files.faults import point
from pipeline.store.files.lock import RUN_LOCK_NAME, StoreLock
from pipeline.store.records import NEVER_UNDONE
from pipeline.types import utc_now

_FEW: Final = 100  # statements
_ROUNDS: Final = 20
_OURS: Final = re.compile(r"catalog-\d{4,}(\.new)?\.duckdb(\.wal)?")
_AT_ONCE: Final = datetime(1970, 1, 1)  # due, whatever the clock says
_COPY: Final = "copy_of_catalog"  # its name in SQL

# Readers of changes who have not read of these deletions yet must begin again.
_DELETIONS: Final = f"len(gone) > 0 AND kind IN {tuple(sorted(NEVER_UNDONE))}"
_WITHOUT_REMOVED: Final = (
    f"UPDATE {_COPY}.core.store SET erase_since = NULL, changes_from = if((SELECT count(*) FROM"
    f" {_COPY}.core.corrections WHERE {_DELETIONS}) = 0, changes_from, (SELECT max(number) FROM {_COPY}.core.commits))",
    f"UPDATE {_COPY}.core.corrections SET gone = [] WHERE {_DELETIONS}",  # not null: removals delete rows where it is
)
# But for those that an unfinished run may show; its end is followed by another rewriting. Times don't tell which, as
# clocks jump.
_ERASED: Final = (
    f"UPDATE {_COPY}.core.erasures SET erased_at = ? WHERE erased_at IS NULL"
    f" AND account_id NOT IN (SELECT account_id FROM {_COPY}.core.runs WHERE state <> 'finished')"
)


def note_removal(catalog: Catalog) -> None:
    """Inside a transaction that removes personal data: the catalog has to be rewritten."""
    catalog.execute("UPDATE core.store SET erase_since = coalesce(erase_since, ?)", [utc_now()])


def make_due(catalog: Catalog) -> None:
    """The catalog has to be rewritten at once, if anything waits: also after a crash."""
    if waits_since(catalog):
        with catalog.transaction("fold"):
            catalog.execute("UPDATE core.store SET erase_since = ?", [_AT_ONCE])


def due_at(since: datetime, within_h: float) -> datetime:
    """When what waits since then has to be erased; now if that is overdue."""
    return max(since + timedelta(hours=within_h), utc_now().replace(microsecond=0))


def waits_since(catalog: Catalog) -> datetime | None:
    """The time of the first removal that is not erased (UTC). Not of those that only a run in progress may show."""
    since: datetime | None = catalog.one("SELECT erase_since FROM core.store")
    if since is None:
        since = catalog.one("SELECT min(deleted_at) FROM core.erasures WHERE erased_at IS NULL")
        if since is not None and StoreLock.is_held(catalog.folder.root, RUN_LOCK_NAME):
            return None
    return since


def is_due(catalog: Catalog, within_h: float) -> bool:
    """Whether a removal is as old as `within_h` hours, or its time is ahead because the clock was set back."""
    since = waits_since(catalog)
    return since is not None and not since <= utc_now() < since + timedelta(hours=within_h)


def rewrite(store: OpenStore) -> None:
    """Rewrites the catalog; other work may go on meanwhile. Raises StoreFull, StoreUnwritable, StoreDamaged; then the
    store uses the old file as before."""
    copy = store.submit(CatalogCopy)
    try:
        copy.fill()
        for _ in range(_ROUNDS):
            statements = store.submit(copy.take)
            copy.repeat(statements)
            if len(statements) <= _FEW:
                break
        store.submit(copy.replace)
    finally:
        copy.close()
        store.submit(copy.discard)


class CatalogCopy:
    """A copy of the catalog in a new file."""

    def __init__(self, catalog: Catalog) -> None:
        """Begins it, on the catalog's thread: takes the snapshot, and records transactions from now on."""
        self._folder, self._old = catalog.folder, catalog.file
        self._name = next_catalog_name(self._old.name)
        self._file = self._folder.path(new_catalog_name(self._name))
        self._using = threading.Lock()  # held while a statement is executed
        self._is_closed = False
        self._errors = catalog.errors
        point("catalog.write")
        self._remove_files()
        self._connection = catalog.connection.cursor()
        catalog.record(self.close)
        self._execute("BEGIN TRANSACTION", "SELECT count(*) FROM core.commits")  # takes the snapshot

    def fill(self) -> None:
        """Copies the rows of the snapshot; those that waited to be erased no longer wait."""
        file = str(self._file).replace("'", "''")
        self._execute(f"ATTACH '{file}' AS {_COPY}")
        with disk_errors(self._folder.root):
            self._file.chmod(PRIVATE_FILE)
        self._execute(
            f"COPY FROM DATABASE {self._of_old} TO {_COPY}",
            *_WITHOUT_REMOVED,
            Statement(_ERASED, [utc_now()], {}),
            "COMMIT",
            f"CHECKPOINT {_COPY}",
            f"USE {_COPY}",
        )

    def take(self, catalog: Catalog) -> list[Statement]:
        """The statements committed since the last call, on the catalog's thread. Raises StoreError if it had to be
        opened again."""
        return catalog.take_recorded()

    def repeat(self, statements: Sequence[Statement]) -> None:
        """Executes these statements in the copy, in one transaction."""
        if statements:
            self._execute("BEGIN TRANSACTION", *statements, "COMMIT")

    def replace(self, catalog: Catalog) -> None:
        """Repeats the last statements and replaces the old file; on the catalog's thread."""
        self.repeat(self.take(catalog))
        self._require_equal()
        self._execute(f"CHECKPOINT {_COPY}", f"USE {self._of_old}", f"DETACH {_COPY}")
        self.close()
        self._folder.publish(self._file.name, self._name, "catalog")
        try:
            self._folder.write(CURRENT_NAME, f"{self._name}\n".encode(), "current")
        except BaseException:
            if catalog_file(self._folder).name == self._name:  # perhaps not durably, so the old one has to stay
                catalog.move_to(self._folder.path(self._name))
            else:
                self._folder.unlink(self._name)
            raise
        catalog.move_to(self._folder.path(self._name))
        for file in (log_of(self._old), self._old):
            self._folder.unlink(file.name)

    @property
    def _of_old(self) -> str:
        """The old database in SQL."""
        return f'"{self._old.stem}"'

    def _require_equal(self) -> None:
        """Compares the last transaction and the number of rows of each table. Raises StoreError."""
        for table in ("commits", *schema.TABLES):
            what = "max(number)" if table == "commits" else "count(*)"
            of = [f"SELECT {what} FROM {name}.core.{table}" for name in (self._of_old, _COPY)]
            (old,), (new,) = self._execute(" UNION ALL ".join(of))
            if old != new:
                detail = f"{table} has {new} in the copy instead of {old}"
                raise StoreError(message=f"The catalog could not be rewritten and is as before: {detail}.")

    def _execute(self, *statements: str | Statement) -> list[tuple[Any, ...]]:
        """Returns the rows of the last one. Raises StoreError if the catalog had to be opened again."""
        with self._using, self._errors():
            if self._is_closed:
                raise StoreError(message="The catalog had to be opened again while it was rewritten: it is as before.")
            for each in statements:
                sql, params, tables = (each, (), {}) if isinstance(each, str) else (each.sql, each.params, each.tables)
                for name, table in tables.items():
                    self._connection.register(name, table)
                rows = self._connection.execute(sql, list(params)).fetchall()
                for name in tables:
                    self._connection.unregister(name)
            return rows

    def close(self) -> None:
        """Ends what is executed; from any thread."""
        with suppress(duckdb.Error):
            self._connection.interrupt()
        with self._using:
            self._is_closed = True
            with suppress(duckdb.Error):
                self._connection.close()

    def discard(self, catalog: Catalog) -> None:
        """Ends the recording and deletes what is left of the copy; on the catalog's thread."""
        catalog.record(None)
        self._remove_files()

    def _remove_files(self) -> None:
        for file in (self._file, log_of(self._file)):
            self._folder.unlink(file.name)


def other_catalogs(catalog: Catalog) -> list[str]:
    """Catalogs and logs that CURRENT does not name: an interrupted rewriting left them. On the catalog's thread,
    because one in progress has such files, too."""
    if catalog.is_recorded:
        return []
    folder = catalog.folder
    current = catalog_file(folder)
    found = [path for path in folder.root.glob("catalog-*.duckdb*") if _OURS.fullmatch(path.name) and path.is_file()]
    return sorted(path.name for path in found if path not in (current, log_of(current)))


def remove_others(catalog: Catalog) -> None:
    """Deletes `other_catalogs`."""
    others = other_catalogs(catalog)
    if others:
        catalog.folder.sync_folder(".", "catalog")  # a crash may have followed the renaming of CURRENT at once
    for file in others:
        catalog.folder.unlink(file)
