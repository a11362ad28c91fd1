"""Compares a source with what the store has of it: which rows are the same, and which are to be planned.

A row is identified by its path, its directory and its content (SHA-256). The content decides, but a file is read only
if its size or times differ from those of the last reading (the quick check of rsync(1)).
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
from pipeline.store import ERASED, KNOWN_FILES_SCHEMA, Label, LabelChange, Move, ReadAgain, ScanNotes, utc_now
from pipeline.types import FileState, ImageRef

RowKey: TypeAlias = tuple[str, str]  # path and directory
Digests: TypeAlias = Callable[[Sequence[Label]], Sequence[str | None]]
CHUNK_ROWS = 1024
_PIECE_ROWS: Final = 16  # that a thread takes at once: handing one over takes as long as hashing a small file
_LABELS_AT_ONCE: Final = 8192  # whose digests are asked for
_HASH_THREADS: Final = 8  # where the settings name no number: reading waits for the disk more than for a core


class SourceRow(NamedTuple):
    """A row of the source, with its hashed file, or the problem with it, or the stored row that it equals, unread."""

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
    """What the store has of a source (`known_files`), by path and directory. Memory: about 0.4 KB a row."""

    def __init__(self, batches: Iterable[pa.RecordBatch], *, check_inode: bool) -> None:
        """Reads one batch (KNOWN_FILES_SCHEMA) at a time."""
        table = pa.Table.from_batches(batches, KNOWN_FILES_SCHEMA)
        self.media_ids: list[int] = table["media_id"].to_pylist()
        self._hashes = table["sha256"].combine_chunks()
        self._gone = table["gone_at"].is_valid().to_numpy()
        self.labels = table["label"].combine_chunks()  # digests
        self._paths, self._directories = (table[name].combine_chunks() for name in ("path", "directory"))
        self._met = bytearray(len(table))  # what is in the source
        states = ("size", "mtime_ns", "ctime_ns", *(["inode"] if check_inode else []))  # as FileState
        self._states = [table[name].fill_null(0).to_numpy() for name in states]
        # A state that was noted later than now tells nothing: the clock went backwards.
        seen = table["seen_at"].fill_null(datetime.max).to_numpy()
        self._tells = table["ctime_ns"].is_valid().to_numpy() & (seen <= np.datetime64(utc_now()))
        self._by_key: dict[RowKey, tuple[int, ...]] = {}
        for number, key in enumerate(zip(table["path"].to_pylist(), table["directory"].to_pylist(), strict=True)):
            self._by_key[key] = (*self._by_key.get(key, ()), number)

    @property
    def paths(self) -> int:
        """How many there are."""
        return len(self._by_key)

    def __contains__(self, key: RowKey) -> bool:
        return key in self._by_key

    def with_state(self, key: RowKey, state: FileState) -> int | None:
        """The number of the row that was read from the file in this state."""
        for number in self.numbers(key):
            known = (column[number] for column in self._states)
            if self._tells[number] and all(old == new for old, new in zip(known, state, strict=False)):
                return number
        return None

    def with_hash(self, key: RowKey, sha256: str | None) -> int | None:
        """The number of the row with these bytes; with None, of one that could not be read either."""
        return next((n for n in self.numbers(key) if self._hashes[n].as_py() == sha256), None)

    def content(self, key: RowKey) -> str | None:
        """The hash of what was last read at a path; None if nothing was."""
        hashes = (self._hashes[number].as_py() for number in reversed(self.numbers(key)))
        return next((sha256 for sha256 in hashes if sha256 is not None), None)

    def meet(self, key: RowKey) -> None:
        """The source has the path."""
        for number in self.numbers(key):
            self._met[number] = True

    def not_met(self) -> Iterator[RowKey]:
        """The paths that the source does not have."""
        return (key for key, numbers in self._by_key.items() if not self._met[numbers[0]])

    def key(self, number: int) -> RowKey:
        """The path and the directory of a row."""
        return self._paths[number].as_py(), self._directories[number].as_py()

    def numbers(self, key: RowKey) -> tuple[int, ...]:
        """The rows of a path: one for each content that it had."""
        return self._by_key.get(key, ())

    def met_paths(self) -> set[str]:
        """The paths that the source has, for whatever directory."""
        return {key[0] for key, numbers in self._by_key.items() if self._met[numbers[0]]}

    def media_of(self, key: RowKey) -> list[int]:
        """The media of a path."""
        return [self.media_ids[number] for number in self._by_key[key]]

    def is_gone(self, number: int) -> bool:
        """Whether an earlier run missed the row."""
        return bool(self._gone[number])

    def was_missed(self, key: RowKey) -> bool:
        """Whether an earlier run missed the path."""
        return all(self._gone[number] for number in self._by_key[key])


class ChangedLabels:
    """Compares labels with the stored ones by their digests, many at a time. If several rows of the source are one
    stored row, the first counts, as when it was planned."""

    def __init__(self, stored: pa.Array, digests: Digests) -> None:
        """`stored`: the digest of each stored row, as `known_files` has them; `digests` makes those of labels."""
        self._stored = stored
        self._digests = digests
        self._has_none = stored.is_null().to_numpy(zero_copy_only=False).tobytes()
        self._left_out = bytearray(pc.equal(stored, ERASED).fill_null(False).to_numpy(zero_copy_only=False))
        self._waiting: dict[int, tuple[Label, bool]] = {}
        self._changes: dict[int, tuple[Label, bool]] = {}

    def see(self, number: int, label: Label, *, same_bytes: bool = True) -> None:
        """The source has this stored row with this label now, and with the same bytes or others."""
        if self._left_out[number]:
            return
        self._left_out[number] = True
        if not self._has_none[number] or label != (None, None):
            self._waiting[number] = label, same_bytes
            if len(self._waiting) >= _LABELS_AT_ONCE:
                self._compare()

    def changes(self) -> Mapping[int, tuple[Label, bool]]:
        """Number of the stored row -> its label now, and whether its bytes are the same."""
        self._compare()
        return self._changes

    def same_before(self, one: int, other: int) -> bool:
        """Whether two stored rows had the same label."""
        return bool(self._stored[one].as_py() == self._stored[other].as_py())

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
    """Compares the rows of a source with those that are stored of it. `without_moves` completes what it finds."""

    def __init__(
        self, stored: StoredRows, directory: str, settings: Settings, watch: Callable[[], None], digests: Digests
    ) -> None:
        """`directory`: of rows that name none. `watch` is called for each row, from several threads. `digests`: those
        of labels, as the store has them."""
        self.stored = stored
        self._labels = ChangedLabels(stored.labels, digests)
        self.moved: list[Move] = []
        self.missing: list[RowKey] = []
        self.vanished: list[RowKey] = []  # those of them that no earlier run missed
        self.back = 0  # photos that one missed, and that are where they were
        self._read_again: list[ReadAgain] = []
        self._back: list[int] = []
        self._closed: set[str] = set()  # paths that could not be read; of a folder, what is in it is not known
        self._directory = directory
        self._watch = watch
        self._run = settings.run
        self._max_bytes = settings.decode.max_bytes

    def chunks(self, refs: Iterable[ImageRef]) -> Iterator[list[SourceRow]]:
        """The rows in their order, except those whose file was there before and is missing: the source lacks them."""
        iterator = iter(refs)
        with (
            ThreadPoolExecutor(self._run.threads or _HASH_THREADS, thread_name_prefix="hash") as pool,
            ThreadPoolExecutor(self._run.reads, thread_name_prefix="bucket") as reads,
        ):
            while chunk := list(islice(iterator, CHUNK_ROWS)):
                far = any(is_address(ref.file) for ref in chunk)
                size = 1 if far else _PIECE_ROWS  # what waits for a bucket is not to wait for another object as well
                pieces = [chunk[start : start + size] for start in range(0, len(chunk), size)]
                rows = chain.from_iterable((reads if far else pool).map(self._look_at, pieces))
                yield [row for row in rows if not self._is_missing(row)]

    def is_stored(self, row: SourceRow) -> bool:
        """Whether the store has the row with this content."""
        if row.problem is not None:
            self._closed.add(row.ref.path)
        self.stored.meet(row.key)
        number = self.stored.with_hash(row.key, row.sha256) if row.unread is None else row.unread
        if number is None:
            return False
        if self.stored.is_gone(number) and row.problem is None:
            self._back.append(self.stored.media_ids[number])
            self.back += 1
        if row.file is not None and row.file.state is not None:
            self._read_again.append((self.stored.media_ids[number], *row.file.state))
        self._labels.see(number, row.label)
        return True

    def without_moves(self, fresh: Sequence[SourceRow]) -> list[SourceRow]:
        """Those of the `fresh` rows that no vanished file was moved to; `fresh` are all rows of the source that are not
        stored. Equal files are paired in the order of their paths."""
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
        """What the store is to keep of the comparison."""
        marked = self.vanished if self._run.on_missing != KEEP else []
        gone = [media_id for key in marked for media_id in self.stored.media_of(key)]
        return ScanNotes(self._read_again, self.moved, gone, self._back)

    def changed_labels(self) -> dict[str, list[LabelChange]]:
        """Of each directory the stored photos with another label than before: also those with bytes that their paths
        had earlier and with the same label."""
        found: dict[str, list[LabelChange]] = {}
        changes = self._labels.changes()
        for number, (label, same_bytes) in changes.items():
            key = self.stored.key(number)
            versions = (other for other in self.stored.numbers(key) if other not in changes or other == number)
            for version in versions:
                if self._labels.same_before(version, number):
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
        """Whether the source lacks the path. It does not if the path is `there` for another directory of the store, or
        in a folder that cannot be read."""
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
