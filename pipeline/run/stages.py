"""The per-shard stages of a run: extraction writes a file per shard; grouping commits each shard in one transaction
while the next ones are extracted."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
import pyarrow as pa

from pipeline.config import RAY
from pipeline.errors import DeviceMissing, Interrupted, UsageError
from pipeline.extraction.engine import NETWORK_THREADS, LocalEngine
from pipeline.extraction.extractor import BatchExtractor
from pipeline.extraction.images.decode import Decoder
from pipeline.extraction.images.pixel_hash import PixelHash
from pipeline.extraction.stored_picture import HeldPictures
from pipeline.jobs.cluster.connection import set_environment
from pipeline.jobs.cluster.left_shards import Metadata, shard_folder, shard_metadata, take_left
from pipeline.jobs.models import load_extractor, work_of
from pipeline.jobs.run_report import WorkDone
from pipeline.jobs.shard_progress import ShardProgress, loading_models
from pipeline.people.shards import Enrolment
from pipeline.run.session import Session
from pipeline.runtime.device import HOST, resolve_device
from pipeline.runtime.stage_times import DECIDE, LOAD, WRITE, StageTimes
from pipeline.runtime.threads import own_threads, thread_count
from pipeline.store import RunRow

if TYPE_CHECKING:
    from pipeline.jobs.cluster.engine import RayEngine

CommitShard: TypeAlias = Callable[[int, pa.Table, pa.Table], None]  # a shard's number, manifest rows, extraction
_COMMITS_AT_ONCE: Final = 2  # one in progress and one waiting, which bounds the memory if commits are slower
_log = logging.getLogger(__name__)


class ShardStages:
    """Extracts and commits the shards of planned runs, in order. The first shard to extract loads the models."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._store = session.store
        self._times = session.profiler.times
        self._progress = ShardProgress(session.progress, session.stop)
        self._decoder = Decoder(session.settings.decode)
        self._extractor: BatchExtractor | None = None
        self._held: HeldPictures | None = None
        self._threads = thread_count(session.settings.run.threads)
        self._image_seconds = 0.0

    def work(self, run: RunRow, *, extract: bool = True, commit: bool = True) -> None:
        """Extracts and commits the pending shards of a planned run; without `commit` only extracts.

        Raises Interrupted once the session's stop is set, and UsageError without `extract` if a shard is not extracted
        yet.
        """
        shards = int(run.shards or 0)
        committed = self._store.runs(run_id=run.run_id).committed
        pending = [k for k in range(shards) if k not in committed]
        extracted = self._store.extracted_shards(run.run_id)
        missing = [k for k in pending if k not in extracted]
        if missing and not extract:
            raise UsageError(
                message=f"{len(missing)} of {shards} shards are not extracted yet: `facepipe extract` first."
            )
        if not commit:
            pending = missing
        # Pixels are in memory for decisions only if this process extracts and commits.
        self._held = HeldPictures() if commit and self._store.server is None else None
        phase = "extract" if not commit else "group" if not extract else "run"
        sizes = np.diff(self._store.shard_starts(run))
        self._progress.start(phase, int(sizes[pending].sum()))
        with ExitStack() as stack:
            committer = None
            if commit:
                committer = stack.enter_context(CommitThread(self._commit_shard(run), self._times, self._threads))
            # Always closed, so that no decoder thread continues after an error.
            shards_done = stack.enter_context(closing(self._extracted(run, pending, set(missing))))
            for shards_left in range(len(pending), 0, -1):
                if self._session.stop.is_set():
                    if committer is not None:
                        committer.wait()
                    verb = "in" if commit else "extracted"
                    raise Interrupted(detail=f"{shards - shards_left} of {shards} shards are {verb}")
                shard_done = next(shards_done)
                if committer is not None:
                    committer(*shard_done)
            deque(shards_done, 0)  # none is left: the engine cleans up

    def work_done(self) -> WorkDone:
        """The work so far, without the command's times and profile."""
        own = work_of(self._decoder, self._extractor)
        work = replace(own, image_seconds=round(self._image_seconds, 3))
        for engine in self._session.profiler.elsewhere:
            work = work.and_on(engine.work_done())
        return work

    def _commit_shard(self, run: RunRow) -> CommitShard:
        """Returns the function that decides and commits a shard; a server reads its files itself."""
        if self._store.server is not None:
            model = self._store.identity.model
            return lambda shard, *_: self._store.commit_shard(run.run_id, shard, model)
        directories = self._store.directories(self._search_device())
        return Enrolment(self._store.local, run, self._decoder, directories, held=self._held).commit

    def _search_device(self) -> str:
        """The models' device, or the CPU, which is enough for grouping alone."""
        try:
            return resolve_device(self._session.settings.run.device)
        except DeviceMissing:
            return HOST

    def _extracted(
        self, run: RunRow, pending: list[int], missing: set[int]
    ) -> Generator[tuple[int, pa.Table, pa.Table], None, None]:
        """Yields (shard, its manifest rows, its extraction) in order; extracts what is missing and writes it to the
        store."""
        metadata = shard_metadata(self._store.identity)
        on_ray, folder = self._session.settings.run.engine == RAY, self._session.settings.run.shard_folder
        # An earlier command may have used the other engine or no folder. New workers look into their own folder.
        for left_in in {None, folder} - ({folder} if on_ray and missing else set()):
            missing = missing - take_left(
                self._store, run.run_id, left_in, missing, partial(self._store.read_manifest, run)
            )
        engine = self._ray_engine(run, metadata) if on_ray and missing else self._local_engine()
        rows = ((k, self._store.read_manifest(run, k)) for k in pending if k in missing)
        results = engine.run_shards(rows, self._progress.advance)
        try:
            for shard in pending:
                manifest = self._store.read_manifest(run, shard)
                self._progress.begin_shard(len(manifest))
                if shard not in missing:
                    table = self._store.read_run_shard(run.run_id, shard)
                    self._progress.advance(len(manifest))
                else:
                    begun = time.monotonic()
                    number, table = next(results)
                    self._image_seconds += time.monotonic() - begun
                    with self._times.stage(WRITE):
                        self._store.write_run_shard(run.run_id, number, table, metadata)
                yield shard, manifest, table
            deque(results, 0)
        finally:
            results.close()

    def _local_engine(self) -> LocalEngine:
        identity = self._store.identity
        settings, size, pixel_hash = self._session.settings, identity.embedding_size, PixelHash(identity.pixel_key)
        return LocalEngine(settings, size, self._decoder, pixel_hash, self._load_extractor, self._times, self._held)

    def _ray_engine(self, run: RunRow, metadata: Metadata) -> RayEngine:
        session, store = self._session, self._store
        set_environment(session.settings.ray)
        from pipeline.jobs.cluster.engine import RayEngine  # late: it loads Ray
        from pipeline.jobs.cluster.worker import Order

        settings, path, profile = session.settings, session.request.store, session.request.profile
        folder = shard_folder(store, run.run_id, settings.run.shard_folder)
        models, own = (store.identity, store.other_identity()), {**metadata, "run_id": run.run_id}
        starting = partial(self._progress.meanwhile, "starting the workers")
        engine = RayEngine(Order(settings, *models, path, folder, own, profile), starting, session.profiler.times)
        session.profiler.elsewhere.append(engine)
        return engine

    def _load_extractor(self) -> BatchExtractor:
        if self._extractor is None:
            session = self._session
            path, identity, other = session.request.store, self._store.identity, self._store.other_identity()
            shown = self._progress.meanwhile("loading the models")
            with loading_models(session.stop), shown, self._times.stage(LOAD):
                self._extractor = load_extractor(session.settings, identity, path, NETWORK_THREADS, other)
            session.profiler.watch(self._extractor.detector.networks.device)
        return self._extractor


class CommitThread:
    """A thread that commits shards in order of arrival. Leaving its block waits for all of them, after an error only
    for the one in progress."""

    def __init__(self, commit: CommitShard, times: StageTimes, threads: int = 1) -> None:
        """`threads`: of a commit's matrix products."""
        self._commit = commit
        self._times = times
        self._pending: deque[Future[None]] = deque()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="commit", initializer=own_threads, initargs=(threads,))

    def __enter__(self) -> CommitThread:
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        self._thread.shutdown(cancel_futures=kind is not None)
        if kind is None:
            self.wait()
        for commit in self._pending:
            if not commit.cancelled() and (error := commit.exception()) is not None:
                _log.warning("Beside this error, a shard was not committed: %s", error)
                return

    def __call__(self, shard: int, manifest: pa.Table, extracted: pa.Table) -> None:
        """Accepts a shard once there is room. Raises an earlier commit's error."""
        while self._pending and (self._pending[0].done() or len(self._pending) == _COMMITS_AT_ONCE):
            self._pending.popleft().result()
        before = self._pending[-1] if self._pending else None
        self._pending.append(self._thread.submit(self._work, before, shard, manifest, extracted))

    def wait(self) -> None:
        """Waits until all shards are committed. Raises a commit's error."""
        while self._pending:
            self._pending.popleft().result()

    def _work(self, before: Future[None] | None, shard: int, manifest: pa.Table, extracted: pa.Table) -> None:
        if before is not None:
            before.result()  # after a failure nothing more is committed
        with self._times.stage(DECIDE):
            self._commit(shard, manifest, extracted)
