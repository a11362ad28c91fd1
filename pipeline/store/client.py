"""StoreClient: the one door to a store.

It holds the store's lock for as long as it lives. One thread owns the catalog; what the methods ask of it waits
in its queue, so the methods may be called from any thread, and a Ctrl-C in the caller never cuts a transaction.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import pyarrow as pa

from pipeline.errors import StoreError, StoreMissing
from pipeline.store.catalog import accounts, deletes, directories, intents, known, opening, references, runs
from pipeline.store.catalog.connection import Catalog
from pipeline.store.catalog.ids import PromisedIds
from pipeline.store.commits import fold, growing
from pipeline.store.commits import request as people
from pipeline.store.commits import shard as commit
from pipeline.store.commits.group_commit import GroupCommit
from pipeline.store.files.durable import Folder
from pipeline.store.files.lock import LOCK_NAME, StoreLock
from pipeline.store.files.run_files import RunFiles
from pipeline.store.images import StoredImages
from pipeline.store.records import (
    Counters,
    Credentials,
    DirectoryCommit,
    DirectoryRow,
    PersonRecord,
    References,
    RunRow,
    ShardCommit,
    StoreIdentity,
)

T = TypeVar("T")


class StoreClient(RunFiles, StoredImages):
    """An open, locked store. Every method raises StoreDamaged, StoreFull or StoreUnwritable where it meets them."""

    def __init__(
        self, lock: StoreLock, catalog: Catalog, writer: ThreadPoolExecutor, identity: StoreIdentity, generation: int
    ) -> None:
        """Use `open` or `open_or_create`."""
        RunFiles.__init__(self, catalog.folder)
        StoredImages.__init__(self)
        self._lock = lock
        self._catalog = catalog
        self._writer = writer
        self._committing = threading.Lock()
        self._ids = PromisedIds()
        self._group = GroupCommit()
        self._closed = False
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

    def announce(self, url: str | None) -> None:
        """Tells whoever finds the store locked where to work through this process; None: nowhere any more."""
        self._lock.announce(url)

    def close(self) -> None:
        """Closes the catalog and frees the lock; a second call does nothing."""
        if self._closed:
            return
        self._closed = True
        self._forget_manifest()
        try:
            self._writer.submit(_close_catalog, self._catalog).result()
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
        return self._begin(work).result()

    def _begin(self, work: Callable[[Catalog], T]) -> Future[T]:
        if self._closed:
            raise StoreError(message=f"The store {self.path} is closed.")
        return self._writer.submit(_work, work, self._catalog)

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
        """The new account's id; without a hash no password opens it.

        Raises AccountExists, UsageError, and MasterKeyMissing while an encrypted store is locked.
        """
        key = self.require_master_key()
        return self.submit(lambda catalog: accounts.create_account(catalog, user_id, password_hash, key))

    def set_password(self, user_id: str, password_hash: str) -> None:
        """The old password stops at once. Raises AccountUnknown."""
        self.submit(lambda catalog: accounts.set_password(catalog, user_id, password_hash))

    def credentials(self, user_id: str) -> Credentials | None:
        """What opens an account; None: there is none of that name."""
        return self.submit(lambda catalog: accounts.credentials(catalog, user_id))

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
        self._forget_manifest()
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
            found = directories.directory_id(catalog, account_id, directory)
            return references.references(catalog, self.generation, size, found)

        return self.submit(work)

    def directories_with_identities(self, account_id: int) -> set[str]:
        return self.submit(lambda catalog: known.directories_with_identities(catalog, account_id))

    def directories(self) -> list[DirectoryRow]:
        """All directories of all accounts: each holds an identity."""
        return self.submit(directories.directories)

    def counters(self) -> Counters:
        return self.submit(known.counters)

    def run_key(self, run_id: str) -> bytes | None:
        return self.image_key(self.run_row(run_id).account_id) if self.identity.encrypted else None

    # Committing

    def promise_ids(self, media: int, faces: int) -> Counters:
        """The first of so many media and face ids for a shard that is being prepared: nobody else gets them."""
        return self.submit(lambda catalog: self._ids.promise(catalog, media, faces))

    def prepare_shard(self, shard: ShardCommit) -> commit.PreparedShard:
        """Checks a shard and writes its files, for `commit_prepared`; other commits may come between the two.

        Raises StoreError for a shard that is in already, ids that are taken, and columns that don't fit.
        """
        tables = commit.conform(shard, self.identity.embedding_size)
        self.submit(lambda catalog: commit.check_new(catalog, shard, tables, self._ids))
        key = self.image_key(shard.account_id)
        return commit.write_files(self.folder, self.identity, self.generation, shard, tables, key)

    def commit_prepared(self, prepared: commit.PreparedShard) -> commit.CommittedShard:
        """Commits a prepared shard as a whole, durably; raises StoreError, and nothing is in, otherwise.

        TooManyDirectories is raised when the account would hold identities in more than MAX_DIRECTORIES. The
        persons get the next sequence numbers, in the order of those they were given.
        """

        return self.submit(lambda c: commit.commit_rows(c, commit.with_seqs(c, prepared), self._ids))

    def settle_shard(self, prepared: commit.PreparedShard) -> None:
        """What follows from a committed shard, and nobody need wait for: files go, reference matrices grow. In
        pieces, so that requests come in between. What a crash leaves of it, the next opening and loading do."""
        self.submit(deletes.replay)
        growing.grow_matrices(self.submit, prepared, self.identity.embedding_size)

    def commit_shard(self, shard: ShardCommit) -> commit.CommittedShard:
        """`prepare_shard`, `commit_prepared` and `settle_shard` in one."""
        with self._committing:
            prepared = self.prepare_shard(shard)
            committed = self.commit_prepared(prepared)
            self.settle_shard(prepared)
            return committed

    @contextmanager
    def images_ahead(
        self, account_id: int, images: Sequence[tuple[str, bytes, str]]
    ) -> Iterator[dict[str, Mapping[str, object]]]:
        """For the block these images (guid, bytes, media type) are whole on disk, for `commit_directory`: writing them
        takes longer than the transaction, and should not be done under a lock. What no commit takes is removed."""
        key = self.image_key(account_id)
        try:
            ahead = people.write_images(self.folder, images, key)
        except BaseException:
            self._discard([guid for guid, _, _ in images])
            raise
        try:
            yield ahead
        finally:
            if ahead:
                self._discard(list(ahead))

    def commit_directory(
        self, change: DirectoryCommit, ahead: dict[str, Mapping[str, object]] | None = None
    ) -> list[PersonRecord]:
        """Commits what a request changes in a directory, durably; the inserted and updated persons as they then are.
        `ahead`: of `images_ahead`; it loses those that the commit takes. Calls of several threads share a
        transaction where they can; each succeeds or fails by itself.

        Raises StoreError where something does not fit, TooManyDirectories; then nothing is stored.
        """
        people.check_commit(change, self.identity.embedding_size)
        images = people.images_of(change)
        try:
            taken = {guid: ahead.pop(guid) for guid, _, _ in images if ahead and guid in ahead}
            left = [image for image in images if image[0] not in taken]
            rows = {**taken, **people.write_images(self.folder, left, self.image_key(change.account_id))}
            whole = people.Change(change, [rows[guid] for guid, _, _ in images])
            return self._group.commit(
                whole, lambda: self._begin(lambda c: self._group.commit_next(c, self.generation, self._ids))
            )
        except BaseException:
            self._discard([guid for guid, _, _ in images])
            raise

    def _discard(self, guids: Sequence[str]) -> None:
        with suppress(StoreError):  # what stays is removed at closing, or at the next opening
            self.submit(lambda catalog: people.discard_images(catalog, guids))

    def delete_directory(self, account_id: int, name: str) -> int:
        """Deletes all persons of a directory at once; returns how many. Raises DirectoryUnknown."""
        return self.submit(lambda catalog: people.delete_directory(catalog, self.generation, account_id, name))

    def fold(self, min_pending: int = 1) -> int:
        """Moves embeddings of posted faces from the catalog into shards, where at least `min_pending` wait, and
        takes vectors of removed faces out of shards and reference matrices; returns how many embeddings moved.

        For a moment without much to do, and before the store is closed for long. Other commits may come in between.
        """
        with self._committing:
            return fold.fold(self.submit, self.folder, self.identity, self.generation, min_pending)

    @contextmanager
    def without_folding(self) -> Iterator[None]:
        """For the block no file of embeddings is on its way into the catalog but those of unfinished runs."""
        with self._committing:
            yield

    def pending_embeddings(self) -> int:
        """How many embeddings wait for `fold`."""
        return int(self.read("SELECT count(*) AS n FROM core.pending_embeddings")["n"][0].as_py())


def _work(work: Callable[[Catalog], T], catalog: Catalog) -> T:
    """On the writer thread."""
    try:
        return work(catalog)
    finally:
        catalog.keep_log_short()


def _close_catalog(catalog: Catalog) -> None:
    try:
        intents.undo(catalog)
    finally:
        catalog.close()


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
        intents.undo(catalog)
        fold.sweep(catalog)
    except BaseException:
        catalog.close()
        raise
    return catalog, identity, generation
