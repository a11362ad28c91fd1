"""Plans a run: what each row of the source needs that the store does not have (`comparison`).

An image whose bytes the store has is not decoded again; a row given twice is not counted again.
"""

from __future__ import annotations

import dataclasses
import json
import os
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any, TypeAlias

import pyarrow as pa

from pipeline.config import Settings
from pipeline.errors import Interrupted, TooManyDirectories, UsageError
from pipeline.extraction.rows import EXTRACT, MANIFEST_SCHEMA, REUSE_MEDIA, REUSE_ROW, SKIP
from pipeline.extraction.sources.folder import ScanCounts
from pipeline.extraction.sources.scan import scan_source, source_kind
from pipeline.jobs.comparison import CHUNK_ROWS, Comparison, RowKey, SourceRow, StoredRows
from pipeline.jobs.followed_labels import follow_labels
from pipeline.jobs.missing import MissingPhotos
from pipeline.jobs.plan_counts import LISTED, PlanCounts
from pipeline.jobs.session import Session
from pipeline.jobs.store import Known, Runs, Store
from pipeline.runtime.stage_times import SCAN
from pipeline.store import (
    KNOWN_FILES_SCHEMA,
    MAX_DIRECTORIES,
    AccountSummary,
    Label,
    LabelChange,
    RunRow,
    ScanNotes,
    SourceMove,
    SourceSummary,
)
from pipeline.types import DUPLICATE_ROW, ImageRef, Progress, Source

Forget: TypeAlias = Callable[[Comparison, PlanCounts], MissingPhotos | None]
_PIXELS_PER_BYTE = 4  # of photographs whose header does not tell how many pixels will be decoded


@dataclass(frozen=True)
class Plan:
    """What a scan found, and the run that it planned: None where nothing has changed. One without rows has only to be
    finished: photos moved, say, and none is to be extracted."""

    counts: PlanCounts
    run: RunRow | None = None
    missing: MissingPhotos | None = None  # that are to be forgotten once the run's photos are in


def counts_of(run: RunRow) -> PlanCounts:
    """What the scan that planned an unfinished run found; versions that did not write it down leave its rows."""
    return PlanCounts(**run.summary) if run.summary else PlanCounts(new=run.rows or 0)


def rows_of(store: Store, run: RunRow) -> set[RowKey]:
    """The rows of a planned run."""
    table = store.read_manifest_columns(run.run_id, ["path", "directory"])
    return set(zip(table["path"].to_pylist(), table["directory"].to_pylist(), strict=True))


def plan_run(
    session: Session,
    counted: Collection[RowKey] = (),
    moved: SourceMove | None = None,
    forget: Forget = lambda *_: None,
) -> Plan:
    """Scans the session's source, which may have `moved`, and writes down a run of what its store does not have.

    Rows that the command has `counted` before are not counted as being in already. `forget` chooses what of the missing
    photos goes. Raises UsageError without a source, InputError, TooManyDirectories, and Interrupted once the session's
    stop is set; then nothing has moved.
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
        moved,
        forget,
    )
    with session.profiler.times.stage(SCAN):
        refs = scan_source(path, session.settings.source, scanned, leave_out=session.store.path, stop=session.stop)
        batches = planner.batches(source, refs)
        first = next(batches, None)
        only_labels = first is None and not planner.notes.changes and planner.missing is None
        followed = PlanCounts()
        if only_labels:
            if planner.notes:
                session.store.end_scan(source, session.account_id, planner.notes)
            followed = follow_labels(session, planner.labels)
            if followed.labels_changed == followed.unsettled:
                return Plan(planner.counts.with_scan(scanned) + followed)
        run, rows = _write_manifest(session, path, source, chain([] if first is None else [first], batches))
    counts, shards = planner.counts.with_scan(scanned) + followed, len(session.store.shard_starts(run)) - 1
    planned = dataclasses.replace(run, rows=rows, shards=shards, summary=counts.kept())
    planned_run = session.store.end_scan(source, session.account_id, planner.notes, planned)
    if not only_labels:  # after it, so that photos are found where they are now
        counts += follow_labels(session, planner.labels)
    return Plan(counts, planned_run, planner.missing)


def watcher(progress: Progress, stop: threading.Event) -> Callable[[], None]:
    """What a scan calls for each row that is read: shows progress, until somebody stops it."""

    def watch() -> None:
        if stop.is_set():
            raise Interrupted(detail="the scan was not finished, and nothing was changed")
        progress.advance()

    return watch


def _write_manifest(
    session: Session, path: Source, source: str, batches: Iterator[pa.RecordBatch]
) -> tuple[RunRow, int]:
    """A run with its manifest, and the number of its rows."""
    store, directory = session.store, session.request.directory
    limits = {"shard_rows": session.settings.run.shard_rows, "shard_pixels": session.settings.run.shard_pixels}
    settings = {**limits, "match": dataclasses.asdict(session.settings.match)}
    run = store.begin_run(source, source_kind(path), session.account_id, directory, settings)
    return run, store.write_manifest(run.run_id, batches, MANIFEST_SCHEMA, **limits)


class NoStore:
    """What there is to know of a store that is not made yet, or of an account in it."""

    def accounts(self) -> list[AccountSummary]:
        return []

    def runs(self, _source: str, _account_id: int) -> Runs:
        return Runs(None, None, set(), has_page=False)

    def sources(self, _account_id: int) -> list[SourceSummary]:
        return []

    def known_files(self, _source: str, _account_id: int) -> pa.RecordBatchReader:
        return KNOWN_FILES_SCHEMA.empty_table().to_reader()

    def known(
        self, _account_id: int, _paths: Sequence[str] = (), _hashes: Sequence[str] = (), labels: Sequence[Label] = ()
    ) -> Known:
        return Known({}, set(), [None] * len(labels))


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
    moved: SourceMove | None = None  # the source, since it was scanned last
    forget: Forget = lambda *_: None
    counts: PlanCounts = field(default_factory=PlanCounts)  # these four are complete after `batches`
    notes: ScanNotes = field(default_factory=ScanNotes)
    missing: MissingPhotos | None = None
    labels: Mapping[str, Sequence[LabelChange]] = field(default_factory=dict)  # that changed, by directory

    def batches(self, source: str, refs: Iterable[ImageRef]) -> Iterator[pa.RecordBatch]:
        """Record batches (MANIFEST_SCHEMA) of the rows that are not in the store yet, in the source's order.

        Raises TooManyDirectories when the account would hold more than it may.
        """
        self._stored = StoredRows(self._known(source), check_inode=self.settings.run.check_inode)
        self._compared = Comparison(self._stored, self.directory, self.settings, self.watch, self._label_digests)
        self._rows: dict[RowKey, tuple[int, str | None]] = {}  # of this run
        self._by_hash: dict[str, int] = {}  # the row of this run that will be extracted
        self._replaced: set[int] = set()  # media that leave with a row of this run
        accounts = (row for row in self.store.accounts() if row.account_id == self.account_id)
        self._directories = {directory.name for row in accounts for directory in row.directories}
        self._forgotten_before: list[str] = []  # paths of files that were forgotten where their source was
        self._next_row = 0
        for rows in self._fresh(refs):
            known = self._known_of(rows)
            planned = [self._plan_row(row, known.media) for row in self._not_forgotten(rows, known.forgotten)]
            if planned:
                yield pa.RecordBatch.from_pylist(planned, MANIFEST_SCHEMA)
        compared = self._compared
        self.labels = compared.changed_labels()
        self.notes = dataclasses.replace(compared.notes(), source=self.moved, forgotten=self._forgotten_before)
        self.counts.moved_sources = [[self.moved.old, source]] if self.moved else []
        self.counts.moved, self.counts.vanished = len(compared.moved), len(compared.vanished)
        self.counts.back = compared.back
        self.counts.moved_files = [[old, new] for old, _, new in compared.moved[:LISTED]]
        self.counts.vanished_files = [path for path, _ in compared.vanished[:LISTED]]
        self.missing = self.forget(compared, self.counts)

    def _known(self, source: str) -> Iterator[pa.RecordBatch]:
        """The rows that the store has of the source, with the paths that they have now."""
        if self.moved is None:
            yield from self.store.known_files(source, self.account_id)
            return
        for rows in self.store.known_files(self.moved.old, self.account_id):
            paths = pa.array([self.moved.path(path) for path in rows["path"].to_pylist()], pa.string())
            yield rows.set_column(rows.schema.get_field_index("path"), "path", paths)

    def _label_digests(self, labels: Sequence[Label]) -> Sequence[str | None]:
        return self.store.known(self.account_id, labels=labels).digests

    def _fresh(self, refs: Iterable[ImageRef]) -> Iterator[list[SourceRow]]:
        """The rows that the store does not have, in pieces. Where it has others of the source, all are compared first:
        a file that is new may be one that vanished."""
        chunks = ([row for row in chunk if not self._is_in(row)] for chunk in self._compared.chunks(refs))
        if not len(self._stored):
            return chunks
        rows = iter(self._compared.without_moves([*chain.from_iterable(chunks)]))
        return iter(lambda: [*islice(rows, CHUNK_ROWS)], [])

    def _known_of(self, rows: Sequence[SourceRow]) -> Known:
        """What the store knows of these rows; of a moved source also by the paths that they had."""
        hashes, paths = [row.sha256 for row in rows if row.sha256], [row.ref.path for row in rows]
        former = {path: self.moved.former(path) for path in paths} if self.moved else {}
        known = self.store.known(self.account_id, [*paths, *former.values()], hashes)
        before = [path for path, old in former.items() if old in known.forgotten]
        self._forgotten_before += before
        known.forgotten.update(before)
        return known

    def _not_forgotten(self, rows: Sequence[SourceRow], forgotten: Set[str]) -> list[SourceRow]:
        """The rows without forgotten photos, of which nothing is written down."""
        kept, left = list[SourceRow](), list[str]()
        for row in rows:
            if row.ref.path in forgotten or row.sha256 in forgotten:
                left.append(row.ref.path)
            else:
                kept.append(row)
        self.counts.forgotten += len(left)
        _list(self.counts.forgotten_files, left)
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
            _list(self.counts.changed_files, [row.ref.path])
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
        source = in_store.get(file.sha256)
        source = None if source in self._replaced else source
        replaces = self._stored.media_of(hashed.key) if first == number and hashed.key in self._stored else []
        self._replaced.update(replaces)
        if file.sha256 in self._by_hash:
            action = {"action": REUSE_ROW, "source_row": self._by_hash[file.sha256]}
        elif source is not None:
            action = {"action": REUSE_MEDIA, "source_media": source}
        else:
            self._by_hash[file.sha256] = number
            pixels = _PIXELS_PER_BYTE * file.bytes if file.pixels is None else file.pixels
            action = {"action": EXTRACT, "pixels": pixels}
        return {**action, "replaces": replaces or None}


def _list(files: list[str], more: Sequence[str]) -> None:
    """Adds to a list of which the first are enough."""
    files += more[: max(LISTED - len(files), 0)]
