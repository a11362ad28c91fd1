"""Compares a source with its rows in the store: which are unchanged, and which to plan.

A row is identified by path, directory and content (SHA-256). Files are read only if size or times changed (the quick
check of rsync(1)).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from itertools import accumulate, chain, islice, repeat, takewhile
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.config import KEEP, Settings
from pipeline.errors import ImageMissing, ImageRejected
from pipeline.extraction.images.files import HashedFile, file_state, hash_file
from pipeline.runtime.buckets import is_address
from pipeline.store import ERASED, KNOWN_FILES_SCHEMA, Label, LabelChange, Move, ReadAgain, ScanNotes
from pipeline.types import FileState, ImageRef, utc_now

RowKey: TypeAlias = tuple[str, str]  # path and directory
Digests: TypeAlias = Callable[[Sequence[Label]], Sequence[str | None]]
CHUNK_ROWS = 1024
_PIECE_ROWS: Final = 16  # per thread task, whose overhead is that of hashing a small file
_LABELS_AT_ONCE: Final = 8192  # per request for digests
_HASH_THREADS: Final = 8  # by default: reading waits more for the disk than for a core


class SourceRow(NamedTuple):
    """A row of the source: its hashed file, its problem, or, without reading, the number of an equal stored row."""

    ref: ImageRef
    directory: str
    file: HashedFile | None = None
    problem: ImageRejected | None = None
    unread: int | None = None  # number of the stored row

    @property
    def key(self) -> RowKey:
        return self.ref.path, self.directory

    @property
    def sha256(self) -> str | None:
        return self.file and self.file.sha256

    @property
    def label(self) -> Label:
        return self.ref.name, self.ref.external_id


class StoredRows:
    """The stored rows of a source (`known_files`). Memory: about 0.4 KB a row."""

    def __init__(self, batches: Iterable[pa.RecordBatch], *, check_inode: bool) -> None:
        """Reads one batch (KNOWN_FILES_SCHEMA) at a time."""
        table = pa.Table.from_batches(batches, KNOWN_FILES_SCHEMA)
        self.media_ids: list[int] = table["media_id"].to_pylist()
        self._hashes = table["sha256"].combine_chunks()
        self.gone = table["gone_at"].is_valid().to_numpy()  # [rows] an earlier run missed the row
        self.labels = table["label"].combine_chunks()  # digests
        self._paths, self._directories = (table[name].combine_chunks() for name in ("path", "directory"))
        self._met = bytearray(len(table))  # found in the source
        states = ("size", "mtime_ns", "ctime_ns", *(["inode"] if check_inode else []))  # as FileState
        self._states = [table[name].fill_null(0).to_numpy() for name in states]
        # Ignore states recorded in the future: the clock went backwards.
        seen = table["seen_at"].fill_null(datetime.max).to_numpy()
        self._tells = table["ctime_ns"].is_valid().to_numpy() & (seen <= np.datetime64(utc_now()))
        self._by_key: dict[RowKey, tuple[int, ...]] = {}
        for number, key in enumerate(zip(table["path"].to_pylist(), table["directory"].to_pylist(), strict=True)):
            self._by_key[key] = (*self._by_key.get(key, ()), number)

    @property
    def paths(self) -> int:
        """The number of paths."""
        return len(self._by_key)

    def __contains__(self, key: RowKey) -> bool:
        return key in self._by_key

    def with_state(self, key: RowKey, state: FileState) -> int | None:
        """The row read from the file in this state."""
        for number in self.numbers(key):
            known = (column[number] for column in self._states)
            if self._tells[number] and all(old == new for old, new in zip(known, state, strict=False)):
                return number
        return None

    def with_hash(self, key: RowKey, sha256: str | None) -> int | None:
        """The row with these bytes; with None, an unreadable one."""
        return next((n for n in self.numbers(key) if self._hashes[n].as_py() == sha256), None)

    def content(self, key: RowKey) -> str | None:
        """The last hash at a path."""
        hashes = (self._hashes[number].as_py() for number in reversed(self.numbers(key)))
        return next((sha256 for sha256 in hashes if sha256 is not None), None)

    def meet(self, key: RowKey) -> None:
        """Marks a path as found."""
        for number in self.numbers(key):
            self._met[number] = True

    def not_met(self) -> Iterator[RowKey]:
        """The paths not found."""
        return (key for key, numbers in self._by_key.items() if not self._met[numbers[0]])

    def key(self, number: int) -> RowKey:
        """The row's path and directory."""
        return self._paths[number].as_py(), self._directories[number].as_py()

    def numbers(self, key: RowKey) -> tuple[int, ...]:
        """A path's rows, one per content it had."""
        return self._by_key.get(key, ())

    def met_paths(self) -> set[str]:
        """The paths found, for any directory."""
        return {key[0] for key, numbers in self._by_key.items() if self._met[numbers[0]]}

    def media_of(self, key: RowKey) -> list[int]:
        """A path's media ids."""
        return [self.media_ids[number] for number in self._by_key[key]]

    def was_missed(self, key: RowKey) -> bool:
        """Whether an earlier run missed the path."""
        return all(self.gone[number] for number in self._by_key[key])


class ChangedLabels:
    """Compares labels with the stored digests, in batches. Of several source rows for one stored row, the first counts,
    as in planning."""

    def __init__(self, stored: pa.Array, digests: Digests) -> None:
        """`stored`: the stored rows' digests, as in `known_files`; `digests` computes those of labels."""
        self._stored = stored
        self._digests = digests
        self._has_none = stored.is_null().to_numpy(zero_copy_only=False).tobytes()
        self._left_out = bytearray(pc.equal(stored, ERASED).fill_null(False).to_numpy(zero_copy_only=False))
        self._waiting: dict[int, tuple[Label, bool]] = {}
        self._changes: dict[int, tuple[Label, bool]] = {}

    def see(self, number: int, label: Label, *, same_bytes: bool = True) -> None:
        """Records a stored row's current label."""
        if self._left_out[number]:
            return
        self._left_out[number] = True
        if not self._has_none[number] or label != (None, None):
            self._waiting[number] = label, same_bytes
            if len(self._waiting) >= _LABELS_AT_ONCE:
                self._compare()

    def changes(self) -> Mapping[int, tuple[Label, bool]]:
        """Stored row -> current label, and whether the bytes are the same."""
        self._compare()
        return self._changes

    def _compare(self) -> None:
        if not self._waiting:
            return
        labels = list(dict.fromkeys(label for label, _ in self._waiting.values()))
        digests = dict(zip(labels, self._digests(labels), strict=True))
        before = self._stored.take(pa.array(self._waiting, pa.int64())).to_pylist()
        for (number, seen), old in zip(self._waiting.items(), before, strict=True):
            if digests[seen[0]] != old:
                self._changes[number] = seen
        self._waiting.clear()


class Comparison:
    """Compares a source with its stored rows. `without_moves` completes the result."""

    def __init__(
        self, stored: StoredRows, directory: str, settings: Settings, watch: Callable[[], None], digests: Digests
    ) -> None:
        """`directory`: of rows that name none. `watch`: called for each row, from several threads. `digests`: computes
        label digests."""
        self.stored = stored
        self._labels = ChangedLabels(stored.labels, digests)
        self.moved: list[Move] = []
        self.missing: list[RowKey] = []
        self.vanished: list[RowKey] = []  # missing and not missed by an earlier run
        self.back = 0  # missed earlier, found again where they were
        self._read_again: list[ReadAgain] = []
        self._back: list[int] = []
        self._closed: set[str] = set()  # unreadable paths; of a folder, its content is unknown
        self._directory = directory
        self._watch = watch
        self._run = settings.run
        self._max_bytes = settings.decode.max_bytes

    def chunks(self, refs: Iterable[ImageRef]) -> Iterator[list[SourceRow]]:
        """Yields the rows in order, without known files that are missing now."""
        iterator = iter(refs)
        with (
            ThreadPoolExecutor(self._run.threads or _HASH_THREADS, thread_name_prefix="hash") as pool,
            ThreadPoolExecutor(self._run.reads, thread_name_prefix="bucket") as reads,
        ):
            while chunk := list(islice(iterator, CHUNK_ROWS)):
                far = any(is_address(ref.file) for ref in chunk)
                size = 1 if far else _PIECE_ROWS  # one slow bucket object must not delay another
                pieces = [chunk[start : start + size] for start in range(0, len(chunk), size)]
                rows = chain.from_iterable((reads if far else pool).map(self._look_at, pieces))
                yield [row for row in rows if not self._is_missing(row)]

    def is_stored(self, row: SourceRow) -> bool:
        """Whether the store has the row with this content. Records what it shows."""
        if row.problem is not None:
            self._closed.add(row.ref.path)
        self.stored.meet(row.key)
        number = self.stored.with_hash(row.key, row.sha256) if row.unread is None else row.unread
        if number is None:
            return False
        if self.stored.gone[number] and row.problem is None:
            self._back.append(self.stored.media_ids[number])
            self.back += 1
        if row.file is not None and row.file.state is not None:
            self._read_again.append((self.stored.media_ids[number], *row.file.state))
        self._labels.see(number, row.label)
        return True

    def without_moves(self, fresh: Sequence[SourceRow]) -> list[SourceRow]:
        """Returns the `fresh` rows (all that are not stored) without moved files. Equal files are paired in path
        order."""
        left: dict[tuple[str | None, str], list[RowKey]] = {}
        for key in sorted(self.stored.not_met(), reverse=True):
            left.setdefault((self.stored.content(key), key[1]), []).append(key)
        paired: dict[RowKey, RowKey] = {}
        for row in sorted((row for row in fresh if row.file is not None), key=lambda row: row.key):
            olds = left.get((row.sha256, row.directory), ())
            if row.key not in self.stored and row.key not in paired and olds:
                paired[row.key] = olds.pop()
                self._move(paired[row.key], row)
            for number in self.stored.numbers(row.key):
                self._labels.see(number, row.label, same_bytes=False)
        there = {row.ref.path for row in fresh} | self.stored.met_paths() if left else set()
        self.missing = sorted(key for keys in left.values() for key in keys if self._is_missed(key[0], there))
        self.vanished = [key for key in self.missing if not self.stored.was_missed(key)]
        return [row for row in fresh if row.key not in paired or row.sha256 != self.stored.content(paired[row.key])]

    def notes(self) -> ScanNotes:
        """The results for the store to record."""
        marked = self.vanished if self._run.on_missing != KEEP else []
        gone = [media_id for key in marked for media_id in self.stored.media_of(key)]
        return ScanNotes(self._read_again, self.moved, gone, self._back)

    def changed_labels(self) -> dict[str, list[LabelChange]]:
        """The stored photos with a changed label, by directory, including earlier contents of their paths with the same
        old label."""
        found: dict[str, list[LabelChange]] = {}
        changes, before = self._labels.changes(), self.stored.labels
        for number, (label, same_bytes) in changes.items():
            key = self.stored.key(number)
            versions = (other for other in self.stored.numbers(key) if other not in changes or other == number)
            for version in versions:
                if before[version].as_py() == before[number].as_py():
                    found.setdefault(key[1], []).append((self.stored.media_ids[version], *label, same_bytes))
        return found

    def _is_missing(self, row: SourceRow) -> bool:
        return isinstance(row.problem, ImageMissing) and self.stored.content(row.key) is not None

    def _move(self, old: RowKey, row: SourceRow) -> None:
        self.moved.append((old[0], row.directory, row.ref.path))
        self._back += self.stored.media_of(old) if self.stored.was_missed(old) else []
        number = self.stored.with_hash(old, row.sha256)
        if number is None:
            return
        self._labels.see(number, row.label)
        if row.file is not None and row.file.state is not None:
            self._read_again.append((self.stored.media_ids[number], *row.file.state))

    def _is_missed(self, path: str, there: Set[str]) -> bool:
        """Whether the source lacks the path. False if it is `there` for another directory of the store, or in an
        unreadable folder."""
        folders = takewhile(bool, accumulate(repeat(path), lambda folder, _: folder.rpartition(os.sep)[0]))
        return path not in there and not any(folder in self._closed for folder in islice(folders, 1, None))

    def _look_at(self, refs: Sequence[ImageRef]) -> list[SourceRow]:
        rows = []
        for ref in refs:
            self._watch()
            rows.append(self._row(ref))
        return rows

    def _row(self, ref: ImageRef) -> SourceRow:
        row = SourceRow(ref, ref.directory or self._directory)
        if ref.rejected is not None:
            return row._replace(problem=ref.rejected)
        if row.key in self.stored and not self._run.rehash:
            state = ref.state or file_state(ref.file)
            unread = None if state is None else self.stored.with_state(row.key, state)
            if unread is not None:
                return row._replace(unread=unread)
        try:
            return row._replace(file=hash_file(ref.file, self._max_bytes))
        except ImageRejected as exc:
            return row._replace(problem=exc)
