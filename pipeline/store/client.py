"""StoreClient: the one door to a store.

It holds the store's lock for as long as it lives. One thread owns the catalog; what the methods ask of it waits
in its queue, so the methods may be called from any thread, and a Ctrl-C in the caller never cuts a transaction.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.errors import StoreError, StoreMissing
from pipeline.store import accounts, commit, deletes, known, opening, references, runs, shards
from pipeline.store.catalog import Catalog
from pipeline.store.durable import TEMPORARY, Folder
from pipeline.store.lock import LOCK_NAME, StoreLock
from pipeline.store.objects import read_object
from pipeline.store.records import Counters, References, RunRow, ShardCommit, StoreIdentity

T = TypeVar("T")


class StoreClient:
    """An open, locked store. Every method raises StoreDamaged, StoreFull or StoreUnwritable where it meets them."""

    def __init__(
        self, lock: StoreLock, catalog: Catalog, writer: ThreadPoolExecutor, identity: StoreIdentity, generation: int
    ) -> None:
        """Use `open` or `open_or_create`."""
        self._lock = lock
        self._catalog = catalog
        self._writer = writer
        self._committing = threading.Lock()
        self._manifest: tuple[str, pq.ParquetFile] | None = None
        self._closed = False
        self.folder = catalog.folder
        self.path = catalog.folder.root
        self.identity = identity
        self.generation = generation

    @classmethod
    def open(cls, path: Path | str, *, command: str) -> StoreClient:
        """Opens the store at `path`; `command` is what a second opener is told.

        Raises StoreMissing, StoreLocked, StoreDamaged, StoreTooNew.
        """
        root = Path(path).absolute()
        if not root.is_dir():
            raise StoreMissing(path=root)
        if not (root / LOCK_NAME).exists():
            opening.require_store(root)  # before a lock file is left in a folder that is no store
        return cls._open(root, None, command)

    @classmethod
    def open_or_create(
        cls, path: Path | str, make_identity: Callable[[], StoreIdentity], *, command: str
    ) -> StoreClient:
        """Opens the store at `path`, or makes it, with what `make_identity` says; that is called only then.

        Raises what `open` does but StoreMissing, and StoreUnwritable where no store can be.
        """
        root = Path(path).absolute()
        opening.require_place(root)
        Folder(root.parent).make(root.name)
        return cls._open(root, make_identity, command)

    @classmethod
    def _open(cls, root: Path, make_identity: Callable[[], StoreIdentity] | None, command: str) -> StoreClient:
        folder = Folder(root)
        lock = StoreLock.acquire(root, command)
        writer = ThreadPoolExecutor(1, thread_name_prefix="store-writer")
        try:
            catalog, identity, generation = writer.submit(_open_catalog, folder, make_identity).result()
            return cls(lock, catalog, writer, identity, generation)
        except BaseException:
            writer.shutdown()
            lock.release()
            raise

    def close(self) -> None:
        """Closes the catalog and frees the lock; a second call does nothing."""
        if self._closed:
            return
        self._closed = True
        self._forget_manifest()
        try:
            self._writer.submit(self._catalog.close).result()
        finally:
            self._writer.shutdown()
            self._lock.release()

    def __enter__(self) -> StoreClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def submit(self, work: Callable[[Catalog], T]) -> T:
        """Does `work` on the thread that owns the catalog, and returns what it returns."""
        if self._closed:
            raise StoreError(message=f"The store {self.path} is closed.")
        return self._writer.submit(work, self._catalog).result()

    def read(self, sql: str, params: Sequence[object] = ()) -> pa.Table:
        """What an SQL query answers."""
        return self.submit(lambda catalog: catalog.read(sql, params))

    # Accounts

    def account_id(self, user_id: str) -> int:
        """Raises AccountUnknown."""
        return self.submit(lambda catalog: accounts.account_id(catalog, user_id))

    def accounts(self) -> list[str]:
        """The user ids, the oldest first."""
        return self.submit(accounts.user_ids)

    def create_account(self, user_id: str, password_hash: str | None) -> int:
        """The new account's id; without a hash no password opens it. Raises AccountExists, UsageError."""
        return self.submit(lambda catalog: accounts.create_account(catalog, user_id, password_hash))

    # Runs

    def begin_run(
        self, source: str, source_kind: str, account_id: int, directory: str, settings: Mapping[str, Any]
    ) -> RunRow:
        """A new run in state `scanning`."""
        return self.submit(lambda c: runs.begin_run(c, source, source_kind, account_id, directory, settings))

    def rebegin_run(self, run_id: str, source_kind: str, directory: str, settings: Mapping[str, Any]) -> RunRow:
        """The same run, still `scanning`, with what is asked for now. Raises StoreError in another state."""
        return self.submit(lambda c: runs.rebegin_run(c, run_id, source_kind, directory, settings))

    def plan_run(self, run_id: str, rows: int, shards: int) -> None:
        """The manifest is written: `scanning` becomes `open`. Raises StoreError in another state."""
        self.submit(lambda catalog: runs.plan_run(catalog, run_id, rows, shards))

    def finish_run(self, run_id: str, summary: Mapping[str, Any]) -> None:
        """`open` becomes `finished`. Raises StoreError while a shard is missing."""
        self.submit(lambda catalog: runs.finish_run(catalog, run_id, summary))

    def run_row(self, run_id: str) -> RunRow:
        """Raises StoreError for an unknown run."""
        return self.submit(lambda catalog: runs.run_row(catalog, run_id))

    def unfinished_run(self, source: str | None, account_id: int | None) -> RunRow | None:
        """The latest run that is not finished, of this source and account (None: of any)."""
        condition, params = runs.of_source(source, account_id)
        found = self.submit(lambda c: runs.find_runs(c, f"state <> '{runs.FINISHED}' AND {condition}", params))
        return found[0] if found else None

    def last_run(self, source: str | None, account_id: int | None) -> RunRow | None:
        """The latest run in any state, of this source and account (None: of any)."""
        condition, params = runs.of_source(source, account_id)
        found = self.submit(lambda catalog: runs.find_runs(catalog, condition, params))
        return found[0] if found else None

    def committed_shards(self, run_id: str) -> set[int]:
        return self.submit(lambda catalog: runs.committed_shards(catalog, run_id))

    # Files of a run

    def write_manifest(
        self, run_id: str, batches: Iterable[pa.RecordBatch], schema: pa.Schema, *, shard_rows: int = 256
    ) -> int:
        """Streams the manifest to disk; returns its number of rows. What `batches` raises passes."""
        self._forget_manifest()
        return shards.write_manifest(self.folder, run_id, batches, schema, shard_rows)

    def read_manifest(self, run_id: str, shard_rows: int, shard: int) -> pa.Table:
        """The manifest's rows shard * shard_rows up to (shard + 1) * shard_rows."""
        file = shards.manifest_file(run_id)
        try:
            if self._manifest is None or self._manifest[0] != run_id:
                self._forget_manifest()
                self._manifest = run_id, pq.ParquetFile(self.folder.path(file))
            return shards.read_rows(self._manifest[1], shard * shard_rows, (shard + 1) * shard_rows)
        except (OSError, pa.ArrowException) as exc:
            raise shards.damaged_file(self.folder, file, str(exc)) from exc

    def read_manifest_columns(self, run_id: str, columns: Sequence[str]) -> pa.Table:
        """Some columns of the whole manifest."""
        return shards.read_parquet(self.folder, shards.manifest_file(run_id), columns)

    def _forget_manifest(self) -> None:
        if self._manifest is not None:
            self._manifest[1].close()
            self._manifest = None

    def write_run_shard(self, run_id: str, shard: int, table: pa.Table, metadata: Mapping[str, Any]) -> None:
        """Writes what extraction made of a shard, atomically."""
        file = shards.run_shard_file(run_id, shard)
        data = shards.parquet_bytes(table, metadata)
        self.folder.make(file.rpartition("/")[0])
        self.folder.write(file, data, "shard")

    def read_run_shard(self, run_id: str, shard: int) -> pa.Table:
        """The table that was written, without its metadata."""
        return shards.read_parquet(self.folder, shards.run_shard_file(run_id, shard))

    def has_run_shard(self, run_id: str, shard: int) -> bool:
        """A file at its final name is whole."""
        return self.folder.path(shards.run_shard_file(run_id, shard)).exists()

    def write_report(self, run_id: str, name: str, data: bytes) -> None:
        """Writes a file such as run.json into the run's folder, atomically."""
        if not name or Path(name).name != name or name.endswith(TEMPORARY):
            raise StoreError(message=f'"{name}" cannot name a report.')
        self.folder.make(f"runs/{run_id}")
        self.folder.write(f"runs/{run_id}/{name}", data, "report")

    # What is known

    def known_rows(self, source: str, account_id: int) -> pa.Table:
        """KNOWN_ROWS_SCHEMA: every (path, directory, sha256) committed from this source, the latest last."""
        return self.submit(lambda catalog: known.known_rows(catalog, source, account_id))

    def known_media(self, account_id: int, hashes: Sequence[str]) -> dict[str, int]:
        """sha256 -> media_id of a committed row of the account with these bytes, whose faces all have a stored
        embedding."""
        return self.submit(lambda catalog: known.known_media(catalog, self.generation, account_id, hashes))

    def faces_of_media(self, media_ids: Sequence[int]) -> pa.Table:
        """faces_of_media_schema(d), by media_id and ordinal."""
        size = self.identity.embedding_size
        return self.submit(lambda catalog: known.faces_of_media(catalog, self.generation, size, media_ids))

    def references(self, account_id: int, directory: str) -> References:
        """The current references of a directory, in the order of the identities."""
        size = self.identity.embedding_size

        def work(catalog: Catalog) -> References:
            found = references.directory_id(catalog, account_id, directory)
            return references.references(catalog, self.generation, size, found)

        return self.submit(work)

    def directories_with_identities(self, account_id: int) -> set[str]:
        return self.submit(lambda catalog: known.directories_with_identities(catalog, account_id))

    def counters(self) -> Counters:
        return self.submit(known.counters)

    def read_object(self, guid: str) -> bytes:
        """The bytes of a stored image."""
        return read_object(self.folder, guid)

    # Committing

    def commit_shard(self, shard: ShardCommit) -> None:
        """Commits a shard as a whole, durably; raises StoreError, and nothing is in, otherwise.

        A second commit of the same shard, ids that are taken, and columns that don't fit are refused;
        TooManyDirectories is raised when the account would hold identities in more than MAX_DIRECTORIES.
        """
        size = self.identity.embedding_size
        tables = commit.conform(shard, size)
        with self._committing:
            self.submit(lambda catalog: commit.check_new(catalog, shard, tables))
            prepared = commit.write_files(self.folder, self.identity, self.generation, shard, tables)
            self.submit(lambda catalog: commit.commit_rows(catalog, prepared))
            self.submit(lambda catalog: commit.after_commit(catalog, prepared, size))


def _open_catalog(
    folder: Folder, make_identity: Callable[[], StoreIdentity] | None
) -> tuple[Catalog, StoreIdentity, int]:
    """Under the lock, on the writer thread."""
    if make_identity is None:
        opening.require_store(folder.root)
    elif not opening.has_store(folder.root):
        opening.create_store(folder, make_identity())
    catalog = opening.open_catalog(folder)
    try:
        identity, generation = opening.read_identity(catalog)
        deletes.sweep(folder)
        deletes.replay(catalog)
    except BaseException:
        catalog.close()
        raise
    return catalog, identity, generation
