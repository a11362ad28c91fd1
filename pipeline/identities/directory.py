"""The identities of a directory in memory, following the catalog: what a face is decided against.

Bulk enrolment and the server use the same objects. Whoever changes a directory has a turn (`turns`) from the last
look at it until its commit is applied here, so the decision and the commit are one step: alone
(`Directories.writing`), or beside others who cannot affect it (`Directories.posting`); both read a directory anew
where that went wrong. Searches and listings take no turns: they work on a `view()`, which never changes.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np

from pipeline.errors import InputError, RequestError
from pipeline.identities.turns import Turn, Turns
from pipeline.matching.match import Matcher
from pipeline.matching.references import IndexView, ReferenceIndex, changes_since
from pipeline.store.client import StoreClient
from pipeline.store.records import PersonRecord, References
from pipeline.types import FaceBatch, FloatArray, IntArray

_BYTES_PER_PERSON: Final = 1200  # of the Python objects of one identity, measured


@dataclass(frozen=True)
class DirectoryView:
    """A directory as it was at one moment."""

    index: IndexView
    person_ids: Sequence[str]  # of each position of the index

    def is_outdated_for(self, now: DirectoryView, faces: FaceBatch, decided: IntArray, matcher: Matcher) -> bool:
        """Whether what was decided of `faces` on this view might be decided otherwise on a later one.

        `decided` are their positions in this view (-1, or past its end, where none). Errs on the side of yes.
        """
        if now.index is self.index:
            return False
        changed = changes_since(self.index, now.index)
        if changed is None:
            return True
        if np.isin(decided, changed.removed).any():
            return True
        return len(changed.appended) > 0 and _may_match(now.index, changed.appended, faces, matcher)


def _may_match(index: IndexView, appended: range, faces: FaceBatch, matcher: Matcher) -> bool:
    for hashes, box in zip(faces.image_hashes, faces.boxes.tolist(), strict=True):
        found = index.find_identical(hashes, box)
        if found is not None and found >= appended.start:
            return True
    nearest = matcher.nearest(index.part(appended), faces.embeddings, 1, matching=True)
    return bool((nearest.positions >= 0).any())


@dataclass(frozen=True)
class ReferenceFace:
    """The face that now stands for a person: its vector [d], the hashes of its image, its box (xyxy, pixels)."""

    person_id: str
    embedding: FloatArray
    image_hashes: tuple[str, ...]
    box: tuple[float, float, float, float]


class Directory:
    """The identities of one directory."""

    def __init__(
        self, account_id: int, name: str, embedding_size: int, device: str = "cpu", *, quantized: bool = False
    ) -> None:
        """`quantized`: for searches of a few faces at a time, as `ReferenceIndex` has it."""
        self.account_id = account_id
        self.name = name
        self.turns = Turns()
        self.loaded = False
        self.in_doubt = False  # a change failed half-way: the store may hold more, or less, than this
        self._reading = threading.Lock()  # held for moments: while maps are changed, or read together
        self._new_index = partial(ReferenceIndex, embedding_size, device, quantized=quantized)
        self._index = self._new_index()
        self._person_ids: list[str] = []
        self._persons: dict[str, PersonRecord] = {}
        self._positions: dict[str, int] = {}
        self._children: dict[str, set[str]] = {}
        self._by_external_id: dict[str, set[str]] = {}
        self._by_guid: dict[str, str] = {}
        self._view = DirectoryView(self._index.view(), self._person_ids)

    def load(self, known: References) -> None:
        """Holds what the store holds, whatever it held before. The caller is alone."""
        index = self._new_index()
        order = np.array([person.seq for person in known.persons], dtype=np.int64)
        index.append(known.vectors, order, known.image_hashes, known.boxes)
        with self._reading:
            self._index = index
            self._number([person.person_id for person in known.persons])
            for mapping in (self._persons, self._children, self._by_external_id, self._by_guid):
                mapping.clear()
            for person in known.persons:
                self._put(person)
            self._view = DirectoryView(self._index.view(), self._person_ids)
        self.loaded, self.in_doubt = True, False

    def __len__(self) -> int:
        return len(self._persons)

    @property
    def memory_bytes(self) -> int:
        """About what the vectors and the records take."""
        return self._view.index.host_vectors.nbytes + _BYTES_PER_PERSON * len(self._persons)

    def view(self) -> DirectoryView:
        return self._view

    # Reading

    def records(self) -> list[PersonRecord]:
        """All, in the order of insertion."""
        with self._reading:
            found = list(self._persons.values())
        return sorted(found, key=lambda person: person.seq)

    def get(self, person_id: str) -> PersonRecord | None:
        with self._reading:
            return self._persons.get(person_id)

    def with_external_id(self, external_id: str) -> list[PersonRecord]:
        """In the order of insertion."""
        with self._reading:
            found = [self._persons[each] for each in self._by_external_id.get(external_id, ())]
        return sorted(found, key=lambda person: person.seq)

    def person_of_image(self, guid: str) -> PersonRecord | None:
        with self._reading:
            person_id = self._by_guid.get(guid)
            return None if person_id is None else self._persons[person_id]

    def root(self, person_id: str) -> PersonRecord | None:
        """The root of a person: itself where nothing is merged. None for an unknown person."""
        with self._reading:
            return self._root(person_id)

    def _root(self, person_id: str) -> PersonRecord | None:
        found = self._persons.get(person_id)
        while found is not None and found.parent_id is not None:
            found = self._persons[found.parent_id]
        return found

    def merged_set(self, person_id: str) -> list[PersonRecord]:
        """The root of a person, then all below it in the order of insertion. Empty for an unknown person."""
        with self._reading:
            root = self._root(person_id)
            if root is None:
                return []
            below = [root.person_id]
            for member in below:  # grows as it goes: a chain of merges may be longer than calls can be nested
                below.extend(self._children.get(member, ()))
            found = [self._persons[member] for member in below[1:]]
        return [root, *sorted(found, key=lambda person: person.seq)]

    def children(self, person_id: str) -> list[PersonRecord]:
        """Those whose parent it is, in the order of insertion."""
        with self._reading:
            found = [self._persons[child] for child in self._children.get(person_id, ())]
        return sorted(found, key=lambda person: person.seq)

    # Following a commit

    def apply(
        self,
        records: Iterable[PersonRecord] = (),
        deleted: Iterable[str] = (),
        references: Sequence[ReferenceFace] = (),
    ) -> None:
        """Takes up what was committed; `references` are of persons among `records`. The caller has the lock."""
        records, deleted = list(records), list(deleted)
        with self._reading:
            self._change_index({record.person_id: record.seq for record in records}, deleted, references)
            for person_id in deleted:
                self._forget_maps(person_id)
                del self._persons[person_id]
            for record in records:
                self._put(record)
            if self._index.worth_compacting:
                self._compact()
            self._view = DirectoryView(self._index.view(), self._person_ids)

    def clear(self) -> None:
        """Follows the deletion of the whole directory. The caller is alone."""
        self.apply(deleted=list(self._persons))

    def _put(self, record: PersonRecord) -> None:
        self._forget_maps(record.person_id)
        self._persons[record.person_id] = record
        self._by_guid[record.image_guid] = record.person_id
        if record.parent_id is not None:
            self._children.setdefault(record.parent_id, set()).add(record.person_id)
        if record.external_id is not None:
            self._by_external_id.setdefault(record.external_id, set()).add(record.person_id)

    def _forget_maps(self, person_id: str) -> None:
        old = self._persons.get(person_id)
        if old is None:
            return
        del self._by_guid[old.image_guid]
        for mapping, key in ((self._children, old.parent_id), (self._by_external_id, old.external_id)):
            if key is not None:
                mapping[key].discard(person_id)
                if not mapping[key]:
                    del mapping[key]

    def _change_index(
        self, seqs: Mapping[str, int], deleted: Sequence[str], references: Sequence[ReferenceFace]
    ) -> None:
        """In one step however many they are: each copies the list of the dead."""
        replaced = [r.person_id for r in references if r.person_id in self._positions]
        gone = np.array([self._positions[person_id] for person_id in (*deleted, *replaced)], dtype=np.int64)
        start = len(self._index)
        if references:
            self._index.replace(
                gone,
                np.stack([r.embedding for r in references]),
                np.array([seqs[r.person_id] for r in references], dtype=np.int64),
                [r.image_hashes for r in references],
                np.array([r.box for r in references], dtype=np.float32),
            )
        elif len(gone):
            self._index.remove(gone)
        for person_id in deleted:
            del self._positions[person_id]
        for position, reference in enumerate(references, start):
            self._person_ids.append(reference.person_id)
            self._positions[reference.person_id] = position

    def _compact(self) -> None:
        """A new index without the dead rows; older views keep the old one."""
        self._index, kept = self._index.compacted()
        self._number([self._person_ids[position] for position in kept.tolist()])

    def _number(self, person_ids: list[str]) -> None:
        self._person_ids = person_ids
        self._positions = {person_id: position for position, person_id in enumerate(person_ids)}


class Directories:
    """The directories of a store in memory, each read when it is first used."""

    def __init__(self, client: StoreClient, device: str = "cpu", *, quantized: bool = False) -> None:
        self._client = client
        self._device = device
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
        """Those in memory."""
        with self._lock:
            return list(self._loaded.values())

    @contextmanager
    def using(self, account_id: int, name: str) -> Iterator[Directory]:
        """The directory, for the block: there is one object of each. An empty one is forgotten after its last use,
        so that asking for names that don't exist costs no memory."""
        key = account_id, name
        with self._lock:
            if key not in self._loaded:
                self._loaded[key] = self._new(account_id, name)
            directory = self._loaded[key]
            self._uses[key] = self._uses.get(key, 0) + 1
        try:
            if not directory.loaded:
                with directory.turns.alone():  # whoever comes first reads it; those of other directories need not wait
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
        """The caller is alone with directories of one account, whose turns are taken in one order, for the decision,
        the commit and its `apply`.

        Where the block fails its commit may be in all the same, so the directories are read anew: now, and if that
        fails before the next change; until then they answer what they held. Raises StoreError.
        """
        with ExitStack() as stack:
            for directory in sorted(directories, key=lambda d: d.name):
                stack.enter_context(directory.turns.alone())
            for directory in directories:
                self._settle(directory)
            with self._doubting(*directories):
                yield

    @contextmanager
    def posting(self, directory: Directory) -> Iterator[Turn]:
        """A turn beside others. What `writing` says of failures holds here too. Raises StoreError."""
        with directory.turns.together(lambda: self._settle(directory)) as turn, self._doubting(directory, turn=turn):
            yield turn

    @contextmanager
    def _doubting(self, *directories: Directory, turn: Turn | None = None) -> Iterator[None]:
        try:
            yield
        except (RequestError, InputError):
            raise  # refused before anything was changed
        except BaseException:
            for directory in directories:
                directory.in_doubt = True
            if turn is not None:
                turn.end()  # others may fail as well, and would wait for this one as it for them
            with suppress(Exception):
                for directory in directories:
                    self._settle(directory)
            raise

    def _settle(self, directory: Directory) -> None:
        """Reads a directory in doubt anew. The caller has its lock, and no claim."""
        if directory.in_doubt:
            directory.turns.wait_alone()
        if directory.in_doubt:  # nobody read it meanwhile
            self._read(directory)

    def _new(self, account_id: int, name: str) -> Directory:
        size = self._client.identity.embedding_size
        return Directory(account_id, name, size, self._device, quantized=self._quantized)

    def _read(self, directory: Directory) -> None:
        directory.load(self._client.references(directory.account_id, directory.name))
