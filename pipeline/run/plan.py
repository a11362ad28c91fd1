"""Plans a run: which rows of the source the store lacks (`changed_files`).

Images whose bytes are stored are not decoded again; a row given twice counts once.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from itertools import chain, islice
from typing import Any

import pyarrow as pa

from pipeline.errors import Interrupted, TooManyDirectories
from pipeline.extraction.rows import EXTRACT, MANIFEST_SCHEMA, REUSE_MEDIA, REUSE_ROW, SKIP
from pipeline.extraction.sources.folder import ScanCounts
from pipeline.extraction.sources.scan import scan_source, source_kind
from pipeline.jobs.plan_counts import LISTED, PlanCounts
from pipeline.jobs.store import Known, Store
from pipeline.run.changed_files import CHUNK_ROWS, Comparison, RowKey, SourceRow, StoredRows
from pipeline.run.missing import MissingPhotos, missing_to_forget
from pipeline.run.session import Session, source_name
from pipeline.runtime.stage_times import SCAN
from pipeline.store import (
    MAX_DIRECTORIES,
    CorrectionRequest,
    Label,
    LabelChange,
    RunRow,
    ScanNotes,
    SourceMove,
    forgotten,
)
from pipeline.types import DUPLICATE_ROW, ImageRef

_PIXELS_PER_BYTE = 4  # for photographs whose header lacks the size in pixels


def counts_of(run: RunRow) -> PlanCounts:
    """Returns the scan's counts. Earlier versions stored none: then all rows count as new."""
    return PlanCounts(**run.summary) if run.summary else PlanCounts(new=run.rows or 0)


def rows_of(store: Store, run: RunRow) -> set[RowKey]:
    """The rows of a planned run."""
    table = store.read_manifest_columns(run.run_id, ["path", "directory"])
    return set(zip(table["path"].to_pylist(), table["directory"].to_pylist(), strict=True))


class Plan:
    """Collects the source's rows that the store lacks, as manifest rows and then as a run. Memory: about 0.5 KB per row
    of the source and per stored row, plus 1 KB per new row if the store has rows of the source."""

    def __init__(
        self,
        session: Session,
        counted: Collection[RowKey] = (),
        moved: SourceMove | None = None,
        *,
        forgets: bool = False,
    ) -> None:
        """`counted`: rows already counted as imported. `moved`: the source's move since its last scan. `forgets`:
        choose missing photos to forget."""
        self._session = session
        self._store = session.store
        self._counted = counted
        self._moved = moved
        self._forgets = forgets
        self.run: RunRow | None = None  # made by `write`
        # Complete after `scan`:
        self.counts = PlanCounts()
        self.notes = ScanNotes()
        self.missing: MissingPhotos | None = None  # to forget once the run's photos are committed
        self.labels: Mapping[str, Sequence[LabelChange]] = {}  # changed ones, by directory

    def write(self) -> None:
        """Scans, and creates a `run` if anything changed. A run without rows, such as for moved photos, only needs
        finishing.

        Raises UsageError without a source, InputError, TooManyDirectories, and Interrupted once the session's stop is
        set, with nothing changed.
        """
        session, source = self._session, source_name(self._session.to_scan)
        with session.profiler.times.stage(SCAN):
            batches = self.scan()
            first = next(batches, None)
            only_labels = first is None and not self.notes.changes and self.missing is None
            if only_labels:
                if self.notes:
                    session.store.end_scan(source, session.account_id, self.notes)
                followed = self._follow_labels()
                if followed.labels_changed == followed.unsettled:
                    return
            run, rows = self._write_manifest(source, chain([] if first is None else [first], batches))
        shards = len(session.store.shard_starts(run)) - 1
        planned = dataclasses.replace(run, rows=rows, shards=shards, summary=self.counts.kept())
        self.run = session.store.end_scan(source, session.account_id, self.notes, planned)
        if not only_labels:  # after `end_scan`, which updates the photos' paths
            self._follow_labels()

    def _write_manifest(self, source: str, batches: Iterator[pa.RecordBatch]) -> tuple[RunRow, int]:
        """Begins a run and writes its manifest; returns the run and its number of rows."""
        session = self._session
        limits = {"shard_rows": session.settings.run.shard_rows, "shard_pixels": session.settings.run.shard_pixels}
        match = dataclasses.asdict(session.settings.match)
        settings = {**limits, "match": match, "threshold_given": "match.threshold" in session.settings.given}
        kind, directory = source_kind(session.to_scan), session.request.directory
        run = session.store.begin_run(source, kind, session.account_id, directory, settings)
        return run, session.store.write_manifest(run.run_id, batches, MANIFEST_SCHEMA, **limits)

    def label_counts(self) -> PlanCounts:
        """How many labels changed, and how many of these were removed, of photos with unchanged bytes."""
        changed = [any(label) for labels in self.labels.values() for _, *label, same_bytes in labels if same_bytes]
        return PlanCounts(labels_changed=len(changed), labels_removed=changed.count(False))

    def _follow_labels(self) -> PlanCounts:
        """Applies changed labels, one correction per directory; counts and returns the effects. Raises StoreError: the
        next run then does the rest."""
        followed = self.label_counts()
        for directory, labels in self.labels.items():
            account_id = self._session.account_id
            request = CorrectionRequest(
                account_id, directory, "label", origin="label", labels=labels, gate=self._session.settings.match
            )
            answer = self._store.correct(request)
            if answer.labels is not None:
                followed += PlanCounts(**dataclasses.asdict(answer.labels))
        self.counts += followed
        return followed

    def scan(self) -> Iterator[pa.RecordBatch]:
        """Yields `batches` of the session's source."""
        session, scanned = self._session, ScanCounts()
        session.progress.start("scan", None)
        refs = scan_source(
            session.to_scan, session.settings.source, scanned, leave_out=session.request.store, stop=session.stop
        )
        yield from self.batches(refs)
        counts = self.counts
        counts.other_files, counts.left_alone = scanned.left_alone.total(), dict(scanned.left_alone)
        counts.left_out, counts.left_out_folders = dict(scanned.left_out), scanned.left_out_folders

    def batches(self, refs: Iterable[ImageRef]) -> Iterator[pa.RecordBatch]:
        """Yields record batches (MANIFEST_SCHEMA) of the rows that the store lacks, in the source's order. Raises
        TooManyDirectories if the account would exceed its limit."""
        session = self._session
        self._stored = StoredRows(self._known(), check_inode=session.settings.run.check_inode)
        directory = session.request.directory  # of rows that name none
        self._compared = Comparison(self._stored, directory, session.settings, self._watch, self._label_digests)
        self._rows: dict[RowKey, tuple[int, str | None]] = {}  # of this run
        self._by_hash: dict[str, int] = {}  # the row to extract
        self._replaced: set[int] = set()  # media that a row of this run replaces
        accounts = (row for row in self._store.accounts() if row.account_id == session.account_id)
        self._directories = {directory.name for row in accounts for directory in row.directories}
        self._forgotten_before: list[str] = []  # paths of files forgotten at their source's old place
        self._next_row = 0
        for rows in self._fresh(refs):
            known = self._known_of(rows)
            planned = [self._plan_row(row, known.media) for row in self._not_forgotten(rows, known.forgotten)]
            if planned:
                yield pa.RecordBatch.from_pylist(planned, MANIFEST_SCHEMA)
        compared = self._compared
        self.labels = compared.changed_labels()
        self.notes = dataclasses.replace(compared.notes(), source=self._moved, forgotten=self._forgotten_before)
        self.counts.moved_sources = [[self._moved.old, str(session.source)]] if self._moved else []
        self.counts.moved, self.counts.vanished = len(compared.moved), len(compared.vanished)
        self.counts.back = compared.back
        self.counts.moved_files = [[old, new] for old, _, new in compared.moved[:LISTED]]
        self.counts.vanished_files = [path for path, _ in compared.vanished[:LISTED]]
        if self._forgets:
            self.missing = missing_to_forget(session, compared, self.counts)

    def _watch(self) -> None:
        """Called per row read: shows progress, and raises Interrupted once stopped."""
        if self._session.stop.is_set():
            raise Interrupted(detail="the scan was not finished, and nothing was changed")
        self._session.progress.advance()

    def _known(self) -> Iterator[pa.RecordBatch]:
        """The source's stored rows, with their current paths."""
        account_id = self._session.account_id
        if self._moved is None:
            yield from self._store.known_files(str(self._session.source), account_id)
            return
        for rows in self._store.known_files(self._moved.old, account_id):
            paths = pa.array([self._moved.path(path) for path in rows["path"].to_pylist()], pa.string())
            yield rows.set_column(rows.schema.get_field_index("path"), "path", paths)

    def _label_digests(self, labels: Sequence[Label]) -> Sequence[str | None]:
        return self._store.known(self._session.account_id, labels=labels).digests

    def _fresh(self, refs: Iterable[ImageRef]) -> Iterator[list[SourceRow]]:
        """Yields the rows that the store lacks, in pieces. If it has others of the source, all are compared first to
        find moves."""
        chunks = ([row for row in chunk if not self._is_in(row)] for chunk in self._compared.chunks(refs))
        if not self._stored.paths:
            return chunks
        rows = iter(self._compared.without_moves([*chain.from_iterable(chunks)]))
        return iter(lambda: [*islice(rows, CHUNK_ROWS)], [])

    def _known_of(self, rows: Sequence[SourceRow]) -> Known:
        """What the store knows of these rows, also by former paths of a moved source."""
        hashes, paths = [row.sha256 for row in rows if row.sha256], [row.ref.path for row in rows]
        former = {path: self._moved.former(path) for path in paths} if self._moved else {}
        directories = sorted({row.directory for row in rows})
        known = self._store.known(self._session.account_id, [*paths, *former.values()], hashes, directories=directories)
        before = [path for path, old in former.items() if old in known.forgotten]
        self._forgotten_before += before
        known.forgotten.update(before)
        return known

    def _not_forgotten(self, rows: Sequence[SourceRow], gone: Set[str]) -> list[SourceRow]:
        """Leaves out forgotten photos. `gone`: as `Known.forgotten`."""
        kept, left = list[SourceRow](), list[str]()
        for row in rows:
            if gone & forgotten.photo_texts(row.directory, row.ref.path, row.sha256):
                left.append(row.ref.path)
            else:
                kept.append(row)
        self.counts.forgotten += len(left)
        _list(self.counts.forgotten_files, left)
        return kept

    def _is_in(self, row: SourceRow) -> bool:
        """Whether the store has the row; counts it."""
        stored = self._compared.is_stored(row)
        self.counts.already_in += stored and row.key not in self._counted
        return stored

    def _plan_row(self, hashed: SourceRow, in_store: dict[str, int]) -> dict[str, Any]:
        self._count(hashed)
        ref, number = hashed.ref, self._next_row
        self._next_row += 1
        row: dict[str, Any] = {
            "row": number,
            "path": ref.path,
            # A refused row is never opened, and its name may not be a valid file name.
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
            raise TooManyDirectories(account=self._session.account, count=len(self._directories), limit=MAX_DIRECTORIES)

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
    """Appends to a list of the first entries."""
    files += more[: max(LISTED - len(files), 0)]
