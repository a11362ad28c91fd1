"""The identities of a directory in memory, kept in step with the catalog.

A writer holds the directory's lock (`locks`) from validation until its commit is applied here: alone
(`Directories.writing`), or with posts that cannot affect it (`Directories.posting`). Searches and listings take no
lock: a `view()` never changes.
"""

from __future__ import annotations

import bisect
import itertools
import logging
import threading
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, NamedTuple

import numpy as np

from pipeline.config import MatchSettings
from pipeline.errors import InputError, RequestError, StoreError
from pipeline.matching.references import IndexView, ReferenceIndex
from pipeline.people.locks import DirectoryLock, PostLock
from pipeline.people.records import Records, StoredDirectory
from pipeline.runtime.device import HOST
from pipeline.store import Change, Committed, LocalStore, References, Remembered, Segment, segment_files

MAX_TAIL: Final = 2**16  # references in memory
_log = logging.getLogger(__name__)


class PersonIds:
    """The persons by index position: of segments, then of the tail."""

    def __init__(self, segments: Sequence[Segment], tail: Iterable[str]) -> None:
        self._segments = segments
        self._starts = list(itertools.accumulate(map(len, segments), initial=0))
        self._tail = list(tail)
        self._tail_positions = {person_id: position for position, person_id in enumerate(self._tail, self._starts[-1])}

    def __getitem__(self, position: int) -> str:
        if position >= self._starts[-1]:
            return self._tail[position - self._starts[-1]]
        part = bisect.bisect_right(self._starts, position) - 1
        row = position - self._starts[part]
        return str(uuid.UUID(bytes=self._segments[part].person_ids.checked(row, row + 1).tobytes()))

    def append(self, person_id: str) -> None:
        self._tail_positions[person_id] = self._starts[-1] + len(self._tail)
        self._tail.append(person_id)

    def position(self, person_id: str) -> int | None:
        """The position of the person's latest reference, which may be removed."""
        if person_id in self._tail_positions:
            return self._tail_positions[person_id]
        for segment, start in zip(reversed(self._segments), reversed(self._starts[:-1]), strict=True):
            if (row := segment.person_row(person_id)) is not None:
                return start + row
        return None

    def with_tail(self, kept: Sequence[int]) -> PersonIds:
        """A copy with the persons at these positions as its tail."""
        return PersonIds(self._segments, map(self.__getitem__, kept))


@dataclass(frozen=True)
class DirectoryView:
    """A snapshot of a directory's references."""

    index: IndexView
    person_ids: PersonIds  # by index position


class Changed(NamedTuple):
    """Version: the number of changes that a directory has applied."""

    all: int = 0
    corrections: int = 0  # including deletions
    of_faces: int = 0  # corrections of more than columns of persons, which decisions depend on


class Directory(Records):
    """The records and the reference index of one directory."""

    def __init__(self, stored: StoredDirectory, device: str = HOST, *, quantized: bool = False) -> None:
        """`quantized`: as for `ReferenceIndex`."""
        super().__init__(stored)
        self.account_id, self.name, self.device = stored.account_id, stored.name, device
        self.lock = DirectoryLock()
        self.loaded = False
        self.in_doubt = False  # possibly inconsistent after a failed change: needs a reload
        self.changed = Changed()
        self._new_index = partial(ReferenceIndex, device=device, quantized=quantized)
        self.remembered = Remembered()
        self.threshold: float | None = None  # T by `remembered` and the current generation
        self._size = stored.embedding_size
        self._reading = threading.Lock()  # held while the index is read
        self._maps = threading.Lock()  # held briefly; guards the fields below
        self._index = self._new_index(self._size)
        self._view: DirectoryView | None = None  # None: not read yet
        self._shown = 0  # the last commit in the index
        self._missed: list[tuple[Change, Committed]] | None = None  # changes applied while it is read
        self._files: Set[str] = frozenset()  # mapped segments
        self._person_ids = PersonIds([], [])

    def load(self) -> None:
        """Reloads from the store; the index only if it was read before. Until then, or if it fails, answers stay as
        before. The caller holds the lock alone."""
        merges, was_all_kept = self._stored.merges(), self._all_kept
        with self._reading:
            found = None if self._view is None else self._build(self._stored.references())
            self.take(merges)
            self._set_remembered(self._stored.remembered())
            with self._maps:
                if found is not None:
                    self._take_index(*found)
                self._count_change(corrected=True, of_faces=True)  # a failed change may be committed
        self.loaded, self.in_doubt = True, False
        if was_all_kept:
            self.keep_all()

    @property
    def memory_bytes(self) -> int:
        """Estimated size of vectors and records."""
        return self._index.memory_bytes + super().memory_bytes

    def view(self) -> DirectoryView:
        """A snapshot of the references; reads the index on first use."""
        if self._view is not None:
            return self._view
        with self._reading:
            return self._view or self._read_index()

    def reference_of(self, person_id: str) -> tuple[DirectoryView, int | None]:
        """A view, and the position of the person's reference: None if unknown or without one."""
        view = self.view()
        with self._maps:
            return self._view or view, self._position(person_id)

    def _position(self, person_id: str) -> int | None:
        position = self._person_ids.position(person_id)
        return position if position is not None and self._index.view().is_alive(position) else None

    def _read_index(self) -> DirectoryView:
        with self._maps:
            self._missed = []
        try:
            self._stored.fold()
            found = self._build(self._stored.references())
            with self._maps:
                return self._take_index(*found, self._missed)
        finally:
            self._missed = None

    def _build(self, found: References) -> tuple[ReferenceIndex, References]:
        index = self._new_index(self._size, frozen=found.segments)
        index.append(found.vectors, found.orders, found.image_hashes, found.boxes)
        return index, found

    def _take_index(
        self, index: ReferenceIndex, found: References, missed: Iterable[tuple[Change, Committed]] = ()
    ) -> DirectoryView:
        """Installs an index and applies the changes that it missed."""
        self._index, self._shown, self._files = index, found.number, {segment.file for segment in found.segments}
        self._person_ids = PersonIds(found.segments, found.person_ids)
        for change, committed in missed:
            self._change_index(change, committed)
        return self._show()

    def forget_index(self, embedding_size: int) -> None:
        """Drops the index; the next use reads the new generation's. The caller holds the lock alone."""
        with self._reading, self._maps:
            self._size, self._index, self._view = embedding_size, self._new_index(embedding_size), None
            self._set_remembered(self.remembered)
            self._person_ids, self._files = PersonIds([], []), frozenset()
            self._count_change(corrected=True, of_faces=True)

    def map_again(self) -> None:
        """Maps the current segments. The caller holds the lock alone."""
        with self._reading:
            found = self._build(self._stored.references())
            with self._maps:
                self._take_index(*found)

    @property
    def tail(self) -> int:
        """The number of references in memory."""
        return len(self._index) - self._index.tail_start

    def maps_others_than(self, files: Set[str]) -> bool:
        """Whether it maps a segment that is not in `files`."""
        return not self._files <= files

    def match(self, settings: MatchSettings, *, given: bool) -> MatchSettings:
        """`settings` with the directory's threshold, unless theirs was `given` by a flag."""
        return settings if given or self.threshold is None else replace(settings, threshold=self.threshold)

    def _set_remembered(self, values: Remembered) -> None:
        self.remembered, self.threshold = values, self._stored.threshold_of(values)

    def apply(self, change: Change, committed: Committed) -> None:
        """Applies a committed change. The caller holds the lock."""
        self.follow(change, committed)
        if change.after.remembered is not None:
            self._set_remembered(change.after.remembered)
        with self._maps:
            if self._view is not None:
                self._change_index(change, committed)
                self._show()
            elif self._missed is not None:
                self._missed.append((change, committed))
            self._count_change(corrected=change.is_logged, of_faces=change.is_logged and change.is_of_faces)

    def _show(self) -> DirectoryView:
        """Publishes a new view."""
        self._view = DirectoryView(self._index.view(), self._person_ids)
        return self._view

    def _count_change(self, *, corrected: bool, of_faces: bool) -> None:
        count = self.changed
        self.changed = Changed(count.all + 1, count.corrections + corrected, count.of_faces + of_faces)

    def _change_index(self, change: Change, committed: Committed) -> None:
        """Changes the index in one step, because each step copies the list of removed positions."""
        if committed.number <= self._shown:
            return
        chosen = {p: face_id for p, face_id in change.after.references.items() if face_id is not None}
        before = change.before.persons
        known = (p for p in dict.fromkeys([*change.gone, *change.after.references]) if before.get(p, {}) is not None)
        former = map(self._position, known)
        removed = np.array([position for position in former if position is not None], dtype=np.int64)
        if chosen:
            faces = [change.vectors[face_id] for face_id in chosen.values()]
            self._index.append(
                np.stack([face.embedding for face in faces]),
                np.array([_seq_of(person_id, change, committed) for person_id in chosen], dtype=np.int64),
                [face.image_hashes for face in faces],
                np.array([face.box for face in faces], dtype=np.float32),
                removed,
            )
        elif len(removed):
            self._index.remove(removed)
        for person_id in chosen:
            self._person_ids.append(person_id)
        if self._index.worth_compacting:
            self._index, kept = self._index.compacted()  # older views keep the old index
            self._person_ids = self._person_ids.with_tail(kept.tolist())


def _seq_of(person_id: str, change: Change, committed: Committed) -> int:
    """The sequence number of a person: new, stored, or restored by an undo."""
    columns = change.after.persons.get(person_id) or {}
    return int(committed.seqs.get(person_id) or change.seqs.get(person_id) or columns["seq"])


class Directories:
    """The directories of a store in memory, each loaded on first use."""

    def __init__(self, client: LocalStore, device: str = HOST, *, quantized: bool = False) -> None:
        """`quantized`: see `Directory`."""
        self._client = client
        self.device = device
        self.quantized = quantized
        self._lock = threading.Lock()
        self._loaded: dict[tuple[int, str], Directory] = {}
        self._uses: dict[tuple[int, str], int] = {}

    def load_all(self) -> None:
        """Loads every directory that has an identity, with its index and, up to `records.KEPT`, all records."""
        for row in self._client.directories():
            with self.using(row.account_id, row.name) as directory:
                directory.view()
                directory.keep_all()

    def all(self) -> list[Directory]:
        """The directories in memory."""
        with self._lock:
            return list(self._loaded.values())

    def map_again(self, longest_tail: int = MAX_TAIL) -> None:
        """After segments were written: unmaps deleted ones and, on the host, replaces tails of at least `longest_tail`
        references by segments."""
        files = set(self._client.ask(segment_files))
        for directory in self.all():
            long = directory.tail >= longest_tail and self.device == HOST
            if long or directory.maps_others_than(files):
                with self.writing(directory):
                    directory.map_again()

    def switch(self) -> None:
        """After a switch of generations: maps all references again. The caller keeps changes out. A failure is logged;
        the next use tries again."""
        directories = self.all()
        for directory in directories:
            with directory.lock.alone():
                directory.forget_index(self._client.identity.embedding_size)
        for directory in directories:
            try:
                with directory.lock.alone():
                    directory.map_again()
            except StoreError:
                _log.exception("the references of %s could not be mapped after a switch", directory.name)

    @contextmanager
    def using(self, account_id: int, name: str) -> Iterator[Directory]:
        """The shared directory object, for the block. An empty one is dropped after its last use, so that unknown names
        cost no memory."""
        key = account_id, name
        with self._lock:
            if key not in self._loaded:
                stored = StoredDirectory(self._client, account_id, name)
                self._loaded[key] = Directory(stored, self.device, quantized=self.quantized)
            directory = self._loaded[key]
            self._uses[key] = self._uses.get(key, 0) + 1
        try:
            if not directory.loaded:
                with directory.lock.alone():  # not self._lock: others need not wait
                    if not directory.loaded:
                        directory.load()
            yield directory
        finally:
            with self._lock:
                self._uses[key] -= 1
                if not self._uses[key]:
                    del self._uses[key]
                    if not len(directory):
                        del self._loaded[key]

    @contextmanager
    def using_all(self, account_id: int, names: Iterable[str]) -> Iterator[Mapping[str, Directory]]:
        """Several directories of an account by name."""
        with ExitStack() as stack:
            yield {name: stack.enter_context(self.using(account_id, name)) for name in sorted(set(names))}

    @contextmanager
    def writing(self, *directories: Directory) -> Iterator[None]:
        """Locks directories of one account exclusively, in a fixed order, for validation, commit and `apply`.

        If the block fails, its commit may still be durable: the directories are reloaded now or before the next change.
        Raises StoreError.
        """
        with ExitStack() as stack:
            for directory in sorted(directories, key=lambda d: d.name):
                stack.enter_context(directory.lock.alone())
            for directory in directories:
                self._repair(directory)
            with self._doubting(*directories):
                yield

    @contextmanager
    def posting(self, directory: Directory) -> Iterator[PostLock]:
        """Locks a directory for one of several posts. Failures and errors as in `writing`."""
        with directory.lock.shared(lambda: self._repair(directory)) as lock, self._doubting(directory, lock=lock):
            yield lock

    @contextmanager
    def _doubting(self, *directories: Directory, lock: PostLock | None = None) -> Iterator[None]:
        try:
            yield
        except (RequestError, InputError):
            raise  # refused before any change
        except BaseException:
            for directory in directories:
                directory.in_doubt = True
            if lock is not None:
                lock.end()  # or posts that fail together would wait for each other in `_repair`
            with suppress(Exception):
                for directory in directories:
                    self._repair(directory)
            raise

    def _repair(self, directory: Directory) -> None:
        """Reloads a directory if `in_doubt`. The caller holds its lock but no read/write set."""
        if directory.in_doubt:
            directory.lock.wait_until_idle()
        if directory.in_doubt:  # not reloaded meanwhile
            directory.load()
