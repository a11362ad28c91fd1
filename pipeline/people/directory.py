"""The identities of a directory in memory, following the catalog: what faces are decided against.

Runs and the server use the same objects. A writer has the directory's lock (`locks`) from the last look at it until
its commit is applied here, so that the decision and the commit are one step: alone (`Directories.writing`), or with
other posts that cannot affect it (`Directories.posting`). After a failure both read the directory again. Searches and
listings take no lock: they work on a `view()`, which never changes.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import numpy as np

from pipeline.errors import InputError, PersonUnknown, RequestError
from pipeline.matching.references import IndexView, ReferenceIndex
from pipeline.people.locks import DirectoryLock, SharedLock
from pipeline.runtime.device import HOST
from pipeline.store import Change, Committed, FaceVector, LocalStore, PersonRecord, References, utc_now

_BYTES_PER_PERSON: Final = 1200  # of the Python objects of one identity, measured


@dataclass(frozen=True)
class DirectoryView:
    """A directory as it was at one moment."""

    index: IndexView
    person_ids: Sequence[str]  # of each position of the index
    corrections: int = 0  # how many were made, deletions included
    face_corrections: int = 0  # those that changed more than columns of persons: decisions rest on the rest


class Directory:
    """The identities of one directory."""

    def __init__(
        self,
        account_id: int,
        name: str,
        embedding_size: int,
        device: str = HOST,
        *,
        quantized: bool = False,
    ) -> None:
        """`quantized`: for searches of a few faces at a time, as `ReferenceIndex` has it."""
        self.account_id = account_id
        self.name = name
        self.lock = DirectoryLock()
        self.loaded = False
        self.in_doubt = False  # a change failed half-way: the store may hold more or less than this
        self._maps = threading.Lock()  # held briefly, while the maps are changed or read together
        self._new_index = partial(ReferenceIndex, embedding_size, device, quantized=quantized)
        self._index = self._new_index()
        self._person_ids: list[str] = []
        self._persons: dict[str, PersonRecord] = {}
        self._positions: dict[str, int] = {}
        self._children: dict[str, set[str]] = {}
        self._by_external_id: dict[str, set[str]] = {}
        self._guids: set[str] = set()  # of pictures
        self._view = DirectoryView(self._index.view(), self._person_ids)

    def load(self, stored: References) -> None:
        """Takes over what the store holds, whatever was here before. The caller has the lock alone."""
        index = self._new_index()
        order = np.array([person.seq for person in stored.persons], dtype=np.int64)
        index.append(stored.vectors, order, stored.image_hashes, stored.boxes)
        with self._maps:
            self._index = index
            self._number([person.person_id for person in stored.persons])
            for known in (self._persons, self._children, self._by_external_id, self._guids):
                known.clear()
            for person in (*stored.persons, *stored.faceless):
                self._put(person)
            self._show(corrected=True, faces=True)  # a correction may be committed that failed afterwards
        self.loaded, self.in_doubt = True, False

    def __len__(self) -> int:
        return len(self._persons)

    @property
    def people(self) -> int:
        """How many people there are: a merged set is one."""
        with self._maps:
            return len(self._persons) - sum(map(len, self._children.values()))

    @property
    def memory_bytes(self) -> int:
        """Estimate of what the vectors and the records take."""
        return self._index.memory_bytes + _BYTES_PER_PERSON * len(self._persons)

    def view(self) -> DirectoryView:
        return self._view

    def reference_of(self, person_id: str) -> tuple[DirectoryView, int | None]:
        """A view, and where in its index the person's reference is; None for an unknown person, and one without."""
        with self._maps:
            return self._view, self._positions.get(person_id)

    # Reading

    def records(self) -> list[PersonRecord]:
        """All records, in the order of insertion."""
        with self._maps:
            records = list(self._persons.values())
        return _by_age(records)

    def get(self, person_id: str) -> PersonRecord | None:
        with self._maps:
            return self._persons.get(person_id)

    def record(self, person_id: str) -> PersonRecord:
        """Raises PersonUnknown."""
        record = self.get(person_id)
        if record is None:
            raise PersonUnknown
        return record

    def with_external_id(self, external_id: str) -> list[PersonRecord]:
        """Records with this external id, in the order of insertion."""
        with self._maps:
            records = [self._persons[person_id] for person_id in self._by_external_id.get(external_id, ())]
        return _by_age(records)

    def has_image(self, guid: str) -> bool:
        """Whether it is somebody's picture."""
        with self._maps:
            return guid in self._guids

    def root(self, person_id: str) -> PersonRecord | None:
        """The root of a person: itself where nothing is merged. None for an unknown person."""
        with self._maps:
            return self._root(person_id)

    def _root(self, person_id: str) -> PersonRecord | None:
        record = self._persons.get(person_id)
        while record is not None and record.parent_id is not None:
            record = self._persons[record.parent_id]
        return record

    def merged_set(self, person_id: str) -> list[PersonRecord]:
        """The root of a person, then all below it in the order of insertion. Empty for an unknown person."""
        with self._maps:
            root = self._root(person_id)
            if root is None:
                return []
            member_ids = [root.person_id]
            for member_id in member_ids:  # grows as it goes: a chain of merges may be longer than calls can be nested
                member_ids.extend(self._children.get(member_id, ()))
            below = [self._persons[member_id] for member_id in member_ids[1:]]
        return [root, *_by_age(below)]

    def children(self, person_id: str) -> list[PersonRecord]:
        """Records whose parent it is, in the order of insertion."""
        with self._maps:
            records = [self._persons[child_id] for child_id in self._children.get(person_id, ())]
        return _by_age(records)

    # Applying a change

    def apply(self, change: Change, committed: Committed) -> None:
        """Brings the directory to its state after a committed change. The caller has the lock."""
        after, gone = change.after, dict.fromkeys(change.gone)
        with self._maps:
            records = self._changed_records(change, committed)
            chosen = {p: change.vectors[face] for p, face in after.references.items() if face is not None}
            lost = [person_id for person_id, face in after.references.items() if face is None]
            seqs = {person_id: records[person_id].seq for person_id in chosen}
            self._change_index(seqs, [*gone, *(person_id for person_id in lost if person_id not in gone)], chosen)
            for person_id in gone:
                self._forget_maps(person_id)
                del self._persons[person_id]
            for record in records.values():
                self._put(record)
            if self._index.worth_compacting:
                self._compact()
            self._show(corrected=change.is_logged, faces=change.is_logged and change.is_of_faces)

    def _changed_records(self, change: Change, committed: Committed) -> dict[str, PersonRecord]:
        after, records = change.after, dict[str, PersonRecord]()
        for person_id in dict.fromkeys((*after.persons, *after.references, *change.seen)):
            columns = after.persons.get(person_id, {})
            if columns is None:
                continue
            new = {"modified_at": committed.at, **columns} if person_id in after.persons else {}
            if person_id in after.references:
                new["image_guid"], *_ = change.pictures.get(person_id, (None,))
            known = self._persons.get(person_id)
            if known is None:
                seq = committed.seqs.get(person_id, columns.get("seq"))
                records[person_id] = PersonRecord(**{"image_guid": None, **new, "seq": seq})
                continue
            if person_id in change.seen:
                new["occurrence"] = known.occurrence + change.seen[person_id]
                new["last_occurrence_at"] = committed.at
            records[person_id] = replace(known, **new)
        return records

    def _show(self, *, corrected: bool, faces: bool) -> None:
        """From now on a view has what is here. `corrected`: by a correction; `faces`: by one of more than columns of
        persons."""
        corrections, of_faces = self._view.corrections + corrected, self._view.face_corrections + faces
        self._view = DirectoryView(self._index.view(), self._person_ids, corrections, of_faces)

    def clear(self) -> None:
        """Follows the deletion of the directory. The caller has the lock alone."""
        deletion = Change(self.account_id, self.name, "delete_directory", deleted=list(self._persons))
        self.apply(deletion, Committed(utc_now(), {}, None))

    def _put(self, record: PersonRecord) -> None:
        self._forget_maps(record.person_id)
        self._persons[record.person_id] = record
        if record.image_guid is not None:
            self._guids.add(record.image_guid)
        if record.parent_id is not None:
            self._children.setdefault(record.parent_id, set()).add(record.person_id)
        if record.external_id is not None:
            self._by_external_id.setdefault(record.external_id, set()).add(record.person_id)

    def _forget_maps(self, person_id: str) -> None:
        old = self._persons.get(person_id)
        if old is None:
            return
        if old.image_guid is not None:
            self._guids.remove(old.image_guid)
        for mapping, key in ((self._children, old.parent_id), (self._by_external_id, old.external_id)):
            if key is not None:
                mapping[key].discard(person_id)
                if not mapping[key]:
                    del mapping[key]

    def _change_index(self, seqs: Mapping[str, int], lost: Sequence[str], new: Mapping[str, FaceVector]) -> None:
        """Makes all changes in one step, because each step copies the list of removed positions. `lost`: the persons
        who have no reference any more, or had none. `new`: references by person."""
        former = [person_id for person_id in (*lost, *new) if person_id in self._positions]
        removed = np.array([self._positions[person_id] for person_id in former], dtype=np.int64)
        start = len(self._index)
        if new:
            self._index.append(
                np.stack([face.embedding for face in new.values()]),
                np.array([seqs[person_id] for person_id in new], dtype=np.int64),
                [face.image_hashes for face in new.values()],
                np.array([face.box for face in new.values()], dtype=np.float32),
                removed,
            )
        elif len(removed):
            self._index.remove(removed)
        for person_id in former:
            del self._positions[person_id]
        for position, person_id in enumerate(new, start):
            self._person_ids.append(person_id)
            self._positions[person_id] = position

    def _compact(self) -> None:
        """Makes a new index without the removed rows; older views keep the old one."""
        self._index, kept = self._index.compacted()
        self._number([self._person_ids[position] for position in kept.tolist()])

    def _number(self, person_ids: list[str]) -> None:
        self._person_ids = person_ids
        self._positions = {person_id: position for position, person_id in enumerate(person_ids)}


def _by_age(records: Iterable[PersonRecord]) -> list[PersonRecord]:
    return sorted(records, key=lambda record: record.seq)


class Directories:
    """The directories of a store in memory, each read when it is first used."""

    def __init__(self, client: LocalStore, device: str = HOST, *, quantized: bool = False) -> None:
        self._client = client
        self.device = device
        self._quantized = quantized
        self._lock = threading.Lock()
        self._loaded: dict[tuple[int, str], Directory] = {}
        self._uses: dict[tuple[int, str], int] = {}

    def load_all(self) -> None:
        """Reads every directory that holds an identity."""
        for row in self._client.directories():
            with self.using(row.account_id, row.name):
                pass

    def all(self) -> list[Directory]:
        """The directories in memory."""
        with self._lock:
            return list(self._loaded.values())

    @contextmanager
    def using(self, account_id: int, name: str) -> Iterator[Directory]:
        """The directory, for the block: there is one object for each. An empty one is forgotten after its last use, so
        that requests for names that don't exist cost no memory."""
        key = account_id, name
        with self._lock:
            if key not in self._loaded:
                size = self._client.identity.embedding_size
                self._loaded[key] = Directory(account_id, name, size, self.device, quantized=self._quantized)
            directory = self._loaded[key]
            self._uses[key] = self._uses.get(key, 0) + 1
        try:
            if not directory.loaded:
                with directory.lock.alone():  # the first user reads it; users of other directories need not wait
                    if not directory.loaded:
                        self._read(directory)
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
        """Locks directories of one account for the caller alone, always in the same order: for the decision, the
        commit and its `apply`.

        If the block fails its commit may be in all the same, so the directories are read again: now or, if that fails,
        before the next change. Until then they answer as before. Raises StoreError.
        """
        with ExitStack() as stack:
            for directory in sorted(directories, key=lambda d: d.name):
                stack.enter_context(directory.lock.alone())
            for directory in directories:
                self._repair(directory)
            with self._doubting(*directories):
                yield

    @contextmanager
    def posting(self, directory: Directory) -> Iterator[SharedLock]:
        """Locks a directory for one of several posts. After a failure as `writing`. Raises StoreError."""
        with directory.lock.shared(lambda: self._repair(directory)) as lock, self._doubting(directory, lock=lock):
            yield lock

    @contextmanager
    def _doubting(self, *directories: Directory, lock: SharedLock | None = None) -> Iterator[None]:
        try:
            yield
        except (RequestError, InputError):
            raise  # refused before anything was changed
        except BaseException:
            for directory in directories:
                directory.in_doubt = True
            if lock is not None:
                lock.end()  # others may fail as well: they would wait for this post, and it for them
            with suppress(Exception):
                for directory in directories:
                    self._repair(directory)
            raise

    def _repair(self, directory: Directory) -> None:
        """Reads a directory in doubt again. The caller has its lock and no registered footprint."""
        if directory.in_doubt:
            directory.lock.wait_until_idle()
        if directory.in_doubt:  # nobody else read it meanwhile
            self._read(directory)

    def _read(self, directory: Directory) -> None:
        directory.load(self._client.references(directory.account_id, directory.name))
