"""StoreClient: a store that this process holds, for as long as the client lives."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import ParamSpec, TypeVar

from pipeline.errors import StoreError, StoreMissing
from pipeline.store.catalog import accounts, deletes, known, opening, references
from pipeline.store.catalog.ids import PromisedIds
from pipeline.store.checks.check import check_store, repair_store
from pipeline.store.checks.problems import Checked
from pipeline.store.commits import fold, growing, request
from pipeline.store.commits import shard as commit
from pipeline.store.commits.group_commit import GroupCommit
from pipeline.store.export import export_store
from pipeline.store.files.durable import Folder
from pipeline.store.files.lock import LOCK_NAME
from pipeline.store.images import StoredImages
from pipeline.store.operations import CommitShard, Operation, Store
from pipeline.store.records import (
    Counters,
    DirectoryCommit,
    FaceAnswer,
    PersonRecord,
    RunRow,
    SearchQuery,
    ShardCommit,
    StoreIdentity,
)

P = ParamSpec("P")
T = TypeVar("T")


class StoreClient(StoredImages, Store):
    """An open, locked store; its methods may be called from any thread, but for those of RunFiles."""

    served = False

    def __init__(self, root: Path, make_identity: Callable[[], StoreIdentity] | None, command: str) -> None:
        """Use `open` or `open_or_create`."""
        StoredImages.__init__(self, root, make_identity, command)
        Store.__init__(self, self.folder)
        self._ids = PromisedIds()
        self._group = GroupCommit()

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
        return cls(root, None, command)

    @classmethod
    def open_or_create(
        cls, path: Path | str, make_identity: Callable[[], StoreIdentity], *, command: str
    ) -> StoreClient:
        """Opens the store at `path`, or makes one with what `make_identity` returns; that is called only then.

        Raises what `open` does but StoreMissing, and StoreUnwritable where no store can be.
        """
        root = Path(path).absolute()
        opening.require_place(root)
        Folder(root.parent).make(root.name)
        return cls(root, make_identity, command)

    def perform(self, operation: Operation[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        if operation.name == "finish_run":
            self.forget_manifest()  # its file goes
        return self.submit(lambda catalog: operation.function(catalog, *args, **kwargs))

    def close(self) -> None:
        """Closes the catalog and frees the lock; a second call does nothing."""
        self.forget_manifest()
        super().close()

    # What only the process that holds the store can ask

    credentials = Operation(accounts.credentials)
    counters = Operation(known.counters)
    faces_of_media = Operation(known.faces_of_media)
    images_of_media = Operation(known.images_of_media)
    media_of_rows = Operation(known.media_of_rows)
    media_with_removed_faces = Operation(known.media_with_removed_faces)
    references = Operation(references.references)
    pending_embeddings = Operation(fold.count_pending)

    # What the process that holds the store does itself, and others ask it for

    def shard_committer(self, run: RunRow, here: Callable[[StoreClient, RunRow], CommitShard]) -> CommitShard:
        return here(self, run)

    def search(
        self, query: SearchQuery, here: Callable[[StoreClient, SearchQuery], list[FaceAnswer]]
    ) -> list[FaceAnswer]:
        return here(self, query)

    def check(self, *, repair: bool = False, progress: Callable[[str], None] | None = None) -> Checked:
        report = check_store(self, progress)
        repaired = repair_store(self, report) if repair else []
        return Checked(check_store(self, progress) if repaired else report, repaired)

    def export(self, to: Path) -> dict[str, int]:
        return export_store(self, to)

    def fold(self, min_pending: int = 1) -> int:
        """Moves embeddings of posted faces from the catalog into shards, where at least `min_pending` wait, and
        takes vectors of removed faces out of shards and reference matrices; returns how many embeddings moved.

        For a moment without much to do, and before the store is closed for long. Other commits may come in between.
        """
        with self.without_folding():
            return fold.fold(self.submit, self.folder, self.identity, self.generation, min_pending)

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
        growing.grow_matrices(self.submit, prepared)

    def commit_shard(self, shard: ShardCommit) -> commit.CommittedShard:
        """`prepare_shard`, `commit_prepared` and `settle_shard` in one."""
        with self.without_folding():
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
            ahead = request.write_images(self.folder, images, key)
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
        request.check_commit(change, self.identity.embedding_size)
        images = request.images_of(change)
        try:
            taken = {guid: ahead.pop(guid) for guid, _, _ in images if ahead and guid in ahead}
            left = [image for image in images if image[0] not in taken]
            rows = {**taken, **request.write_images(self.folder, left, self.image_key(change.account_id))}
            whole = request.Change(change, [rows[guid] for guid, _, _ in images])
            return self._group.commit(whole, lambda: self.begin(lambda c: self._group.commit_next(c, self._ids)))
        except BaseException:
            self._discard([guid for guid, _, _ in images])
            raise

    def _discard(self, guids: Sequence[str]) -> None:
        with suppress(StoreError):  # what stays is removed at closing, or at the next opening
            self.submit(lambda catalog: request.discard_images(catalog, guids))
