"""scan -> extract -> group + commit: the stages of a run, together or alone, resumable at every point.

A run is a row of the catalog and a frozen manifest. Extraction leaves one file per shard; each shard is committed
in one transaction. So whatever was cut off, the same command finds the unfinished run, goes on behind its last
committed shard, and then looks at the source again for what is new since.
"""

from __future__ import annotations

import dataclasses
import json
import os
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import pyarrow as pa

from pipeline.config import Settings
from pipeline.errors import Interrupted, UsageError
from pipeline.extraction.engine import NETWORK_THREADS, LocalEngine
from pipeline.extraction.extractor import FaceExtractor
from pipeline.extraction.images.decode import Decoder
from pipeline.extraction.images.files import shown
from pipeline.extraction.rows import MANIFEST_SCHEMA
from pipeline.extraction.sources.folder import ScanCounts
from pipeline.extraction.sources.scan import scan_source, source_kind
from pipeline.identities.directory import Directories
from pipeline.identities.shards import make_enroller
from pipeline.jobs.models import load_extractor
from pipeline.jobs.plan import PlanCounts, Planner
from pipeline.jobs.profile import Profiler
from pipeline.jobs.run_report import RunReport, WorkDone, make_report
from pipeline.jobs.stores import open_or_create_store, settings_of_store, settle_account, unlock_store
from pipeline.runtime.device import describe
from pipeline.runtime.stage_times import DECIDE, LOAD, SCAN, WRITE
from pipeline.store.catalog.opening import has_store
from pipeline.store.client import StoreClient
from pipeline.store.connect import Store, open_store
from pipeline.store.records import RunRow
from pipeline.store.remote import RemoteStore
from pipeline.types import ImageRef

_SCANNING = "scanning"


@dataclass(frozen=True)
class RunRequest:
    """What the user asks for. `source` may be None for `extract` and `group`, which take the unfinished run."""

    source: Path | None
    store: Path
    settings: Settings
    account: str | None = None
    directory: str = "main"
    command: str = "run"
    profile: bool = False  # whether the report tells where the time went


class Progress(Protocol):
    """Where long work tells how far it is."""

    def start(self, phase: str, total: int | None) -> None: ...
    def advance(self, count: int = 1) -> None: ...
    def note(self, text: str) -> None: ...


def run(request: RunRequest, progress: Progress, stop: threading.Event) -> RunReport:
    """Everything: goes on with an unfinished run of the source, then takes up what is new or changed in it.

    When `stop` is set, the shard in hand is finished and Interrupted raised. Raises InputError, ModelError,
    DeviceError, StoreError.
    """
    with _Job(request, progress, stop) as job:
        unfinished = job.unfinished()
        if unfinished is not None and unfinished.state != _SCANNING:
            progress.note(job.going_on(unfinished))
            job.work(unfinished)
        planned = job.scan()
        if planned is not None:
            job.work(planned)
        job.fold()
        return job.report()


def scan(request: RunRequest, progress: Progress, stop: threading.Event) -> RunReport:
    """Plans a run: hashes the source's files and writes the manifest of what is new or changed."""
    with _Job(request, progress, stop) as job:
        unfinished = job.unfinished()
        if unfinished is not None and unfinished.state != _SCANNING:
            raise UsageError(
                message=f"The run {unfinished.run_id} of this source is planned already. "
                "Go on with `facepipe extract` and `facepipe group`, or with `facepipe run`."
            )
        job.scan()
        return job.report()


def extract(request: RunRequest, progress: Progress, stop: threading.Event) -> RunReport:
    """Extracts the shards of the planned run, and commits nothing."""
    with _Job(request, progress, stop, create=False) as job:
        job.work(job.planned(), commit=False)
        return job.report()


def group(request: RunRequest, progress: Progress, stop: threading.Event) -> RunReport:
    """Groups and commits the extracted shards of the planned run. Raises UsageError while one is missing."""
    with _Job(request, progress, stop, create=False) as job:
        job.work(job.planned(), extract=False)
        return job.report()


def _require_source(request: RunRequest) -> None:
    """A source that is missing, empty or no manifest must not leave an empty store behind."""
    if request.source is None:
        return
    source_kind(request.source)
    if not has_store(request.store.absolute()):
        next(scan_source(request.source, request.settings.source), None)


class _Job:
    """An open store, and what one command does to it."""

    def __init__(self, request: RunRequest, progress: Progress, stop: threading.Event, *, create: bool = True) -> None:
        _require_source(request)
        self._request = request
        self._progress = progress
        self._stop = stop
        self._started = time.monotonic()
        self._profiler = Profiler(request.profile, request.settings.run)
        self._times = self._profiler.times
        self._image_seconds = 0.0
        self._counts = PlanCounts()
        self._scanned = ScanCounts()
        self._runs: list[str] = []
        self._extractor: FaceExtractor | None = None
        if create:
            self._client: Store = open_or_create_store(request.store, request.settings, request.command)
        else:
            self._client = open_store(request.store, command=request.command)
        self._held = ExitStack()
        self._held.callback(self._profiler.close)
        self._held.callback(self._client.close)
        try:
            self._held.enter_context(self._client.lock_runs(request.command))
            if not create:
                unlock_store(self._client, request.settings)
            self._settings = settings_of_store(request.settings, self._client.identity, request.store)
            self._account, self._account_id = settle_account(self._client, request.account)
        except BaseException:
            self._held.close()
            raise
        if isinstance(self._client, RemoteStore):
            progress.note("A server holds the store: its faces are decided and stored there.")
        if self._client.master_key is not None and self._client.master_key.made:
            progress.note(self._client.master_key.notice)
        # Without "..", but with its links: the name that the rows' own paths begin with.
        self._source = None if request.source is None else shown(os.path.abspath(request.source))  # noqa: PTH100
        self._decoder = Decoder(self._settings.decode)

    def __enter__(self) -> _Job:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._held.close()

    def unfinished(self) -> RunRow | None:
        return self._client.unfinished_run(self._source, self._account_id)

    def going_on(self, run: RunRow) -> str:
        """What to tell of an unfinished run: it keeps the thresholds and the directory it was planned with."""
        note = f"Going on with the unfinished run {run.run_id}."
        wanted = dataclasses.asdict(self._settings.match)
        planned = {key: run.settings["match"].get(key) for key in wanted}
        kept = [f"{key} = {value}" for key, value in planned.items() if value != wanted[key]]
        kept += [f"directory = {run.directory}"] if run.directory != self._request.directory else []
        return f"{note} It keeps what it was planned with: {', '.join(kept)}." if kept else note

    def planned(self) -> RunRow:
        """The unfinished, planned run. Raises UsageError when there is none."""
        found = self.unfinished()
        if found is None or found.state == _SCANNING:
            raise UsageError(message="No run is planned. Begin with `facepipe scan SOURCE --store DIR`.")
        return found

    def scan(self) -> RunRow | None:
        """Plans a run of what the store does not have; None when there is nothing."""
        if self._request.source is None or self._source is None:
            raise UsageError(message="Name a folder or a manifest to scan.")
        with self._times.stage(SCAN):
            return self._plan(self._request.source, self._source)

    def _plan(self, path: Path, source: str) -> RunRow | None:
        self._progress.start("scan", None)
        planner = Planner(
            self._client, self._account, self._account_id, self._request.directory, self._settings.run.threads or 8
        )
        self._counts = planner.counts
        batches = planner.batches(source, self._watched(path))
        first = next(batches, None)
        if first is None:
            return None
        planned = self._begin(source, path)

        def all_batches() -> Iterator[pa.RecordBatch]:
            yield first
            yield from batches

        shard_rows = int(planned.settings["shard_rows"])
        rows = self._client.write_manifest(planned.run_id, all_batches(), MANIFEST_SCHEMA, shard_rows=shard_rows)
        self._client.plan_run(planned.run_id, rows, -(-rows // shard_rows))
        return self._client.run_row(planned.run_id)

    def _begin(self, source: str, path: Path) -> RunRow:
        settings = {"shard_rows": self._settings.run.shard_rows, "match": dataclasses.asdict(self._settings.match)}
        kind, directory, left = source_kind(path), self._request.directory, self.unfinished()
        if left is not None:  # a scan that was cut off: nothing of it counts, its settings neither
            return self._client.rebegin_run(left.run_id, kind, directory, settings)
        return self._client.begin_run(source, kind, self._account_id, directory, settings)

    def _watched(self, source: Path) -> Iterator[ImageRef]:
        """The rows of the source, counted for the progress, until somebody stops us."""
        for ref in scan_source(source, self._settings.source, self._scanned, leave_out=self._client.path):
            if self._stop.is_set():
                raise Interrupted(detail="the scan was not finished, and nothing was changed")
            self._progress.advance()
            yield ref

    def work(self, run: RunRow, *, extract: bool = True, commit: bool = True) -> None:
        """Brings the shards of a planned run in, in order."""
        self._runs.append(run.run_id)
        shards = int(run.shards or 0)
        done = self._client.committed_shards(run.run_id)
        pending = [k for k in range(shards) if k not in done]
        missing = [k for k in pending if not self._client.has_run_shard(run.run_id, k)]
        if missing and not extract:
            raise UsageError(
                message=f"{len(missing)} of {shards} shards are not extracted yet: `facepipe extract` first."
            )
        if not commit:
            pending = missing
        self._progress.start("extract" if not commit else "group" if not extract else "run", self._rows(run, pending))
        enrol = self._enroller(run) if commit else None
        # Closed whatever happens, so that no decoder thread outlives an error or works on for nobody.
        with closing(self._extracted(run, pending, set(missing))) as extracted:
            for left in range(len(pending), 0, -1):
                if self._stop.is_set():
                    verb = "in" if commit else "extracted"
                    raise Interrupted(detail=f"{shards - left} of {shards} shards are {verb}")
                shard, manifest, table = next(extracted)
                if enrol is not None:
                    with self._times.stage(DECIDE):
                        enrol(shard, manifest, table)
        if commit:
            self._finish(run)

    def _rows(self, run: RunRow, shards: list[int]) -> int:
        size = int(run.settings["shard_rows"])
        return sum(min(size, int(run.rows or 0) - k * size) for k in shards)

    def _manifest(self, run: RunRow, shard: int) -> pa.Table:
        return self._client.read_manifest(run.run_id, int(run.settings["shard_rows"]), shard)

    def _extracted(
        self, run: RunRow, pending: list[int], missing: set[int]
    ) -> Generator[tuple[int, pa.Table, pa.Table], None, None]:
        """(shard, its manifest rows, its extraction), in order; extracts what is missing and writes it down."""
        size = self._client.identity.embedding_size
        engine = LocalEngine(self._settings, size, self._decoder, self._load, self._times)
        rows = ((k, self._manifest(run, k)) for k in pending if k in missing)
        results = engine.run_shards(rows, self._progress.advance)
        try:
            for shard in pending:
                manifest = self._manifest(run, shard)
                if shard not in missing:
                    table = self._client.read_run_shard(run.run_id, shard)
                    self._progress.advance(len(manifest))
                else:
                    begun = time.monotonic()
                    number, table = next(results)
                    self._image_seconds += time.monotonic() - begun
                    with self._times.stage(WRITE):
                        self._client.write_run_shard(run.run_id, number, table, self._metadata())
                yield shard, manifest, table
        finally:
            results.close()

    def _metadata(self) -> dict[str, Any]:
        identity = self._client.identity
        return {"weights_sha256": identity.weights_sha256, "output_hash": identity.output_hash, "mode": identity.mode}

    def _load(self) -> FaceExtractor:
        if self._extractor is None:
            with self._times.stage(LOAD):
                self._extractor = load_extractor(
                    self._settings, self._client.identity, self._request.store, NETWORK_THREADS
                )
            self._profiler.watch(self._extractor.detector.networks.device)
        return self._extractor

    def _enroller(self, run: RunRow) -> Callable[[int, pa.Table, pa.Table], None]:
        """What decides and commits a shard: this process, or the server that holds the store."""
        store = self._client
        if isinstance(store, RemoteStore):
            return lambda shard, _manifest, _extracted: store.enrol_shard(run.run_id, shard)
        directories = Directories(store)
        return make_enroller(store, run, self._decoder, directories, self._settings.decode.max_bytes).commit

    def _finish(self, run: RunRow) -> None:
        summary = self._report([run.run_id]).without_names()
        # First, so that a finished run always has it.
        self._client.write_report(run.run_id, "run.json", json.dumps(summary, indent=1, ensure_ascii=False).encode())
        self._client.finish_run(run.run_id, summary)

    def fold(self) -> None:
        """Takes vectors of deleted persons out of the files, and puts those of posts in. A server does it by itself."""
        if isinstance(self._client, StoreClient):
            self._client.fold()

    def report(self) -> RunReport:
        """What this command did; with nothing to do, it names the source's last run."""
        report = self._report(self._runs)
        if not self._runs:
            last = self._client.last_run(self._source, self._account_id)
            return dataclasses.replace(report, run_id=last.run_id if last else None)
        return report

    def _report(self, run_ids: list[str]) -> RunReport:
        extractor = self._extractor
        work = WorkDone(
            device=describe(extractor.detector.networks.device) if extractor else None,
            backend=extractor.embedder.backend if extractor else None,
            seconds=round(time.monotonic() - self._started, 3),
            image_seconds=round(self._image_seconds, 3),
            decoded=self._decoder.calls,
            detector_calls=extractor.detector.counts.pnet.calls if extractor else 0,
            embedder_calls=extractor.embedder.counts.calls if extractor else 0,
            profile=self._profiler.profile(),
        )
        counts = {**dataclasses.asdict(self._counts), "other_files": self._scanned.other_files}
        return make_report(self._client, self._account_id, run_ids, counts, work)
