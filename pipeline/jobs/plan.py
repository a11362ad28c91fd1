"""Plans a run: compares the source with the store and decides what each new row needs.

A row is known by its path, its directory and its content (SHA-256). A row that is in already costs nothing; the
bytes of another image cost no decoding; the same row twice is not a new sighting.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import pyarrow as pa

from pipeline.errors import ImageRejected, TooManyDirectories
from pipeline.extraction.images.files import hash_file
from pipeline.extraction.rows import EXTRACT, MANIFEST_SCHEMA, REUSE_MEDIA, REUSE_ROW, SKIP
from pipeline.store.connect import Store
from pipeline.store.records import KNOWN_ROWS_SCHEMA
from pipeline.store.schema import MAX_DIRECTORIES
from pipeline.types import DUPLICATE_ROW, ImageRef

_CHUNK_ROWS = 1024


@dataclass
class PlanCounts:
    """What a scan found, in rows."""

    new: int = 0
    changed: int = 0  # at a known path, with other bytes
    already_in: int = 0


@dataclass(frozen=True)
class _Sight:
    """A row with what reading its file gave."""

    ref: ImageRef
    directory: str
    sha256: str | None
    size: int | None
    problem: ImageRejected | None


@dataclass
class Planner:
    """Turns the source's rows into manifest rows. Memory: about 0.5 KB per row of the source and of its rows
    in the store."""

    client: Store
    account: str
    account_id: int
    directory: str  # of rows that name none
    threads: int
    counts: PlanCounts = field(default_factory=PlanCounts)

    def batches(self, source: str, refs: Iterable[ImageRef]) -> Iterator[pa.RecordBatch]:
        """Record batches (MANIFEST_SCHEMA) of the rows that are not in the store yet, in the source's order.

        Raises TooManyDirectories when the account would hold more than it may.
        """
        self._known = self._known_rows(source)
        self._rows: dict[tuple[str, str], tuple[int, str | None]] = {}  # of this run, by path and directory
        self._by_hash: dict[str, int] = {}  # the row of this run that will be extracted
        self._directories = set(self.client.directories_with_identities(self.account_id))
        self._next_row = 0
        iterator = iter(refs)
        with ThreadPoolExecutor(self.threads, thread_name_prefix="hash") as pool:
            while chunk := list(islice(iterator, _CHUNK_ROWS)):
                rows = self._plan_chunk(list(pool.map(self._look, chunk)))
                if rows:
                    yield pa.RecordBatch.from_pylist(rows, MANIFEST_SCHEMA)

    def _known_rows(self, source: str) -> dict[tuple[str, str], set[str | None]]:
        """The hashes that were committed of each path and directory; None: it could not be read."""
        table = self.client.known_rows(source, self.account_id)
        known: dict[tuple[str, str], set[str | None]] = {}
        for path, directory, sha256 in zip(*(table[c].to_pylist() for c in KNOWN_ROWS_SCHEMA.names), strict=True):
            known.setdefault((path, directory), set()).add(sha256)
        return known

    def _look(self, ref: ImageRef) -> _Sight:
        directory = ref.directory or self.directory
        if ref.rejected is not None:
            return _Sight(ref, directory, None, None, ref.rejected)
        try:
            sha256, size = hash_file(ref.file)
        except ImageRejected as exc:
            return _Sight(ref, directory, None, None, exc)
        return _Sight(ref, directory, sha256, size, None)

    def _plan_chunk(self, sights: Sequence[_Sight]) -> list[dict[str, Any]]:
        fresh = [sight for sight in sights if self._is_new(sight)]
        in_store = self.client.known_media(self.account_id, [s.sha256 for s in fresh if s.sha256])
        return [self._plan_row(sight, in_store) for sight in fresh]

    def _is_new(self, sight: _Sight) -> bool:
        key = (sight.ref.path, sight.directory)
        if key not in self._known:
            self.counts.new += 1
        elif sight.sha256 in self._known[key]:
            self.counts.already_in += 1
            return False
        else:
            self.counts.changed += 1
        self._check_directory(sight.directory)
        return True

    def _check_directory(self, directory: str) -> None:
        self._directories.add(directory)
        if len(self._directories) > MAX_DIRECTORIES:
            raise TooManyDirectories(account=self.account, count=len(self._directories), limit=MAX_DIRECTORIES)

    def _plan_row(self, sight: _Sight, in_store: dict[str, int]) -> dict[str, Any]:
        ref, number = sight.ref, self._next_row
        self._next_row += 1
        row: dict[str, Any] = {
            "row": number,
            "path": ref.path,
            # A refused row is never opened, and its name may be one that no file can have.
            "file": ref.path.encode() if sight.problem else os.fsencode(ref.file),
            "directory": sight.directory,
            "name": ref.name,
            "external_id": ref.external_id,
            "extra": json.dumps(dict(ref.extra), ensure_ascii=False) if ref.extra else None,
            "sha256": sight.sha256,
            "bytes": sight.size,
        }
        return {**row, **self._action(number, sight, in_store)}

    def _action(self, number: int, sight: _Sight, in_store: dict[str, int]) -> dict[str, Any]:
        if sight.problem is not None or sight.sha256 is None:
            problem = sight.problem
            return {"action": SKIP, "status": problem and problem.status, "reason": problem and problem.reason}
        key = (sight.ref.path, sight.directory)
        first, sha256 = self._rows.setdefault(key, (number, sight.sha256))
        if first != number and sha256 == sight.sha256:
            return {"action": SKIP, "status": DUPLICATE_ROW, "reason": f"the same file and directory as row {first}"}
        if sight.sha256 in self._by_hash:
            return {"action": REUSE_ROW, "source_row": self._by_hash[sight.sha256]}
        if sight.sha256 in in_store:
            return {"action": REUSE_MEDIA, "source_media": in_store[sight.sha256]}
        self._by_hash[sight.sha256] = number
        return {"action": EXTRACT}
