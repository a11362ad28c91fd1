"""Plans a run: compares the source with the store and decides what each new row needs.

A row is known by its path, its directory and its content (SHA-256). A row that the store has costs nothing more; an
image whose bytes the store has is not decoded again; a row given twice is not counted again.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import Any

import pyarrow as pa

from pipeline.errors import ImageRejected, Interrupted, TooManyDirectories, UsageError
from pipeline.extraction.images.files import hash_file
from pipeline.extraction.rows import EXTRACT, MANIFEST_SCHEMA, REUSE_MEDIA, REUSE_ROW, SKIP
from pipeline.extraction.sources.folder import ScanCounts
from pipeline.extraction.sources.scan import scan_source, source_kind
from pipeline.jobs.session import Session
from pipeline.runtime.stage_times import SCAN
from pipeline.store.operations import Store
from pipeline.store.records import RunRow
from pipeline.store.schema import MAX_DIRECTORIES
from pipeline.types import DUPLICATE_ROW, ImageRef

_CHUNK_ROWS = 1024
_HASH_THREADS = 8  # where the settings name no number: reading waits for the disk more than for a core


@dataclass
class PlanCounts:
    """Rows of the source, by what a scan found."""

    new: int = 0
    changed: int = 0  # at a known path, with other bytes
    already_in: int = 0


@dataclass(frozen=True)
class Plan:
    """What a scan found, and the run that it planned: None where the store has everything."""

    run: RunRow | None = None
    counts: PlanCounts = field(default_factory=PlanCounts)
    other_files: int = 0  # in the source's folder, and no images


def plan_run(session: Session) -> Plan:
    """Scans the session's source and writes down a run of what its store does not have.

    Raises UsageError without a source, InputError, TooManyDirectories, and Interrupted once the session's stop is set.
    """
    path, source = session.request.source, session.source
    if path is None or source is None:
        raise UsageError(message="Name a folder or a manifest to scan.")
    session.progress.start("scan", None)
    scanned = ScanCounts()
    planner = Planner(
        session.store,
        session.account,
        session.account_id,
        session.request.directory,
        session.settings.run.threads or _HASH_THREADS,
    )
    with session.profiler.times.stage(SCAN):
        batches = planner.batches(source, _watched_rows(session, path, scanned))
        first = next(batches, None)
        run = None if first is None else _write_plan(session, path, source, chain([first], batches))
    return Plan(run, planner.counts, scanned.other_files)


def _watched_rows(session: Session, source: Path, scanned: ScanCounts) -> Iterator[ImageRef]:
    """The rows of the source, with progress, until somebody stops the scan."""
    for ref in scan_source(source, session.settings.source, scanned, leave_out=session.store.path):
        if session.stop.is_set():
            raise Interrupted(detail="the scan was not finished, and nothing was changed")
        session.progress.advance()
        yield ref


def _write_plan(session: Session, path: Path, source: str, batches: Iterator[pa.RecordBatch]) -> RunRow:
    store, directory = session.store, session.request.directory
    shard_rows = session.settings.run.shard_rows
    settings = {"shard_rows": shard_rows, "match": dataclasses.asdict(session.settings.match)}
    cut_off = session.unfinished_run()
    if cut_off is not None:  # a scan that was cut off: nothing of it counts, not even its settings
        run = store.rebegin_run(cut_off.run_id, source_kind(path), directory, settings)
    else:
        run = store.begin_run(source, source_kind(path), session.account_id, directory, settings)
    rows = store.write_manifest(run.run_id, batches, MANIFEST_SCHEMA, shard_rows=shard_rows)
    store.plan_run(run.run_id, rows, -(-rows // shard_rows))
    return store.run_row(run.run_id)


@dataclass(frozen=True)
class _HashedRow:
    """A row of the source with its file's hash and size in bytes, or the problem with it."""

    ref: ImageRef
    directory: str
    sha256: str | None = None
    size: int | None = None
    problem: ImageRejected | None = None


@dataclass
class Planner:
    """Turns the source's rows into manifest rows. Memory: about 0.5 KB per row of the source and of its rows
    in the store."""

    store: Store
    account: str
    account_id: int
    directory: str  # of rows that name none
    threads: int
    counts: PlanCounts = field(default_factory=PlanCounts)

    def batches(self, source: str, refs: Iterable[ImageRef]) -> Iterator[pa.RecordBatch]:
        """Record batches (MANIFEST_SCHEMA) of the rows that are not in the store yet, in the source's order.

        Raises TooManyDirectories when the account would hold more than it may.
        """
        self._stored = self._stored_hashes(source)
        self._rows: dict[tuple[str, str], tuple[int, str | None]] = {}  # of this run, by path and directory
        self._by_hash: dict[str, int] = {}  # the row of this run that will be extracted
        self._directories = {row.name for row in self.store.directories() if row.account_id == self.account_id}
        self._next_row = 0
        iterator = iter(refs)
        with ThreadPoolExecutor(self.threads, thread_name_prefix="hash") as pool:
            while chunk := list(islice(iterator, _CHUNK_ROWS)):
                rows = self._plan_chunk(list(pool.map(self._hash, chunk)))
                if rows:
                    yield pa.RecordBatch.from_pylist(rows, MANIFEST_SCHEMA)

    def _stored_hashes(self, source: str) -> dict[tuple[str, str], set[str | None]]:
        """The hashes that were committed of each path and directory; None: it could not be read."""
        table = self.store.committed_files(source, self.account_id)
        hashes: dict[tuple[str, str], set[str | None]] = {}
        for path, directory, sha256 in zip(*(column.to_pylist() for column in table.columns), strict=True):
            hashes.setdefault((path, directory), set()).add(sha256)
        return hashes

    def _hash(self, ref: ImageRef) -> _HashedRow:
        directory = ref.directory or self.directory
        if ref.rejected is not None:
            return _HashedRow(ref, directory, problem=ref.rejected)
        try:
            return _HashedRow(ref, directory, *hash_file(ref.file))
        except ImageRejected as exc:
            return _HashedRow(ref, directory, problem=exc)

    def _plan_chunk(self, chunk: Sequence[_HashedRow]) -> list[dict[str, Any]]:
        fresh = [hashed for hashed in chunk if self._is_new(hashed)]
        in_store = self.store.media_of_hashes(self.account_id, [s.sha256 for s in fresh if s.sha256])
        return [self._plan_row(hashed, in_store) for hashed in fresh]

    def _is_new(self, hashed: _HashedRow) -> bool:
        """Whether the store does not have the row. Counts it."""
        key = (hashed.ref.path, hashed.directory)
        if key not in self._stored:
            self.counts.new += 1
        elif hashed.sha256 in self._stored[key]:
            self.counts.already_in += 1
            return False
        else:
            self.counts.changed += 1
        self._directories.add(hashed.directory)
        if len(self._directories) > MAX_DIRECTORIES:
            raise TooManyDirectories(account=self.account, count=len(self._directories), limit=MAX_DIRECTORIES)
        return True

    def _plan_row(self, hashed: _HashedRow, in_store: dict[str, int]) -> dict[str, Any]:
        ref, number = hashed.ref, self._next_row
        self._next_row += 1
        row: dict[str, Any] = {
            "row": number,
            "path": ref.path,
            # A refused row is never opened, and its name may be one that no file can have.
            "file": ref.path.encode() if hashed.problem else os.fsencode(ref.file),
            "directory": hashed.directory,
            "name": ref.name,
            "external_id": ref.external_id,
            "extra": json.dumps(dict(ref.extra), ensure_ascii=False) if ref.extra else None,
            "sha256": hashed.sha256,
            "bytes": hashed.size,
        }
        return {**row, **self._action(number, hashed, in_store)}

    def _action(self, number: int, hashed: _HashedRow, in_store: dict[str, int]) -> dict[str, Any]:
        if hashed.problem is not None or hashed.sha256 is None:
            problem = hashed.problem
            return {"action": SKIP, "status": problem and problem.status, "reason": problem and problem.reason}
        key = (hashed.ref.path, hashed.directory)
        first, sha256 = self._rows.setdefault(key, (number, hashed.sha256))
        if first != number and sha256 == hashed.sha256:
            return {"action": SKIP, "status": DUPLICATE_ROW, "reason": f"the same file and directory as row {first}"}
        if hashed.sha256 in self._by_hash:
            return {"action": REUSE_ROW, "source_row": self._by_hash[hashed.sha256]}
        if hashed.sha256 in in_store:
            return {"action": REUSE_MEDIA, "source_media": in_store[hashed.sha256]}
        self._by_hash[hashed.sha256] = number
        return {"action": EXTRACT}
