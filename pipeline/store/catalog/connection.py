"""The catalog, a DuckDB file: connections, transactions, error translation.

A Catalog belongs to one thread, its `LocalStore`'s.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

import duckdb
import pyarrow as pa

from pipeline.errors import CleanUpLeft, StoreDamaged, StoreError, StoreFull, StoreUnwritable
from pipeline.store import schema
from pipeline.store.files import commit_count
from pipeline.store.files.durable import PRIVATE_FILE, Folder
from pipeline.store.files.encryption import MasterKey
from pipeline.store.files.faults import point
from pipeline.store.records import Generation, StoreIdentity

P = ParamSpec("P")
T = TypeVar("T")
_SETTINGS: dict[str, str | bool | int | float | list[str]] = {
    # Otherwise DuckDB downloads missing extensions.
    "autoinstall_known_extensions": "false",
    # Never within a COMMIT: on a full disk DuckDB would report a durable commit as failed, and fail all later ones.
    "checkpoint_threshold": "1TiB",
}
_READING = {"access_mode": "READ_ONLY"}
# Checkpoint at this log size: about 900 insertions of 4.7 KB. It delays one commit by 20-90 ms at 100,000 persons. A
# larger log delays fewer commits, but loses more of them if damaged, and takes a second per 10 MB to replay.
_LOG_BYTES = 4 * 2**20
_FEW_INSERTED = 64  # up to this many rows or list items, VALUES are faster than an Arrow table
# DuckDB gives the system's reason only in the message.
_FULL = re.compile("No space left on device|Disk quota exceeded|File too large|Out of disk", re.IGNORECASE)
_UNWRITABLE = re.compile(
    "Read-only file system|Permission denied|read-only mode|Could not (write|fsync)|fsync failed", re.IGNORECASE
)
_DAMAGED = (duckdb.IOException, duckdb.FatalException, duckdb.InternalException, duckdb.SerializationException)
_DAMAGED_TEXT = re.compile("corrupt|checksum", re.IGNORECASE)
_log = logging.getLogger(__name__)


def check_cure(root: Path) -> str:
    return f"`facepipe check --store {root}` lists what is wrong; if that cannot read it either, restore a backup."


def translate(exc: duckdb.Error, root: Path) -> StoreError | duckdb.Error:
    """The corresponding StoreError; the error itself if it is a caller's mistake."""
    text = str(exc).split("\n")[0]
    if _FULL.search(str(exc)):
        return StoreFull(path=root, detail="no space left on device")
    if _UNWRITABLE.search(text):
        return StoreUnwritable(path=root, detail=text)
    if isinstance(exc, _DAMAGED) or _DAMAGED_TEXT.search(text):
        return StoreDamaged(path=root, detail=text, cure=check_cure(root))
    return exc


def connect(file: Path, root: Path, *, reading: bool = False) -> duckdb.DuckDBPyConnection:
    """Opens or creates a DuckDB file. `reading` changes nothing in its folder, even if the log cannot be replayed.

    Raises StoreDamaged, StoreFull, StoreUnwritable.
    """
    try:
        return duckdb.connect(str(file), config={**_SETTINGS, **(_READING if reading else {})})
    except duckdb.Error as exc:
        raise translate(exc, root) from exc


def log_of(file: Path) -> Path:
    """DuckDB's log: the transactions since a catalog's last checkpoint."""
    return Path(f"{file}.wal")


def last_commit(file: Path, root: Path, opened: duckdb.DuckDBPyConnection | None = None) -> int | None:
    """The number of the catalog's last transaction; None if they were never counted. Raises StoreDamaged.

    Changes nothing: if given, `opened` must be a connection to a catalog that had no log to replay.
    """
    try:
        with connect(file, root, reading=True) if opened is None else nullcontext(opened) as connection:
            number: int | None = connection.execute("SELECT max(number) FROM core.commits").fetchall()[0][0]
            return number
    except duckdb.CatalogException:
        return None
    except duckdb.Error as exc:
        raise translate(exc, root) from exc


def require_all_commits(folder: Folder, file: Path, opened: duckdb.DuckDBPyConnection | None = None) -> int | None:
    """`last_commit`. Raises StoreDamaged if committed transactions are missing."""
    recorded = commit_count.recorded(folder)
    try:
        last = last_commit(file, folder.root, opened)
    except StoreDamaged as exc:
        if not log_of(file).exists():
            raise
        raise StoreDamaged(**{**exc.fields, "cure": _restore_cure(folder.root)}) from exc
    if is_whole(last, recorded):
        return last
    if recorded is None:
        detail = f"the file {commit_count.COMMITS_NAME}, which counts what was committed, is missing or unreadable"
    else:
        detail = lost_commits(file, last, recorded)
    raise StoreDamaged(path=folder.root, detail=detail, cure=_restore_cure(folder.root))


def is_whole(last: int | None, recorded: int | None) -> bool:
    """Whether a catalog at `last` has all transactions in COMMITS."""
    return (last is None or recorded is not None) and (last or 0) >= (recorded or 0)


def lost_commits(file: Path, last: int | None, recorded: int) -> str:
    """A message. Refused transactions are counted too, so fewer may have been lost."""
    count = recorded - (last or 0)
    return f"{count} of its last changes are gone: the log {log_of(file).name} or the catalog was lost or damaged"


def _restore_cure(root: Path) -> str:
    return (
        "Nothing was touched. Restore a backup, or the lost file; or go on without what is gone by"
        f" `facepipe check --repair --store {root}`, which keeps what comes before the damage, lists what is lost, and"
        " keeps its files in quarantine/."
    )


@contextmanager
def cleaning_up(path: Path) -> Iterator[None]:
    """Wraps work after a commit to the store at `path`. Raises CleanUpLeft if it fails."""
    try:
        yield
    except CleanUpLeft:
        raise
    except StoreError as exc:
        raise CleanUpLeft(path=path, detail=exc.fields.get("detail", exc)) from exc


def _has_long_list(row: Mapping[str, object]) -> bool:
    return any(isinstance(value, list) and len(value) > _FEW_INSERTED for value in row.values())


@dataclass(frozen=True)
class Statement:
    """An executed statement that may have changed the catalog."""

    sql: str
    params: Sequence[object]
    tables: Mapping[str, pa.Table]  # registered for it


class Catalog:
    """An open catalog. Methods raise StoreDamaged, StoreFull and StoreUnwritable."""

    generations: Mapping[int, Generation]  # by number, the current one first, at most one other; set by `open_catalog`
    _at: int | None = None  # the generation of queries and changes; None: the current one
    master_key: MasterKey | None = None  # of an unlocked encrypted store

    def __init__(self, folder: Folder, file: Path, *, read_only: bool = False) -> None:
        """Raises StoreDamaged, StoreFull, StoreUnwritable."""
        self.connection = connect(file, folder.root, reading=read_only)
        self.folder = folder
        self.read_only = read_only
        self.file = file
        self._tables: dict[str, pa.Table] = {}  # registered
        self._statements: list[Statement] = []  # of the transaction in progress
        self._recorded: list[Statement] | None = None  # of committed transactions; None: not recorded
        self._before_closing: Callable[[], None] | None = None  # ends what else uses the connection's database
        self._number: int | None = None  # of the last transaction; None: not counted yet
        self._log_is_named = False
        self._long_log = _LOG_BYTES
        self._short_statements = False
        self._parse = lru_cache(256)(self._parsed)

    @property
    def generation(self) -> int:
        """That of queries and changes: the current one unless `at` sets another."""
        return next(iter(self.generations)) if self._at is None else self._at

    @property
    def identity(self) -> StoreIdentity:
        return self.generations[self.generation].identity

    @property
    def other(self) -> Generation | None:
        """The generation other than `generation`, if any: in progress, or kept."""
        return next((each for each in self.generations.values() if each.number != self.generation), None)

    @contextmanager
    def at(self, generation: int | None) -> Iterator[None]:
        """Within the block, queries and changes use this generation; None: the current one."""
        before, self._at = self._at, generation
        try:
            yield
        finally:
            self._at = before

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
        """One transaction: committed and durable when the block ends, rolled back if it raises.

        Raises CleanUpLeft if the disk fails after the COMMIT.
        """
        point(f"{name}.begin")
        self._log_is_named &= log_of(self.file).exists()
        self._statements = []
        with self.errors():
            self.connection.execute("BEGIN TRANSACTION")
            try:
                yield self
                if self._number is not None:
                    self._number += 1  # even if the COMMIT fails: it may be durable, and numbers must be unique
                    self.execute("UPDATE core.commits SET number = ?", [self._number])
                point(f"{name}.commit")
                self.connection.execute("COMMIT")
            except BaseException:
                try:
                    self.connection.execute("ROLLBACK")
                except duckdb.FatalException:
                    self._reconnect()  # the log could not be synced: DuckDB refuses all work until reopened
                except duckdb.Error:
                    pass  # a failed COMMIT has rolled back
                raise
        if self._recorded is not None:
            self._recorded += self._statements
        with cleaning_up(self.folder.root):
            self._record_commit()
        point(f"{name}.committed")

    @property
    def commit_number(self) -> int:
        """Of the transaction in progress; 0 if transactions are not counted yet."""
        return 0 if self._number is None else self._number + 1

    @property
    def last_number(self) -> int:
        """Of the last transaction; 0 if transactions are not counted yet."""
        return self._number or 0

    def _record_commit(self) -> None:
        if not self._log_is_named:
            with suppress(FileNotFoundError):  # if the transaction changed nothing
                log_of(self.file).chmod(PRIVATE_FILE)
            # DuckDB fsyncs its log, but not the folder with a new log's name.
            self.folder.sync_folder(".", "catalog")
            self._log_is_named = True
        if self._number is not None:
            commit_count.record(self.folder, self._number)

    def count_commits(self, last: int) -> None:
        """Numbers the following transactions from `last` + 1."""
        self._number = last

    def start_count(self, number: int) -> None:
        """Sets the last transaction's number in the catalog and COMMITS."""
        if commit_count.recorded(self.folder) is None:
            commit_count.write(self.folder, 0)
        with self.transaction("count_commits"):
            self.execute("CREATE TABLE IF NOT EXISTS core.commits (number BIGINT)")
            self.execute("DELETE FROM core.commits")
            self.execute("INSERT INTO core.commits VALUES (?)", [number])
        commit_count.record(self.folder, number)
        self._number = number

    def prefer_short_statements(self) -> None:
        """Speeds up many small statements, slows down a few large ones: passing a statement to DuckDB's threads takes a
        quarter of its time."""
        self._short_statements = True
        self.execute("SET threads = 1")

    def execute(self, sql: str, params: Sequence[object] = ()) -> None:
        self.rows(sql, params)

    def read(self, sql: str, params: Sequence[object] | dict[str, object] = ()) -> pa.Table:
        with self.errors():
            return self.connection.sql(sql, params=params).to_arrow_table()

    def rows(self, sql: str, params: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        with self.errors():
            statement = self._parse(sql)
            if self._recorded is not None and statement.type != duckdb.StatementType.SELECT:
                self._statements.append(Statement(sql, list(params), dict(self._tables)))
            return self.connection.execute(statement, list(params)).fetchall()

    def _parsed(self, sql: str) -> duckdb.Statement:
        (statement,) = self.connection.extract_statements(sql)
        return statement

    def column(self, sql: str, params: Sequence[object] = ()) -> list[Any]:
        """The values of the only column."""
        return [value for (value,) in self.rows(sql, params)]

    def one(self, sql: str, params: Sequence[object] = ()) -> Any:
        """The first column of the first row."""
        return self.rows(sql, params)[0][0]

    def raise_counters(self, numbers: Mapping[str, int]) -> None:
        """Raises counters of core.store to at least these numbers."""
        raised = {name: number for name, number in numbers.items() if number}
        if raised:
            values = ", ".join(f"{name} = greatest({name}, ?)" for name in raised)
            self.execute(f"UPDATE core.store SET {values}", list(raised.values()))

    def insert(self, table: str, rows: Sequence[Mapping[str, object]]) -> None:
        """Inserts rows, all with the keys of the first; other columns are null."""
        if len(rows) > _FEW_INSERTED or any(map(_has_long_list, rows)):
            with self.tables(new_rows=schema.arrow_table(table, list(rows[0]), rows)):
                self.execute(f"INSERT INTO core.{table} BY NAME SELECT * FROM new_rows")
            return
        if not rows:
            return
        columns = ", ".join(f'"{name}"' for name in rows[0])
        marks = ", ".join([f"({', '.join('?' for _ in rows[0])})"] * len(rows))
        values = [row[name] for row in rows for name in rows[0]]
        self.execute(f"INSERT INTO core.{table} ({columns}) VALUES {marks}", values)

    @contextmanager
    def tables(self, **tables: pa.Table) -> Iterator[None]:
        """Registers Arrow tables for SQL within the block."""
        for name, table in tables.items():
            self.connection.register(name, table)
        self._tables |= tables
        try:
            yield
        finally:
            for name in tables:
                self.connection.unregister(name)
                del self._tables[name]

    # Rewriting

    def record(self, before_closing: Callable[[], None] | None) -> None:
        """Records the statements of transactions from now on, for a copy. `before_closing`: called before the database
        is closed, which ends the recording, too; None: records no longer."""
        self._before_closing = before_closing
        self._recorded = None if before_closing is None else []

    @property
    def is_recorded(self) -> bool:
        """Whether a copy is being made."""
        return self._recorded is not None

    def take_recorded(self) -> list[Statement]:
        """Those since the last call. Raises StoreError if the recording was ended."""
        if self._recorded is None:
            raise StoreError(message="The catalog had to be opened again while it was rewritten: it is as before.")
        statements, self._recorded = self._recorded, []
        return statements

    def move_to(self, file: Path) -> None:
        """Goes on with an equal catalog."""
        with suppress(duckdb.Error):
            self.connection.execute("PRAGMA disable_checkpoint_on_shutdown")  # the old file is deleted
        self.file, self._log_is_named, self._long_log = file, False, _LOG_BYTES
        self._reconnect()

    def keep_log_short(self) -> None:
        """Between transactions: checkpoints a long log. If that fails, the log keeps everything."""
        log = log_of(self.file)
        size = log.stat().st_size if log.exists() else 0
        # A checkpoint would fail while the snapshot of a copy is open.
        if size < self._long_log or self.read_only or self._recorded is not None:
            return
        try:
            self.connection.execute("CHECKPOINT")
            self._long_log = _LOG_BYTES
        except duckdb.Error:
            # DuckDB refuses all work after a failed checkpoint: a new connection replays the log.
            _log.exception("the checkpoint of the catalog's log failed; it is tried again when the log has grown")
            self._long_log = size + _LOG_BYTES
            self._reconnect()

    def _reconnect(self) -> None:
        if self._before_closing is not None:
            self._before_closing()
        self.record(None)
        self.connection.close()
        self._parse.cache_clear()
        try:
            require_all_commits(self.folder, self.file)
            self.connection = connect(self.file, self.folder.root)
            if self._short_statements:
                self.prefer_short_statements()
        except (StoreError, duckdb.Error):
            _log.exception("the catalog could not be reopened; it is tried again")
            self._long_log = 0

    def submit(self, work: Callable[Concatenate[Catalog, P], T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Calls `work`, as `OpenStore.submit` does: clean-up works on either."""
        return work(self, *args, **kwargs)

    def close(self) -> None:
        self.connection.close()


class OpenStore(Protocol):
    """An open store, from any thread; see `LocalStore`."""

    @property
    def folder(self) -> Folder: ...

    @property
    def generation(self) -> int: ...

    @property
    def generations(self) -> Mapping[int, Generation]: ...

    def submit(self, work: Callable[Concatenate[Catalog, P], T], /, *args: P.args, **kwargs: P.kwargs) -> T: ...

    def at(self, generation: int) -> OpenStore: ...


def each_generation(store: OpenStore) -> list[OpenStore]:
    """The store at each of its generations, for work that each needs."""
    return [store.at(number) for number in store.generations]
