"""What a source has against what the store has of it: which rows are the same, which are to be planned.

A row is known by its path, its directory and its content (SHA-256). The content decides, but a file is read only where
its size and times are not those of the last reading (the quick check of rsync(1)).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from itertools import chain, islice
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from pipeline.config import Settings
from pipeline.errors import ImageRejected
from pipeline.extraction.images.files import FileState, HashedFile, file_state, hash_file
from pipeline.store.catalog.opening import utc_now
from pipeline.store.records import ReadAgain
from pipeline.types import ImageRef

RowKey: TypeAlias = tuple[str, str]  # path and directory
_CHUNK_ROWS = 1024
_PIECE_ROWS: Final = 16  # that a thread takes at once: handing one over takes as long as hashing a small file
_HASH_THREADS: Final = 8  # where the settings name no number: reading waits for the disk more than for a core


class SourceRow(NamedTuple):
    """A row of the source: with its hashed file, or the problem with it, or, unread, the stored row that it equals."""

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


class StoredRows:
    """What the store has of a source (`known_files`), by path and directory. Memory: about 0.4 KB a row."""

    def __init__(self, table: pa.Table, *, check_inode: bool) -> None:
        self.media_ids: list[int] = table["media_id"].to_pylist()
        self._hashes = table["sha256"].combine_chunks()
        states = ("size", "mtime_ns", "ctime_ns", *(["inode"] if check_inode else []))  # as FileState
        self._states = [table[name].fill_null(0).to_numpy() for name in states]
        # A state that was noted later than now tells nothing: the clock went backwards.
        seen = table["seen_at"].fill_null(datetime.max).to_numpy()
        self._tells = table["ctime_ns"].is_valid().to_numpy() & (seen <= np.datetime64(utc_now()))
        self._by_key: dict[RowKey, tuple[int, ...]] = {}
        for number, key in enumerate(zip(table["path"].to_pylist(), table["directory"].to_pylist(), strict=True)):
            self._by_key[key] = (*self._by_key.get(key, ()), number)

    def __contains__(self, key: RowKey) -> bool:
        return key in self._by_key

    def with_state(self, key: RowKey, state: FileState) -> int | None:
        """The number of the row that was read from the file in this state."""
        for number in self._by_key.get(key, ()):
            known = (column[number] for column in self._states)
            if self._tells[number] and all(old == new for old, new in zip(known, state, strict=False)):
                return number
        return None

    def with_hash(self, key: RowKey, sha256: str | None) -> int | None:
        """The number of the row with these bytes; of None: of one that could not be read either."""
        return next((n for n in self._by_key.get(key, ()) if self._hashes[n].as_py() == sha256), None)


class Comparison:
    """Compares the rows of a source with those that are stored of it."""

    def __init__(self, stored: StoredRows, directory: str, settings: Settings, watch: Callable[[], None]) -> None:
        """`directory`: of rows that name none. `watch` is called for each row, from several threads."""
        self.stored = stored
        self.read_again: list[ReadAgain] = []  # what was read, and is what the store has
        self._directory = directory
        self._watch = watch
        self._threads = settings.run.threads or _HASH_THREADS
        self._max_bytes = settings.decode.max_bytes
        self._rehash = settings.run.rehash

    def chunks(self, refs: Iterable[ImageRef]) -> Iterator[list[SourceRow]]:
        """The rows, in their order."""
        iterator = iter(refs)
        with ThreadPoolExecutor(self._threads, thread_name_prefix="hash") as pool:
            while chunk := list(islice(iterator, _CHUNK_ROWS)):
                pieces = [chunk[start : start + _PIECE_ROWS] for start in range(0, len(chunk), _PIECE_ROWS)]
                yield [*chain.from_iterable(pool.map(self._look_at, pieces))]

    def is_stored(self, row: SourceRow) -> bool:
        """Whether the store has the row with this content."""
        if row.unread is not None:
            return True
        number = self.stored.with_hash(row.key, row.sha256)
        if number is not None and row.file is not None and row.file.state is not None:
            self.read_again.append((self.stored.media_ids[number], *row.file.state))
        return number is not None

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
        if row.key in self.stored and not self._rehash:
            state = file_state(ref.file)
            unread = None if state is None else self.stored.with_state(row.key, state)
            if unread is not None:
                return row._replace(unread=unread)
        try:
            return row._replace(file=hash_file(ref.file, self._max_bytes))
        except ImageRejected as exc:
            return row._replace(problem=exc)
