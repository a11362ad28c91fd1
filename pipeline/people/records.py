"""A cache of a directory's records, read from the catalog on demand; a server caches everybody, up to KEPT.

Each record is cached with the number of the last commit that it includes; changes are applied to records that lack
them. So records may be ahead of the index between a commit and its `Directory.apply`, but never behind. Writers see no
difference: nobody else changes their persons meanwhile (`locks`).
"""

from __future__ import annotations

import itertools
import re
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from pipeline.config import AVERAGE_LINK, FMR, nearest_threshold
from pipeline.errors import BadValue, PersonUnknown
from pipeline.matching.calibration import Calibration
from pipeline.store import (
    Change,
    Committed,
    LocalStore,
    Merges,
    PersonRecord,
    PersonRows,
    References,
    Remembered,
    directories,
    persons,
)

KEPT: Final = 2**18  # records
_BYTES: Final = 1200  # of a record's Python objects, measured
_PAGE: Final = 2**14  # records read at once; other catalog work runs in between
EVERYBODY: Final = 2**62
_LONG_TAIL: Final = 4096  # fewer references are read as fast as written into a segment
_UUID: Final = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def threshold_in_use(values: Remembered, calibration: Mapping[str, Any], generation: int) -> float | None:
    """The T of a remembered threshold in a generation with this `calibration` (`StoreIdentity.calibration`); None if
    none is set, if it is a number for another generation's distances, or a rate that the calibration does not know."""
    threshold = of_generation(values, generation).threshold
    if threshold is None or not threshold.startswith(FMR):
        return None if threshold is None else float(threshold)
    try:
        return nearest_threshold(Calibration.from_dict(calibration).threshold_at(float(threshold[len(FMR) :])))
    except BadValue:
        return None


def of_generation(values: Remembered, generation: int) -> Remembered:
    """What is remembered, without numbers for another generation's distances."""
    if generation == values.threshold_generation:
        return values
    rate = values.threshold is not None and values.threshold.startswith(FMR)
    # Stores of before have no generation of a cut beside a rate.
    cut = values.cut if values.threshold_generation is None else None
    return replace(values, threshold=values.threshold if rate else None, cut=cut)


def unconfirmed(directory: str, values: Remembered, calibration: Mapping[str, Any], generation: int) -> str | None:
    """A note if a directory's threshold or cut has no effect, with the command that confirms it."""
    used, command, notes = of_generation(values, generation), f"facepipe regroup --directory {directory}", []
    other = "was set for another index and has no effect: confirm it with"
    if used.threshold != values.threshold:
        flag = f"--threshold {values.threshold}"
        notes.append(f"threshold {values.threshold} {other} `{command} {flag}`, or set `--threshold fmr:RATE`")
    elif used.threshold is not None and threshold_in_use(values, calibration, generation) is None:
        notes.append(
            f"threshold {values.threshold} is no rate of this index's table and has no effect: set another with"
            f" `{command} --threshold T`"
        )
    if used.cut != values.cut:
        flag = f"--method {AVERAGE_LINK} --cut {values.cut:g}"
        notes.append(f"cut {values.cut:g} {other} `{command} {flag}`, or set `--precision P`")
    return " ".join(f'The directory "{directory}": {note}.' for note in notes) or None


def overridden(directory: str, own: float, given: float) -> str:
    """The note of a command that was given another threshold than the directory's."""
    return f'The directory "{directory}" has the threshold {own:g}, of a regroup; {given:g} given here overrides it.'


class StoredDirectory:
    """A directory's current rows in the catalog."""

    def __init__(self, client: LocalStore, account_id: int, name: str) -> None:
        self._client = client
        self.account_id, self.name = self._place = account_id, name
        self.embedding_size = client.identity.embedding_size

    def merges(self) -> Merges:
        return self._client.ask(persons.merges, *self._place)

    def persons(self, person_ids: Sequence[str]) -> PersonRows:
        return self._client.ask(persons.persons, *self._place, [*filter(_UUID.fullmatch, person_ids)])

    def persons_after(self, seq: int, count: int) -> PersonRows:
        return self._client.ask(persons.persons_after, *self._place, seq, count)

    def persons_called(self, names: Sequence[str], external_ids: Sequence[str]) -> list[str]:
        return self._client.ask(persons.persons_called, *self._place, names, external_ids)

    def is_picture(self, guid: str) -> bool:
        return self._client.ask(persons.is_picture, *self._place, guid)

    def remembered(self) -> Remembered:
        return self._client.ask(directories.remembered, *self._place)

    def twice_allowed(self) -> set[str]:
        return self._client.twice_allowed(*self._place)

    def threshold_of(self, values: Remembered) -> float | None:
        """The T in use; None if none is set, or it is a number for another generation's distances."""
        return threshold_in_use(values, self._client.identity.calibration, self._client.generation)

    def references(self) -> References:
        return self._client.references(*self._place)

    def fold(self) -> None:
        """Writes references without an index segment into one, if there are many."""
        self._client.fold_tails(_LONG_TAIL)


class Records:
    """Any thread may read; the holder of the directory's lock calls `follow`. Methods raise StoreError."""

    def __init__(self, stored: StoredDirectory) -> None:
        self._stored = stored
        self._lock = threading.Lock()  # held briefly
        self._kept: dict[str, tuple[PersonRecord, int]] = {}  # with the last commit that each includes
        self._by_external_id: dict[str, set[str]] = {}  # of cached records
        self._guids: set[str] = set()  # of their pictures
        self._all_kept = False
        self._parents: dict[str, str] = {}  # of all merged persons
        self._children: dict[str, set[str]] = {}
        self._count = 0
        self._counted = 0  # the last commit that the count and the parents include
        self._followed = 0  # the last commit applied

    def take(self, found: Merges) -> None:
        """Clears the cache. `found`: the number of persons, and the parents."""
        with self._lock:
            self._forget_all()
            self._all_kept = found.count == 0
            self._count, self._counted = found.count, found.number
            self._parents.clear()
            self._children.clear()
            for person_id, parent_id in found.parents.items():
                self._set_parent(person_id, parent_id)

    def keep_all(self) -> None:
        """Caches everybody, unless there are more than KEPT."""
        seq, kept = 0, self._kept
        while self._count <= KEPT and self._kept is kept:  # else cleared meanwhile
            page = self._stored.persons_after(seq, _PAGE)
            records = page.records()
            with self._lock:
                if page.number < self._followed:
                    continue  # changed meanwhile: read again
                for record in records:
                    self._keep(record, page.number)
                self._all_kept = len(records) < _PAGE and self._kept is kept
            if len(records) < _PAGE:
                return
            seq = records[-1].seq

    def __len__(self) -> int:
        """The number of persons."""
        return self._count

    @property
    def people(self) -> int:
        """The number of people: a merged set is one."""
        with self._lock:
            return self._count - len(self._parents)

    @property
    def memory_bytes(self) -> int:
        """Estimated size of the cache."""
        return _BYTES * len(self._kept)

    # Reading

    def of(self, person_ids: Iterable[str]) -> dict[str, PersonRecord]:
        """The records of these persons, without unknown ones."""
        wanted = dict.fromkeys(person_ids)
        with self._lock:
            found = {person_id: self._kept[person_id][0] for person_id in wanted if person_id in self._kept}
            missing = [] if self._all_kept else [person_id for person_id in wanted if person_id not in found]
        if not missing:
            return found
        answer = self._stored.persons(missing)
        records = answer.records()
        with self._lock:
            if len(self._kept) > KEPT:
                self._forget_all()
            if answer.number >= self._followed:
                for record in records:
                    self._keep(record, answer.number)
        return found | {record.person_id: record for record in records}

    def get(self, person_id: str) -> PersonRecord | None:
        return self.of([person_id]).get(person_id)

    def those(self, person_ids: Iterable[str]) -> list[PersonRecord]:
        """The records of these persons, in their order, without repetitions. Raises PersonUnknown."""
        wanted = list(dict.fromkeys(person_ids))
        found = self.of(wanted)
        if len(found) < len(wanted):
            raise PersonUnknown
        return [found[person_id] for person_id in wanted]

    def record(self, person_id: str) -> PersonRecord:
        """Raises PersonUnknown."""
        (record,) = self.those([person_id])
        return record

    def everybody(self, at_once: int = _PAGE) -> Iterator[PersonRecord]:
        """All records in insertion order; uncached, in consistent pages of `at_once`."""
        with self._lock:
            kept = by_age(record for record, _ in self._kept.values()) if self._all_kept else None
        if kept is not None:
            yield from kept
            return
        seq, full = 0, True
        while full:
            page = self._stored.persons_after(seq, at_once).records()
            yield from page
            full = len(page) == at_once
            seq = page[-1].seq if full else seq

    def called(self, names: Sequence[str], external_ids: Sequence[str]) -> list[PersonRecord]:
        """Those with one of these names (in any Unicode form) or external ids, in insertion order."""
        return by_age(self.of(self._stored.persons_called(names, external_ids)).values())

    def with_external_id(self, external_id: str) -> list[PersonRecord]:
        """Those with this external id, in insertion order."""
        with self._lock:
            if self._all_kept:
                kept = [self._kept[person_id][0] for person_id in self._by_external_id.get(external_id, ())]
                return by_age(kept)
        return [record for record in self.called([], [external_id]) if record.external_id == external_id]

    def has_picture(self, guid: str) -> bool:
        """Whether it is a person's current picture."""
        with self._lock:
            if self._all_kept or guid in self._guids:
                return guid in self._guids
        return self._stored.is_picture(guid)

    def twice_allowed(self) -> set[str]:
        """SHA-256 of the photos on which somebody may be twice."""
        return self._stored.twice_allowed()

    # Merged sets

    def root_id(self, person_id: str) -> str:
        """The person's root; an unmerged or unknown one is its own."""
        with self._lock:
            return self._root_id(person_id)

    def roots(self, person_ids: Iterable[str]) -> dict[str, PersonRecord]:
        """The root by person, without unknown ones."""
        roots = {person_id: self.root_id(person_id) for person_id in person_ids}
        found = self.of(roots.values())
        return {person_id: found[root] for person_id, root in roots.items() if root in found}

    def parent_id(self, person_id: str) -> str | None:
        return self._parents.get(person_id)

    def _root_id(self, person_id: str) -> str:
        while person_id in self._parents:
            person_id = self._parents[person_id]
        return person_id

    def children(self, person_id: str) -> list[PersonRecord]:
        """The children of a person, in insertion order."""
        with self._lock:
            children = list(self._children.get(person_id, ()))
        return by_age(self.of(children).values()) if children else []

    def merged_ids(self, person_id: str) -> list[str]:
        """The root of a person, then its other descendants in any order."""
        with self._lock:
            members = [self._root_id(person_id)]
            for member in members:  # grows; a recursion might get too deep
                members.extend(self._children.get(member, ()))
        return members

    def merged_sets(self, person_ids: Iterable[str]) -> dict[str, list[PersonRecord]]:
        """The merged sets by person, root first, then in insertion order; without unknown persons."""
        members = {person_id: self.merged_ids(person_id) for person_id in person_ids}
        found = self.of(itertools.chain(*members.values()))
        return {
            person_id: [found[root], *by_age(found[each] for each in below if each in found)]
            for person_id, (root, *below) in members.items()
            if root in found
        }

    def merged_set(self, person_id: str) -> list[PersonRecord]:
        """As `merged_sets`; empty if unknown."""
        return self.merged_sets([person_id]).get(person_id, [])

    # Following

    def follow(self, change: Change, committed: Committed) -> None:
        """Applies a committed change."""
        after, gone, number = change.after, change.gone, committed.number
        new = [p for p, columns in after.persons.items() if columns is not None and change.before.persons[p] is None]
        with self._lock:
            self._followed = max(self._followed, number)
            if number > self._counted:
                self._count += len(new) - len(gone)
                for person_id, columns in after.persons.items():
                    if columns is not None and "parent_id" in columns:
                        self._set_parent(person_id, columns["parent_id"])
                for person_id in gone:
                    self._set_parent(person_id, None)
            for person_id in gone:
                self._forget(person_id)
            for person_id in dict.fromkeys((*after.persons, *after.references, *change.seen)):
                known, shown = self._kept.get(person_id, (None, 0))
                if known is not None and shown < number:
                    self._keep(_changed(known, change, committed), number, again=True)
            for person_id in new:
                if person_id not in self._kept:
                    self._keep(_made(person_id, change, committed), number)
            self._all_kept &= len(self._kept) <= KEPT

    def _keep(self, record: PersonRecord, number: int, *, again: bool = False) -> None:
        if again:
            self._forget(record.person_id)
        elif record.person_id in self._kept:
            return
        self._kept[record.person_id] = record, number
        if record.image_guid is not None:
            self._guids.add(record.image_guid)
        if record.external_id is not None:
            self._by_external_id.setdefault(record.external_id, set()).add(record.person_id)

    def _forget(self, person_id: str) -> None:
        record, _ = self._kept.pop(person_id, (None, 0))
        if record is None:
            return
        self._guids.discard(record.image_guid or "")
        if record.external_id is not None:
            self._by_external_id[record.external_id].discard(person_id)
            if not self._by_external_id[record.external_id]:
                del self._by_external_id[record.external_id]

    def _forget_all(self) -> None:
        self._kept, self._by_external_id, self._guids, self._all_kept = {}, {}, set(), False

    def _set_parent(self, person_id: str, parent_id: str | None) -> None:
        old = self._parents.pop(person_id, None)
        if old is not None:
            self._children[old].discard(person_id)
            if not self._children[old]:
                del self._children[old]
        if parent_id is not None:
            self._parents[person_id] = parent_id
            self._children.setdefault(parent_id, set()).add(person_id)


def _changed(known: PersonRecord, change: Change, committed: Committed) -> PersonRecord:
    """A stored person's record after a change."""
    person_id, after = known.person_id, change.after
    new: dict[str, Any] = {}
    if person_id in after.persons:
        new = {"modified_at": committed.at, **(after.persons[person_id] or {})}
    if person_id in after.references:
        new["image_guid"], *_ = change.pictures.get(person_id, (None,))
    if person_id in change.seen:
        new |= {
            "occurrence": known.occurrence + change.seen[person_id],
            "last_occurrence_at": committed.at,
        }
    return replace(known, **new)


def _made(person_id: str, change: Change, committed: Committed) -> PersonRecord:
    """The record of a person that a change inserted or restored."""
    columns = change.after.persons[person_id] or {}
    guid, *_ = change.pictures.get(person_id, (None,))
    seq = committed.seqs.get(person_id, columns.get("seq"))
    return PersonRecord(**{"modified_at": committed.at, **columns, "seq": seq, "image_guid": guid})


def by_age(records: Iterable[PersonRecord]) -> list[PersonRecord]:
    """In insertion order."""
    return sorted(records, key=lambda record: record.seq)
