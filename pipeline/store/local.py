"""LocalStore: a store held by this process until closed, with its lock and the catalog's thread."""

from __future__ import annotations

import copy
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Concatenate, Final, ParamSpec, TypeVar

import pyarrow as pa

from pipeline.config import StoreSettings
from pipeline.errors import (
    MasterKeyWrong,
    ObjectUnknown,
    ReceiptInvalid,
    ReceiptPending,
    StoreDamaged,
    StoreError,
    StoreMissing,
)
from pipeline.store import cleanup, erasure, receipts, segments, traces
from pipeline.store.catalog import (
    accounts,
    changes,
    corrections,
    directories,
    erasures,
    files,
    forgotten,
    media,
    opening,
    people,
    persons,
    references,
    rewriting,
    runs,
)
from pipeline.store.catalog.connection import Catalog, cleaning_up, each_generation
from pipeline.store.catalog.directories import directory_id
from pipeline.store.checks.check import check_store, repair_store
from pipeline.store.commits import commit, compaction, lost, reindex, shard
from pipeline.store.export import export_store, in_pages, read_table
from pipeline.store.files.durable import Folder
from pipeline.store.files.encryption import MasterKey
from pipeline.store.files.lock import LOCK_NAME, StoreLock
from pipeline.store.files.objects import Row, open_image, read_object
from pipeline.store.files.run_files import RunFiles
from pipeline.store.files.segment_header import MAX_ROWS, SegmentUnreadable, SegmentUnusable
from pipeline.store.files.shard_folder import remove_builds
from pipeline.store.records import (
    DELETE_DIRECTORY,
    USER,
    Change,
    CheckReport,
    Committed,
    Deleted,
    ErasureState,
    Generation,
    Picture,
    Problem,
    References,
    ShardCommit,
    StoreIdentity,
)
from pipeline.store.schema import TABLES
from pipeline.types import Progress

P = ParamSpec("P")
T = TypeVar("T")
_KNOWN_AT_ONCE: Final = 2**17  # known files: 30 MB
_log = logging.getLogger(__name__)


def _on_catalog(function: Callable[Concatenate[Catalog, P], T]) -> Callable[Concatenate[LocalStore, P], T]:
    """Turns a function on the catalog into a store's method, run on the catalog's thread."""

    @wraps(function)
    def method(store: LocalStore, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return store.ask(function, *args, **kwargs)

    return method


class LocalStore(RunFiles):
    """An open, locked store. Thread-safe: catalog work is queued for the catalog's thread, so a Ctrl-C in the caller
    never interrupts a transaction. For concurrent run files see `RunFiles`.

    In an encrypted store, only images require `unlock`.
    """

    def __init__(
        self,
        root: Path,
        make_identity: Callable[[], StoreIdentity] | None,
        command: str,
        *,
        repair: bool = False,
        reading: bool = False,
        erase_within_h: float = StoreSettings.erase_within,
    ) -> None:
        """Use `open` or `open_or_create`. `lost` describes the loss that a repair accepted."""
        super().__init__(Folder(root))
        self.path = root
        self.master_key: MasterKey | None = None
        self._image_keys: dict[int, bytes | None] = {}
        # Held while embedding shards or index segments are written but not yet committed, except those of runs.
        self.embeddings_lock = threading.RLock()
        self._lock = StoreLock.acquire(root, command, reading=reading)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="store-writer")
        self._closed = threading.Event()
        self._erase_within_h = erase_within_h
        self._rewriting = threading.Lock()
        try:
            opened = self._thread.submit(_open, self.folder, make_identity, repair, self._lock.read_only)
            self._catalog, self.lost = opened.result()
        except BaseException:
            self._thread.shutdown()
            self._lock.release()
            raise
        self._at: int | None = None  # see `at`
        self._ids_lock = threading.Lock()
        self._group = commit.GroupCommit(self.begin)
        try:
            erasure.finish(self, read_only=self._catalog.read_only, within_h=erase_within_h)
            # The next free ids, reserved in memory only: after a crash nothing refers to them.
            next_ids = "SELECT next_media_id, next_face_id FROM core.store"
            self._next_ids = [*map(int, self.submit(Catalog.rows, next_ids)[0])]
        except BaseException:
            self.close()
            raise

    @classmethod
    def open(
        cls,
        path: Path | str,
        *,
        command: str,
        repair: bool = False,
        reading: bool = False,
        erase_within_h: float = StoreSettings.erase_within,
    ) -> LocalStore:
        """Opens the store at `path`; `command` names the holder in other openers' errors. `repair` also opens one that
        lost its last transactions, without them. `reading` also works on a read-only file system. After
        `erase_within_h` hours `fold` erases removed data from the catalog's file, too.

        Raises StoreMissing, StoreLocked, StoreDamaged, StoreTooNew.
        """
        root = Path(path).absolute()
        if not root.is_dir():
            raise StoreMissing(path=root)
        if not (root / LOCK_NAME).exists():
            opening.require_store(Folder(root))  # before leaving a lock file in a foreign folder
        return cls(root, None, command, repair=repair, reading=reading, erase_within_h=erase_within_h)

    @classmethod
    def open_or_create(
        cls,
        path: Path | str,
        make_identity: Callable[[], StoreIdentity],
        *,
        command: str,
        erase_within_h: float = StoreSettings.erase_within,
    ) -> LocalStore:
        """Opens the store at `path`, or creates one with `make_identity()`, which is only called then.

        Raises as `open` except StoreMissing; StoreUnwritable if no store can be created there.
        """
        root = Path(path).absolute()
        opening.require_place(root)
        Folder(root.parent).make(root.name)
        return cls(root, make_identity, command, erase_within_h=erase_within_h)

    def close(self) -> None:
        """Closes the catalog and frees the lock. Idempotent."""
        if self._closed.is_set():
            return
        self._closed.set()
        self.forget_manifest()
        try:
            self._thread.submit(_close_catalog, self._catalog).result()
        finally:
            self._thread.shutdown()
            self._lock.release()

    def __enter__(self) -> LocalStore:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    @property
    def identity(self) -> StoreIdentity:
        """The current generation's."""
        return self.generations[self.generation].identity

    @property
    def generation(self) -> int:
        """The current one's number."""
        return next(iter(self._catalog.generations)) if self._at is None else self._at

    @property
    def generations(self) -> Mapping[int, Generation]:
        """By number: the current one, at most one other."""
        return self._catalog.generations

    def announce(self, url: str | None) -> None:
        """Writes to the lock the address where this process executes other commands' work; None: nowhere."""
        self._lock.announce(url)

    # The catalog's thread

    def submit(self, work: Callable[Concatenate[Catalog, P], T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs `work` on the catalog's thread and returns its result."""
        return self.begin(lambda catalog: work(catalog, *args, **kwargs)).result()

    ask = submit  # a query

    def begin(self, work: Callable[[Catalog], T]) -> Future[T]:
        """`submit` without waiting. Raises StoreError after `close`."""
        if self._closed.is_set():
            raise StoreError(message=f"The store {self.path} is closed.")
        answer = Future[T]()
        self._thread.submit(self._work, work, answer)
        return answer

    def read(self, sql: str, params: Sequence[object] = ()) -> pa.Table:
        """The rows of an SQL query. For this package and its tests."""
        return self.submit(Catalog.read, sql, params)

    def _work(self, work: Callable[[Catalog], T], answer: Future[T]) -> None:
        """On the catalog's thread. The checkpoint is queued, so that waiting work runs before it."""
        try:
            with self._catalog.at(self._at):
                answer.set_result(work(self._catalog))
        except BaseException as exc:  # noqa: BLE001  raised in the thread that waits
            answer.set_exception(exc)
        with suppress(RuntimeError):  # closed meanwhile
            self._thread.submit(self._keep_log_short)

    def _keep_log_short(self) -> None:
        if not self._closed.is_set():  # closing makes the checkpoint
            self._catalog.keep_log_short()

    # Accounts and directories

    account_id = _on_catalog(accounts.account_id)
    create_account = _on_catalog(accounts.create_account)
    credentials = _on_catalog(accounts.credentials)
    set_password = _on_catalog(accounts.set_password)
    accounts = _on_catalog(accounts.user_ids)  # this and the next shadow their modules
    directories = _on_catalog(directories.directories)

    # Runs

    abandon_run = _on_catalog(runs.abandon_run)
    begin_run = _on_catalog(runs.begin_run)
    committed_shards = _on_catalog(runs.committed_shards)
    digests_of_labels = _on_catalog(files.digests_of_labels)
    finish_run = _on_catalog(runs.finish_run)
    forgotten_photos = _on_catalog(forgotten.forgotten_photos)
    labelled_photos = _on_catalog(files.labelled_photos)
    media_of_hashes = _on_catalog(media.media_of_hashes)
    note_labels = _on_catalog(files.note_labels)
    note_scan = _on_catalog(files.note_scan)
    plan_run = _on_catalog(runs.plan_run)
    run_row = _on_catalog(runs.run_row)
    runs_of = _on_catalog(runs.runs_of)
    sources = _on_catalog(files.sources)
    unfinished_run = _on_catalog(runs.unfinished_run)

    def key_of_run(self, run_id: str) -> bytes | None:
        return self.image_key(self.run_row(run_id).account_id) if self.identity.encrypted else None

    def known_files(self, source: str, account_id: int) -> pa.RecordBatchReader:
        """`files.known_files` page by page, with other work in between."""
        return in_pages(
            lambda after: self.ask(files.known_files, source, account_id, after, _KNOWN_AT_ONCE), "media_id"
        )

    # Photos and their faces

    face_vectors = _on_catalog(references.face_vectors)
    picture_of_face = _on_catalog(references.picture_of_face)
    faces_of_media = _on_catalog(media.faces_of_media)
    forgotten_faces = _on_catalog(forgotten.forgotten_faces)
    image_was_replaced = _on_catalog(persons.was_replaced)
    media_of_rows = _on_catalog(media.media_of_rows)
    pending_embeddings = _on_catalog(compaction.count_pending)

    # People and corrections

    best_faces = _on_catalog(people.best_faces)
    faces_by_id = _on_catalog(people.faces_by_id)
    corrected_since = _on_catalog(corrections.corrected_since)
    changes = _on_catalog(changes.changes)
    correction_to_undo = _on_catalog(corrections.correction_to_undo)
    counts_of = _on_catalog(people.counts_of)
    faces_page = _on_catalog(people.faces_page)
    unassigned_faces = _on_catalog(people.unassigned_faces)
    faces_to_regroup = _on_catalog(corrections.faces_to_regroup)
    facts_about = _on_catalog(corrections.facts_about)
    last_merges = _on_catalog(corrections.last_merges)
    copies_of_photos = _on_catalog(corrections.copies_of_photos)
    photos_of_runs = _on_catalog(corrections.photos_of_runs)
    pinned_faces = _on_catalog(corrections.pinned_faces)
    reference_faces = _on_catalog(corrections.reference_faces)
    stored_faces = _on_catalog(corrections.stored_faces)
    twice_allowed = _on_catalog(corrections.twice_allowed)
    twice_on_photos = _on_catalog(people.twice_on_photos)
    whole_images = _on_catalog(media.whole_images)
    people = _on_catalog(people.people)  # shadows its module

    def references(self, account_id: int, directory: str) -> References:
        """A directory's current references; rewrites damaged segments. Raises StoreDamaged, StoreFull,
        StoreUnwritable."""
        read = references.references
        try:
            return self.submit(read, account_id, directory)
        except SegmentUnreadable:
            return self.submit(read, account_id, directory, mapped=False)
        except SegmentUnusable as exc:
            if self._catalog.read_only:
                return self.submit(read, account_id, directory, mapped=False)
            _log.warning("the index segments of %s are made again from the embeddings: %s", directory, exc)
        with self.embeddings_lock:
            here = self.submit(directory_id, account_id, directory)
            if here is not None:
                self.submit(segments.forget, here)
                self.unlink_needless()
        self.fold_tails()
        return self.submit(read, account_id, directory)

    def fold_tails(self, least: int = 0) -> None:
        """Writes tails of at least `least` references into segments. Errors are only logged: references work without
        segments, and it is tried again."""
        if self._catalog.read_only:
            return
        try:
            with self.embeddings_lock:
                for part in each_generation(self):
                    deque(segments.fold(part, least), 0)
        except StoreError as exc:
            _log.warning("an index segment could not be written: %s", exc)

    # The whole store

    def migrate(self, progress: Progress | None = None) -> list[int]:
        """Writes all tails into index segments, as a directory's first use does (in a store of an earlier version: all
        references). Returns each segment's size."""
        with self.embeddings_lock:
            for part in each_generation(self):
                if progress is not None:
                    progress.start("index", part.submit(segments.waiting))
                for count in segments.fold(part):
                    if progress is not None:
                        progress.advance(count)
            return self.submit(Catalog.column, 'SELECT "rows" FROM core.segments ORDER BY first_seq')

    # Two generations

    def other_identity(self) -> StoreIdentity | None:
        """That of the generation that is not current, if any."""
        return next((each.identity for each in self.generations.values() if each.number != self.generation), None)

    @property
    def newer_weights(self) -> str | None:
        """The weights' name of a complete generation newer than the current one, if any."""
        newest = max(self.generations.values(), key=lambda each: each.number)
        return newest.identity.weights if newest.complete and newest.number > self.generation else None

    def begin_generation(self, identity: StoreIdentity) -> int:
        """Begins another generation; returns its number. Raises ReindexUnderWay."""
        with self.embeddings_lock:
            return self.submit(reindex.begin, identity)

    count_unmeasured = _on_catalog(reindex.count_left)
    unmeasured_faces = _on_catalog(reindex.left)
    generation_summary = _on_catalog(reindex.summary)

    def commit_measured(self, faces: pa.Table, counts: Mapping[str, float]) -> None:
        """See `reindex.commit_measured`."""
        with self.embeddings_lock:
            reindex.commit_measured(self, faces, counts)

    def complete_generation(self) -> bool:
        """Adds the other generation's references and index. False, with no effect, if it lacks faces. Raises
        ReindexMissing."""
        done = self.submit(reindex.complete)
        if done:
            self.fold_tails()
        return done

    switch_generation = _on_catalog(reindex.switch)

    def at(self, generation: int) -> LocalStore:
        """This store as if this generation were current. Committing a change switches to it in the same transaction."""
        store = copy.copy(self)
        store._at = generation
        return store

    def after_switch(self) -> LocalStore:
        """This store at its newer generation, to compute a change with it. Raises ReindexMissing."""
        return self.at(self.submit(reindex.newer))

    @property
    def is_after_switch(self) -> bool:
        """Whether `at` returned it."""
        return self._at is not None

    def drop_generation(self, *, older: bool = False) -> None:
        """Deletes the newer generation and its files, with `older` the formerly current one. Raises ReindexMissing."""
        with self.embeddings_lock:
            self.submit(reindex.drop, older=older)
        remove_builds(self.folder.path("runs"))
        self.unlink_needless()

    read_table = read_table
    export = export_store

    def delete_directory(self, account_id: int, name: str, *, no_trace: bool = False) -> Deleted:
        """Deletes a directory's persons and photos of runs. Later runs may import these into another directory; into
        this one only with `no_trace`, or if they were changed and moved. The caller holds the directory's lock, if any.
        Raises DirectoryUnknown."""
        people, photos = self.submit(directories.contents, account_id, name)
        kept = frozenset() if no_trace else forgotten.PHOTOS
        self.commit(Change(account_id, name, DELETE_DIRECTORY, USER, deleted=people, leaving=photos, remembered=kept))
        self.unlink_needless()
        return Deleted(len(people), len(photos))

    def delete_account(self, account_id: int) -> bool:
        """See `accounts.delete_account`."""
        deleted = self.submit(accounts.delete_account, account_id)
        self._image_keys.pop(account_id, None)
        self.unlink_needless()
        return deleted

    def check(self, *, repair: bool = False, progress: Callable[[str], None] | None = None) -> CheckReport:
        unfinished = self.submit(erasure.left_to_erase)
        if self.is_erase_due():
            unfinished.append(self._catalog.file.name)
        if unfinished and not self._catalog.read_only:
            with suppress(StoreError):  # leftovers are reported
                self.erase()
                unfinished = []
        report = check_store(self, progress, unfinished)
        repaired = repair_store(self, report) if repair else []
        last = check_store(self, progress, unfinished) if repaired else report
        return replace(last, repaired=[*self.lost, *repaired])

    def fold(self, min_pending: int = 1) -> int:
        """Erases what commits removed; moves pending embeddings into shards if at least `min_pending` wait, and
        references into segments. Returns the number of embeddings moved.

        For idle times, and before the store is closed for long; other commits may run in between.
        """
        with self.embeddings_lock:
            erasure.erase(self)
            moved = 0
            for part in each_generation(self):
                moved += compaction.compact(part, min_pending)
                deque(segments.fold(part, min_pending), 0)
            self.submit(persons.forget_replaced)
        if self.is_erase_due():
            self.erase_catalog()
        return moved

    def erase(self, *, now: bool = False) -> None:
        """Erases removed data: from the catalog's file only if that is due, or `now`; if that fails, the next opening
        tries again. Other work may go on meanwhile. Raises as `fold`."""
        if now:
            self.submit(rewriting.make_due)
        with self.embeddings_lock:
            erasure.erase(self)
        if self.is_erase_due():
            self.erase_catalog()

    def find_text(self, text: str) -> list[tuple[str, int]]:
        """`traces.in_table` of each table, with other work in between."""
        return [found for table in TABLES for found in self.submit(traces.in_table, table, text)]

    def is_erase_due(self) -> bool:
        return self.submit(rewriting.is_due, self._erase_within_h)

    def erase_state(self) -> ErasureState:
        since = self.submit(rewriting.waits_since)
        due = None if since is None else rewriting.due_at(since, self._erase_within_h)
        return ErasureState(since, due, receipts.public_key(self.submit(erasures.seed)))

    def sign_receipt(self, pending: str | None) -> str:
        """Completes and signs the receipt of an erasure; None: signs one of all, in times and numbers. Raises
        ReceiptInvalid if the store does not know it, ReceiptPending while something is left to erase."""
        if pending is None:
            self._require_none_left()
            return receipts.signed_log(self.submit(erasures.seed), self.submit(erasures.recorded))
        if receipts.read(pending).public_key != self.erase_state().public_key:
            raise ReceiptInvalid(detail="it is of another store")
        made = self.submit(erasures.with_receipt, receipts.sha256(pending))
        if not made:
            raise ReceiptInvalid(detail="it was changed after it was written, or nothing was forgotten with it")
        if not all(each.erased_at for each in made):
            due = self.erase_state().due
            if due is None:
                raise ReceiptPending(detail="a run that is in progress may show what was deleted")
            raise ReceiptPending(detail=f"to be erased by {due:%F %T} UTC, or by facepipe erase --now")
        self._require_none_left()
        return receipts.signed(pending, self.submit(erasures.seed), made)

    def _require_none_left(self) -> None:
        if self.submit(erasure.left_to_erase):
            raise ReceiptPending(detail="other deletions are being erased; facepipe erase --now does it at once")

    def erase_catalog(self) -> None:
        """Erases removed data from the catalog's file."""
        with self._rewriting:
            erasure.erase_catalog(self)

    # Images

    @property
    def locked(self) -> bool:
        """Whether images are unavailable until `unlock`."""
        return self.identity.encrypted and self.master_key is None

    def unlock(self, master_key: MasterKey) -> None:
        """Accepts the key of an encrypted store; no effect if the store is not encrypted.

        Raises MasterKeyWrong.
        """
        if not self.identity.encrypted:
            return
        if master_key.key_id != self.identity.master_key_id:
            detail = f" (its id is {master_key.key_id}, the store's {self.identity.master_key_id})"
            raise MasterKeyWrong(source=master_key.source, path=self.folder.root, detail=detail)
        self.master_key = self._catalog.master_key = master_key

    def image_key(self, account_id: int) -> bytes | None:
        """The 32-byte AES key of an account's images; None if the store is not encrypted.

        Raises MasterKeyMissing; StoreDamaged if the key cannot be unwrapped.
        """
        if not self.identity.encrypted:
            return None
        if account_id not in self._image_keys:
            self._image_keys[account_id] = self.submit(accounts.image_key, account_id)
        return self._image_keys[account_id]

    def read_image(self, account_id: int, guid: str, *, at_rest: bool = False) -> tuple[bytes, str]:
        """An image of the account, decrypted unless `at_rest`, and its media type ("application/octet-stream" if
        encrypted).

        Raises ObjectUnknown, StoreDamaged, MasterKeyMissing.
        """
        key = None if at_rest else self.image_key(account_id)
        sha256, media_type = self.submit(_object_row, guid)
        try:
            data = read_object(self.folder, guid)
        except StoreDamaged:
            self.submit(_object_row, guid)  # ObjectUnknown: deleted since
            raise
        if at_rest and self.identity.encrypted:
            media_type = "application/octet-stream"
        return open_image(self.folder, guid, data, sha256, key), media_type

    # Committing

    def reserve_ids(self, media: int, faces: int) -> tuple[int, int]:
        """Reserves ids; returns the first media id and the first face id. A shard's Parquet file contains its face ids
        before its transaction, while other commits run."""
        with self._ids_lock:
            media_id, face_id = self._next_ids
            self._next_ids[:] = media_id + media, face_id + faces
        return media_id, face_id

    def prepare_shard(self, shard_commit: ShardCommit) -> shard.PreparedShard:
        """Checks a shard and writes its files, for `commit_prepared`; other commits may run in between.

        Raises StoreError if the shard is already committed, ids are used, or columns do not fit.
        """
        tables = shard.conform(shard_commit, self.identity.embedding_size)
        self.submit(shard.check_new, shard_commit, tables)
        key = self.image_key(shard_commit.account_id)
        return shard.write_files(self, shard_commit, tables, key)

    commit_prepared = _on_catalog(shard.commit_rows)

    def finish_shard(self) -> None:
        """Clean-up after a committed shard: deletes files, and writes references that fill a segment. Runs in pieces
        between requests; nobody needs to wait. After a crash the next opening and loading do the rest."""
        self.unlink_needless()
        self.fold_tails(MAX_ROWS)

    @contextmanager
    def images_ahead(self, account_id: int, images: Sequence[Picture]) -> Iterator[dict[str, Row]]:
        """Within the block these pictures are on disk, for `commit`: writing them takes longer than the transaction,
        and should not hold a lock. Discards those that no commit uses."""
        key = self.image_key(account_id)
        with cleanup.discarding_images(self, [guid for guid, _, _ in images]):
            ahead = commit.write_pictures(self.folder, images, key)
        try:
            yield ahead
        finally:
            if ahead:
                cleanup.discard_images(self, list(ahead))

    def commit(self, change: Change, ahead: dict[str, Row] | None = None) -> Committed:
        """Commits a change of a directory durably and atomically; call `unlink_needless` afterwards. `ahead`, from
        `images_ahead`, loses the pictures used.

        Concurrent calls may share a transaction; each succeeds or fails alone. Raises StoreError for contradictions,
        DirectoryUnknown, TooManyDirectories.
        """
        ahead = {} if ahead is None else ahead
        guids = [guid for guid, _, _ in change.pictures.values()]
        with cleanup.discarding_images(self, guids):
            unwritten = [picture for picture in change.pictures.values() if picture[0] not in ahead]
            if unwritten:
                ahead |= commit.write_pictures(self.folder, unwritten, self.image_key(change.account_id))
            rows = [ahead.pop(guid) for guid in guids]
            if self.is_after_switch:
                return self.submit(commit.commit_switching, change, rows)
            return self._group.commit(change, rows)

    def unlink_needless(self) -> None:
        """Deletes files that commits made unneeded (thousands after undoing a regroup). Errors are only logged."""
        cleanup.unlink_after_commit(self)

    def require_unlinked(self) -> None:
        """`unlink_needless` that raises CleanUpLeft."""
        with cleaning_up(self.path):
            cleanup.unlink_pending(self)


def _object_row(catalog: Catalog, guid: str) -> tuple[str, str]:
    """SHA-256 at rest, media type. Raises ObjectUnknown."""
    rows = catalog.rows("SELECT sha256, media_type FROM core.objects WHERE image_guid = ?", [guid])
    if not rows:
        raise ObjectUnknown
    return str(rows[0][0]), str(rows[0][1])


def _close_catalog(catalog: Catalog) -> None:
    try:
        cleanup.quarantine_images(catalog)
    finally:
        catalog.close()


def _open(
    folder: Folder, make_identity: Callable[[], StoreIdentity] | None, repair: bool, read_only: bool
) -> tuple[Catalog, list[Problem]]:
    """Requires the lock; on the catalog's thread."""
    if make_identity is None:
        opening.require_store(folder)
    elif not opening.has_store(folder.root):
        opening.create_store(folder, make_identity())
    loss = lost.look_for_loss(folder) if repair and not read_only else None
    catalog = opening.open_catalog(folder, lossy=loss is not None, read_only=read_only)
    try:
        problems = [] if loss is None else loss.accept(catalog)
        cleanup.sweep(catalog)
    except BaseException:
        catalog.close()
        raise
    return catalog, problems
