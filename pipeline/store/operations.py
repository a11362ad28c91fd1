"""Store: what every command can do with a store, whether this process holds it or a server does.

An operation is a function on the catalog that is named once, in `Store`. A `LocalStore` runs it on the thread of its
catalog. A `RemoteStore` sends the call to the server's admin port, which allows the operations of `Store` and no
others, and decodes the answer by the function's types. What the two do differently is an abstract method.
"""

from __future__ import annotations

import inspect
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar, cast, get_type_hints, overload

import pyarrow as pa

from pipeline.errors import CleanUpLeft, StoreError, StoreUnwritable
from pipeline.store import export
from pipeline.store.catalog import (
    accounts,
    changes,
    corrections,
    directories,
    files,
    forgotten,
    media,
    overview,
    pages,
    people,
    runs,
)
from pipeline.store.catalog.connection import Catalog, cleaning_up
from pipeline.store.files.crypto import MasterKey
from pipeline.store.files.durable import Folder
from pipeline.store.files.run_files import RunFiles
from pipeline.store.records import (
    Checked,
    CorrectionAnswer,
    CorrectionRequest,
    FaceAnswer,
    RunRow,
    SearchQuery,
    StoreIdentity,
)

if TYPE_CHECKING:
    from pipeline.store.local import LocalStore

P = ParamSpec("P")
S = TypeVar("S", bound="Store")
T = TypeVar("T")
CommitShard = Callable[[int, pa.Table, pa.Table], None]  # a shard's number, its manifest rows, its extraction
Correct = Callable[["LocalStore", CorrectionRequest, pa.Table | None], CorrectionAnswer]


class Operation(Generic[P, T]):
    """A function on the catalog as a method of an open store."""

    def __init__(self, function: Callable[Concatenate[Catalog, P], T]) -> None:
        self.function = function
        self.__doc__ = function.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, store: None, owner: type) -> Operation[P, T]: ...
    @overload
    def __get__(self, store: Store, owner: type) -> Callable[P, T]: ...
    def __get__(self, store: Store | None, owner: type) -> Operation[P, T] | Callable[P, T]:
        return self if store is None else partial(store.perform, self)

    @cached_property
    def parameters(self) -> list[Any]:
        """The types of its parameters but the catalog."""
        return parameter_types(self.function)[1:]

    @cached_property
    def answer(self) -> Any:
        """The type of what it returns."""
        return get_type_hints(self.function)["return"]

    def arguments(self, *args: P.args, **kwargs: P.kwargs) -> list[object]:
        """All arguments of a call in the order of the parameters but the catalog, defaults included."""
        bound = inspect.signature(partial(self.function, cast("Catalog", None))).bind(*args, **kwargs)
        bound.apply_defaults()
        return list(bound.arguments.values())


def parameter_types(function: Callable[..., object]) -> list[Any]:
    """The types of a function's parameters, in their order."""
    types = get_type_hints(function)
    return [types[name] for name in inspect.signature(function).parameters]


@contextmanager
def part_of_command() -> Iterator[None]:
    """For commits after which a command has more to do: one of them does not make it done. Raises the disk's error in
    place of CleanUpLeft."""
    try:
        yield
    except CleanUpLeft as left:
        cause = left.__cause__  # a server sends none
        raise (cause if isinstance(cause, StoreError) else StoreUnwritable(**left.fields)) from left


class Store(RunFiles):
    """An open store. Every method raises StoreDamaged, StoreFull or StoreUnwritable where it meets them, and
    ServerUnreachable where a server holds the store and goes away."""

    path: Path
    identity: StoreIdentity
    generation: int
    served: bool  # a server holds it; it decides and stores the faces of runs
    master_key: MasterKey | None  # of an encrypted store that this process has unlocked

    def __init__(self, folder: Folder) -> None:
        super().__init__(folder)
        self._run_keys: dict[str, bytes | None] = {}

    # Accounts and directories
    account_id = Operation(accounts.account_id)
    account_summaries = Operation(accounts.summaries)
    account_key = Operation(accounts.image_key)
    create_account = Operation(accounts.create_account)
    set_password = Operation(accounts.set_password)
    accounts = Operation(accounts.user_ids)
    directories = Operation(directories.directories)

    # Runs
    begin_run = Operation(runs.begin_run)
    rebegin_run = Operation(runs.rebegin_run)
    plan_run = Operation(runs.plan_run)
    finish_run = Operation(runs.finish_run)
    abandon_run = Operation(runs.abandon_run)
    run_row = Operation(runs.run_row)
    unfinished_run = Operation(runs.unfinished_run)
    last_run = Operation(runs.last_run)
    committed_shards = Operation(runs.committed_shards)
    run_key = Operation(runs.run_key)
    run_counts = Operation(runs.run_counts)
    compared_identities = Operation(runs.compared_identities)
    sources = Operation(files.sources)
    known_files = Operation(files.known_files)
    note_scan = Operation(files.note_scan)
    digests_of_labels = Operation(files.digests_of_labels)
    media_of_hashes = Operation(media.media_of_hashes)
    forgotten_photos = Operation(forgotten.forgotten_photos)

    # Photos and their faces
    photo_records = Operation(media.photo_records)
    reference_photos = Operation(media.reference_photos)
    named_photos = Operation(media.named_photos)
    detected_faces = Operation(media.detected_faces)
    central_faces = Operation(media.central_faces)
    central_identities = Operation(media.central_identities)

    # People
    faces_of_people = Operation(people.faces_of_people)
    person_records = Operation(people.person_records)
    people = Operation(people.people)
    rejected_faces = Operation(corrections.rejected_faces)
    correction_history = Operation(corrections.history)
    changes = Operation(changes.changes)

    # What a page shows
    totals = Operation(overview.totals)
    last_runs = Operation(overview.last_runs)
    people_seen = Operation(overview.people_seen)
    faces_seen = Operation(overview.faces_seen)
    weakest_matches = Operation(overview.weakest_matches)
    compared_people = Operation(overview.compared_people)
    known_of_pairs = Operation(overview.known_of_pairs)
    names_of = Operation(overview.names_of)
    media_at = Operation(overview.media_at)
    rejection_samples = Operation(overview.rejection_samples)
    refused_files = Operation(overview.refused_files)
    face_histograms = Operation(overview.face_histograms)
    note_page = Operation(pages.note_page)
    page_is_noted = Operation(pages.is_noted)

    # The public tables
    view_table = Operation(export.view_table)
    embeddings_table = Operation(export.embeddings_table)

    def key_of_run(self, run_id: str) -> bytes | None:
        if self.identity.encrypted and run_id not in self._run_keys:
            self._run_keys[run_id] = self.run_key(run_id)
        return self._run_keys.get(run_id)

    def __enter__(self: S) -> S:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    @abstractmethod
    def perform(self, operation: Operation[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs an operation. Raises what its function does."""

    # What the process that holds the store does itself, and others ask it for

    @abstractmethod
    def close(self) -> None:
        """Ends the work on the store; a second call does nothing."""

    @property
    @abstractmethod
    def locked(self) -> bool:
        """Whether it is encrypted, and images need a key first."""

    @abstractmethod
    def unlock(self, master_key: MasterKey) -> None:
        """Takes the key of an encrypted store. Raises MasterKeyWrong."""

    @abstractmethod
    def fold(self) -> int:
        """Moves embeddings of posted faces into shards and takes those of removed faces out of the files; returns how
        many moved. A server does that by itself, when it has little to do."""

    def clean_up(self) -> None:
        """`fold` after the commit that a command is for. Raises CleanUpLeft."""
        with cleaning_up(self.path):
            self.fold()

    @abstractmethod
    def shard_committer(self, run: RunRow, here: Callable[[LocalStore, RunRow], CommitShard]) -> CommitShard:
        """What decides the faces of the run's shards and commits them: what `here` returns, or the server, which reads
        the shard's files itself."""

    @abstractmethod
    def search(
        self, query: SearchQuery, here: Callable[[LocalStore, SearchQuery], list[FaceAnswer]]
    ) -> list[FaceAnswer]:
        """The faces of an image and who they are: what `here` answers, or the server with its models.

        Raises ImageRejected.
        """

    @abstractmethod
    def correct(self, request: CorrectionRequest, here: Correct, decoded: pa.Table | None = None) -> CorrectionAnswer:
        """Puts right whose a face is, or what a person is called: by what `here` does, or the server, whose requests
        are answered accordingly from then on. `decoded`: of a regroup, DECODED_SCHEMA. Raises RequestError where it
        can't be done; then nothing was."""

    @abstractmethod
    def delete_directory(self, account_id: int, name: str) -> int:
        """Deletes every person of a directory with everything of theirs; returns how many. Raises DirectoryUnknown."""

    @abstractmethod
    def check(self, *, repair: bool = False, progress: Callable[[str], None] | None = None) -> Checked:
        """Reads the whole store; with `repair`, repairs what can be repaired without loss and reads it again.

        `progress` is called with what is being read, where this process reads it. Raises StoreUnwritable.
        """

    @abstractmethod
    def export(self, to: Path) -> dict[str, int]:
        """Writes the tables as Parquet files into the new or empty folder `to`; returns the rows of each.

        Raises UsageError, StoreFull and StoreUnwritable of the target.
        """


def operations() -> dict[str, Operation[..., Any]]:
    """The operations of `Store` by name: what the admin port allows."""
    return {name: value for name, value in vars(Store).items() if isinstance(value, Operation)}
