"""The catalog: a DuckDB file. Connecting, transactions, reading, and what DuckDB's errors mean to a user.

A Catalog belongs to one thread: that of `CatalogThread`.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol, TypeVar

import duckdb
import pyarrow as pa

from pipeline.errors import StoreDamaged, StoreError, StoreFull, StoreUnwritable
from pipeline.store import schema
from pipeline.store.files.crypto import MasterKey
from pipeline.store.files.durable import Folder
from pipeline.store.files.faults import point
from pipeline.store.records import StoreIdentity

T = TypeVar("T")
_SETTINGS: dict[str, str | bool | int | float | list[str]] = {
    # Otherwise DuckDB would download missing extensions.
    "autoinstall_known_extensions": "false",
    # Never as a part of a COMMIT: on a full disk DuckDB would report a durable commit as failed, and fail all others.
    "checkpoint_threshold": "1TiB",
}
# A checkpoint is made at this size of the log: about 3,500 insertions of 4.7 KB. It delays one commit by 20-90 ms at
# 100,000 persons. A larger log would delay fewer commits, but takes a second per 10 MB to replay.
_LOG_BYTES = 16 * 2**20
# DuckDB gives the system's reason only in the message.
_FULL = re.compile("No space left on device|Disk quota exceeded|File too large|Out of disk", re.IGNORECASE)
_UNWRITABLE = re.compile("Read-only file system|Permission denied|read-only mode", re.IGNORECASE)
_DAMAGED = (duckdb.IOException, duckdb.FatalException, duckdb.InternalException, duckdb.SerializationException)
_DAMAGED_TEXT = re.compile("corrupt|checksum", re.IGNORECASE)
_log = logging.getLogger(__name__)


def check_cure(root: Path) -> str:
    return f"`facepipe check --store {root}` lists what is wrong; if that cannot read it either, restore a backup."


def translate(exc: duckdb.Error, root: Path) -> StoreError | duckdb.Error:
    """The StoreError that a DuckDB error means, or the error itself where the caller made a mistake."""
    text = str(exc).split("\n")[0]
    if _FULL.search(str(exc)):
        return StoreFull(path=root, detail="no space left on device")
    if _UNWRITABLE.search(text):
        return StoreUnwritable(path=root, detail=text)
    if isinstance(exc, _DAMAGED) or _DAMAGED_TEXT.search(text):
        return StoreDamaged(path=root, detail=text, cure=check_cure(root))
    return exc


def connect(file: Path, root: Path) -> duckdb.DuckDBPyConnection:
    """Opens, or makes, a DuckDB file. Raises StoreDamaged, StoreFull, StoreUnwritable."""
    try:
        return duckdb.connect(str(file), config=_SETTINGS)
    except duckdb.Error as exc:
        raise translate(exc, root) from exc


class Catalog:
    """An open catalog. Methods raise StoreDamaged, StoreFull and StoreUnwritable."""

    identity: StoreIdentity  # this and the generation are set by `open_catalog`
    generation: int
    master_key: MasterKey | None = None  # of an encrypted store that is unlocked

    def __init__(self, connection: duckdb.DuckDBPyConnection, folder: Folder, file: Path) -> None:
        self.connection = connection
        self.folder = folder
        self._file = file
        self._long_log = _LOG_BYTES
        self._short_statements = False
        self._parse = lru_cache(256)(self._parsed)  # every request repeats the same statements

    @contextmanager
    def errors(self) -> Iterator[None]:
        try:
            yield
        except duckdb.Error as exc:
            translated = translate(exc, self.folder.root)
            if translated is exc:
                raise
            raise translated from exc

    @contextmanager
    def transaction(self, name: str) -> Iterator[Catalog]:
        """One transaction: committed and durable when the block ends, rolled back when it raises."""
        point(f"{name}.begin")
        with self.errors():
            self.connection.execute("BEGIN TRANSACTION")
            try:
                yield self
                point(f"{name}.commit")
                self.connection.execute("COMMIT")
            except BaseException:
                with suppress(duckdb.Error):  # a failed COMMIT has rolled back already
                    self.connection.execute("ROLLBACK")
                raise
        # DuckDB fsyncs its log, but not the folder with the name of a new log file.
        self.folder.sync_folder(".", "catalog")
        point(f"{name}.committed")

    def prefer_short_statements(self) -> None:
        """Makes many small statements faster and a few large ones slower: handing a statement to DuckDB's own threads
        takes a quarter of its time."""
        self._short_statements = True
        self.execute("SET threads = 1")

    def execute(self, sql: str, params: Sequence[object] = ()) -> None:
        with self.errors():
            self.connection.execute(self._parse(sql), list(params))

    def read(self, sql: str, params: Sequence[object] = ()) -> pa.Table:
        with self.errors():
            return self.connection.sql(sql, params=list(params)).to_arrow_table()

    def rows(self, sql: str, params: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        with self.errors():
            return self.connection.execute(self._parse(sql), list(params)).fetchall()

    def _parsed(self, sql: str) -> duckdb.Statement:
        (statement,) = self.connection.extract_statements(sql)
        return statement

    def one(self, sql: str, params: Sequence[object] = ()) -> Any:
        """The first column of the first row."""
        return self.rows(sql, params)[0][0]

    def insert(self, table: str, rows: Sequence[Mapping[str, object]]) -> None:
        """Adds a few rows, all with the keys of the first; columns that are not named are null."""
        if not rows:
            return
        columns = ", ".join(f'"{name}"' for name in rows[0])
        marks = ", ".join([f"({', '.join('?' for _ in rows[0])})"] * len(rows))
        values = [row[name] for row in rows for name in rows[0]]
        self.execute(f"INSERT INTO core.{table} ({columns}) VALUES {marks}", values)

    @contextmanager
    def tables(self, **tables: pa.Table) -> Iterator[None]:
        """For the block SQL sees these Arrow tables under their names."""
        for name, table in tables.items():
            self.connection.register(name, table)
        try:
            yield
        finally:
            for name in tables:
                self.connection.unregister(name)

    def keep_log_short(self) -> None:
        """Between transactions: makes a checkpoint of a long log. Where that fails, the log keeps everything."""
        size = self._log_bytes()
        if size < self._long_log:
            return
        try:
            self.connection.execute("CHECKPOINT")
            self._long_log = _LOG_BYTES
        except duckdb.Error:
            # DuckDB refuses all work on a database whose checkpoint failed: a new connection replays its log.
            _log.exception("the checkpoint of the catalog's log failed; it is tried again when the log has grown")
            self._long_log = size + _LOG_BYTES
            self._reconnect()

    def _log_bytes(self) -> int:
        try:
            return Path(f"{self._file}.wal").stat().st_size
        except FileNotFoundError:
            return 0

    def _reconnect(self) -> None:
        self.connection.close()
        self._parse.cache_clear()
        try:
            self.connection = connect(self._file, self.folder.root)
            if self._short_statements:
                self.prefer_short_statements()
        except (StoreError, duckdb.Error):
            _log.exception("the catalog could not be reopened; it is tried again")
            self._long_log = 0

    def differences(self) -> list[str]:
        """How the tables and views differ from the schema."""
        columns: dict[str, dict[str, str]] = {}
        for table, column, kind in self.rows(
            "SELECT table_name, column_name, data_type FROM duckdb_columns()"
            " WHERE schema_name = 'core' AND database_name = current_database()"
        ):
            columns.setdefault(table, {})[column] = kind
        views = self.rows(
            "SELECT view_name FROM duckdb_views() WHERE schema_name = 'main' AND database_name = current_database()"
        )
        return schema.differences(columns, {view for (view,) in views})

    def close(self) -> None:
        self.connection.close()


class Submit(Protocol):
    """Does work with the catalog, on its thread."""

    def __call__(self, work: Callable[[Catalog], T], /) -> T: ...
