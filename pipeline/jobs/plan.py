"""Plans a run: what each row of the source needs that the store does not have (`comparison`).

An image whose bytes the store has is not decoded again; a row given twice is not counted again.
"""

from __future__ import annotations

import dataclasses
import json
import os
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from itertools import chain, islice
from pathlib import Path
from typing import Any

import pyarrow as pa

from pipeline.config import Settings
from pipeline.errors import Interrupted, TooManyDirectories, UsageError
from pipeline.extraction.rows import EXTRACT, MANIFEST_SCHEMA, REUSE_MEDIA, REUSE_ROW, SKIP
from pipeline.extraction.sources.folder import ScanCounts
from pipeline.extraction.sources.scan import scan_source, source_kind
from pipeline.jobs.comparison import CHUNK_ROWS, Comparison, RowKey, SourceRow, StoredRows
from pipeline.jobs.session import Session
from pipeline.runtime.stage_times import SCAN
from pipeline.store.operations import Store
from pipeline.store.records import KNOWN_FILES_SCHEMA, DirectoryRow, RunRow, ScanNotes
from pipeline.store.schema import MAX_DIRECTORIES
from pipeline.types import DUPLICATE_ROW, ImageRef, Progress

_LISTED = 1000  # moved and vanished files are listed up to here
_PIXELS_PER_BYTE = 4  # of photographs whose header does not tell how many pixels will be decoded


@dataclass
class PlanCounts:
    """What a scan found: rows of the source, and what it left alone. An unfinished run keeps it."""

    new: int = 0
    changed: int = 0  # at a known path, with other bytes
    already_in: int = 0
    moved: int = 0  # to a new path; nothing else changed
    vanished: int = 0  # since the last run
    forgotten: int = 0  # new or changed, but their only person was forgotten
    moved_files: list[list[str]] = field(default_factory=list)  # old and new path, the first thousand
    vanished_files: list[str] = field(default_factory=list)  # the first thousand
    other_files: int = 0  # that are left alone
    left_alone: dict[str, int] = field(default_factory=dict)  # the same by kind: raw, video, sidecar, hidden, ...
    left_out: dict[str, int] = field(default_factory=dict)  # folders: hidden, thumbnails, excluded
    left_out_folders: list[str] = field(default_factory=list)  # the first thousand of them

    def then(self, later: PlanCounts) -> PlanCounts:
        """With a later scan of the same source, which met all but the rows of the first again."""
        return dataclasses.replace(later, new=self.new + later.new, changed=self.changed + later.changed)

    def with_scan(self, scanned: ScanCounts) -> PlanCounts:
        """With what the scan left alone."""
        return dataclasses.replace(
            self,
            other_files=scanned.other_files,
            left_alone=dict(scanned.left_alone),
            left_out=dict(scanned.left_out),
            left_out_folders=scanned.left_out_folders,
        )

    def __add__(self, other: PlanCounts) -> PlanCounts:
        """With those of another source."""
        return PlanCounts(**{f.name: _sum(getattr(self, f.name), getattr(other, f.name)) for f in fields(self)})


def _sum(one: Any, other: Any) -> Any:
    """Of two numbers, lists or counts."""
    return {**Counter(one) + Counter(other)} if isinstance(one, dict) else one + other


@dataclass(frozen=True)
class Plan:
    """What a scan found, and the run that it planned: None where the store has everything."""

    counts: PlanCounts
    run: RunRow | None = None


def counts_of(run: RunRow) -> PlanCounts:
    """What the scan that planned an unfinished run found; versions that did not write it down leave its rows."""
    return PlanCounts(**run.summary) if run.summary else PlanCounts(new=run.rows or 0)


def rows_of(store: Store, run: RunRow) -> set[RowKey]:
    """The rows of a planned run."""
    table = store.read_manifest_columns(run.run_id, ["path", "directory"])
    return set(zip(table["path"].to_pylist(), table["directory"].to_pylist(), strict=True))


def plan_run(session: Session, counted: Collection[RowKey] = ()) -> Plan:
    """Scans the session's source and writes down a run of what its store does not have.

    Rows that the command has `counted` before are not counted as being in already. Raises UsageError without a source,
    InputError, TooManyDirectories, and Interrupted once the session's stop is set.
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
        session.settings,
        watcher(session.progress, session.stop),
        counted,
    )
    with session.profiler.times.stage(SCAN):
        refs = scan_source(path, session.settings.source, scanned, leave_out=session.store.path, stop=session.stop)
        batches = planner.batches(source, refs)
        first = next(batches, None)
        if first is not None:
            run, rows = _write_manifest(session, path, source, chain([first], batches))
        counts = planner.counts.with_scan(scanned)
        if planner.notes:
            session.store.note_scan(source, session.account_id, planner.notes)
    if first is None:
        return Plan(counts)
    shards = len(session.store.shard_starts(run)) - 1
    session.store.plan_run(run.run_id, rows, shards, dataclasses.asdict(counts))
    return Plan(counts, session.store.run_row(run.run_id))


def watcher(progress: Progress, stop: threading.Event) -> Callable[[], None]:
    """What a scan calls for each row that is read: shows progress, until somebody stops it."""

    def watch() -> None:
        if stop.is_set():
            raise Interrupted(detail="the scan was not finished, and nothing was changed")
        progress.advance()

    return watch


def _write_manifest(session: Session, path: Path, source: str, batches: Iterator[pa.RecordBatch]) -> tuple[RunRow, int]:
    """A run with its manifest, and the number of its rows."""
    store, directory = session.store, session.request.directory
    limits = {"shard_rows": session.settings.run.shard_rows, "shard_pixels": session.settings.run.shard_pixels}
    settings = {**limits, "match": dataclasses.asdict(session.settings.match)}
    cut_off = session.unfinished_run()
    if cut_off is not None:  # a scan that was cut off: nothing of it counts, not even its settings
        run = store.rebegin_run(cut_off.run_id, source_kind(path), directory, settings)
    else:
        run = store.begin_run(source, source_kind(path), session.account_id, directory, settings)
    return run, store.write_manifest(run.run_id, batches, MANIFEST_SCHEMA, **limits)


class NoStore:
    """What there is to know of a store that is not made yet, or of an account in it."""

    def known_files(self, _source: str, _account_id: int) -> pa.Table:
        return KNOWN_FILES_SCHEMA.empty_table()

    def media_of_hashes(self, _account_id: int, _hashes: Sequence[str]) -> dict[str, int]:
        return {}

    def forgotten_photos(self, _account_id: int, _paths: Sequence[str], _hashes: Sequence[str]) -> set[str]:
        return set()

    def directories(self) -> list[DirectoryRow]:
        return []


@dataclass
class Planner:
    """Turns the source's rows into manifest rows. Memory: about 0.5 KB per row of the source and of its rows in the
    store, and 1 KB per new row of a source that the store has rows of."""

    store: Store | NoStore
    account: str
    account_id: int
    directory: str  # of rows that name none
    settings: Settings
    watch: Callable[[], None] = lambda: None
    counted: Collection[RowKey] = ()
    counts: PlanCounts = field(default_factory=PlanCounts)  # these two are complete after `batches`
    notes: ScanNotes = field(default_factory=ScanNotes)

    def batches(self, source: str, refs: Iterable[ImageRef]) -> Iterator[pa.RecordBatch]:
        """Record batches (MANIFEST_SCHEMA) of the rows that are not in the store yet, in the source's order.

        Raises TooManyDirectories when the account would hold more than it may.
        """
        known = self.store.known_files(source, self.account_id)
        self._stored = StoredRows(known, check_inode=self.settings.run.check_inode)
        self._compared = Comparison(self._stored, self.directory, self.settings, self.watch)
        self._rows: dict[RowKey, tuple[int, str | None]] = {}  # of this run
        self._by_hash: dict[str, int] = {}  # the row of this run that will be extracted
        self._directories = {row.name for row in self.store.directories() if row.account_id == self.account_id}
        self._next_row = 0
        for rows in map(self._not_forgotten, self._fresh(refs)):
            in_store = self.store.media_of_hashes(self.account_id, [row.sha256 for row in rows if row.sha256])
            planned = [self._plan_row(row, in_store) for row in rows]
            if planned:
                yield pa.RecordBatch.from_pylist(planned, MANIFEST_SCHEMA)
        compared = self._compared
        self.notes = compared.notes()
        self.counts.moved, self.counts.vanished = len(compared.moved), len(compared.vanished)
        self.counts.moved_files = [[old, new] for old, _, new in compared.moved[:_LISTED]]
        self.counts.vanished_files = [path for path, _ in compared.vanished[:_LISTED]]

    def _fresh(self, refs: Iterable[ImageRef]) -> Iterator[list[SourceRow]]:
        """The rows that the store does not have, in pieces. Where it has others of the source, all are compared first:
        a file that is new may be one that vanished."""
        chunks = ([row for row in chunk if not self._is_in(row)] for chunk in self._compared.chunks(refs))
        if not len(self._stored):
            return chunks
        rows = iter(self._compared.without_moves([*chain.from_iterable(chunks)]))
        return iter(lambda: [*islice(rows, CHUNK_ROWS)], [])

    def _not_forgotten(self, rows: Sequence[SourceRow]) -> list[SourceRow]:
        """The rows without forgotten photos, of which nothing is written down."""
        hashes = [row.sha256 for row in rows if row.sha256]
        forgotten = self.store.forgotten_photos(self.account_id, [row.ref.path for row in rows], hashes)
        kept = [row for row in rows if row.ref.path not in forgotten and row.sha256 not in forgotten]
        self.counts.forgotten += len(rows) - len(kept)
        return kept

    def _is_in(self, row: SourceRow) -> bool:
        """Whether the store has the row. Counts it."""
        stored = self._compared.is_stored(row)
        self.counts.already_in += stored and row.key not in self.counted
        return stored

    def _plan_row(self, hashed: SourceRow, in_store: dict[str, int]) -> dict[str, Any]:
        self._count(hashed)
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
            "bytes": hashed.file and hashed.file.bytes,
        }
        if hashed.file is not None and hashed.file.state is not None:
            row.update(hashed.file.state._asdict())
        return {**row, **self._action(number, hashed, in_store)}

    def _count(self, row: SourceRow) -> None:
        if row.key in self._stored:
            self.counts.changed += 1
        else:
            self.counts.new += 1
        self._directories.add(row.directory)
        if len(self._directories) > MAX_DIRECTORIES:
            raise TooManyDirectories(account=self.account, count=len(self._directories), limit=MAX_DIRECTORIES)

    def _action(self, number: int, hashed: SourceRow, in_store: dict[str, int]) -> dict[str, Any]:
        file, problem = hashed.file, hashed.problem
        if file is None:
            return {"action": SKIP, "status": problem and problem.status, "reason": problem and problem.reason}
        first, sha256 = self._rows.setdefault(hashed.key, (number, file.sha256))
        if first != number and sha256 == file.sha256:
            return {"action": SKIP, "status": DUPLICATE_ROW, "reason": f"the same file and directory as row {first}"}
        if file.sha256 in self._by_hash:
            return {"action": REUSE_ROW, "source_row": self._by_hash[file.sha256]}
        if file.sha256 in in_store:
            return {"action": REUSE_MEDIA, "source_media": in_store[file.sha256]}
        self._by_hash[file.sha256] = number
        return {"action": EXTRACT, "pixels": _PIXELS_PER_BYTE * file.bytes if file.pixels is None else file.pixels}
