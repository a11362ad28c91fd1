"""Commits the shards of a run beside the extraction of the next ones."""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Final

import pyarrow as pa
import torch

from pipeline.runtime.stage_times import DECIDE, StageTimes
from pipeline.store.operations import CommitShard

_AT_ONCE: Final = 2  # shards: one in hand, and one that waits, so that memory does not grow where commits are slower


class Committer:
    """A thread that commits shards in the order in which they come. A context manager: the end of the block waits for
    all of them, an error in it only for the one in hand."""

    def __init__(self, commit: CommitShard, times: StageTimes) -> None:
        self._commit = commit
        self._times = times
        self._room = threading.Semaphore(_AT_ONCE)
        self._last: Future[None] | None = None
        # Fixes torch's number of threads for this one before the engine changes that of later threads.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="commit", initializer=torch.get_num_threads)
        self._thread.submit(int).result()

    def __enter__(self) -> Committer:
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        self._thread.shutdown(cancel_futures=kind is not None)
        if kind is None:
            self.wait()

    def __call__(self, shard: int, manifest: pa.Table, extracted: pa.Table) -> None:
        """Takes a shard, once there is room. Raises what an earlier commit raised."""
        self._room.acquire()
        if self._last is not None and self._last.done():
            self._last.result()
        self._last = self._thread.submit(self._work, self._last, shard, manifest, extracted)
        self._last.add_done_callback(lambda _: self._room.release())

    def wait(self) -> None:
        """Until all shards are committed. Raises what a commit raised."""
        if self._last is not None:
            self._last.result()

    def _work(self, before: Future[None] | None, shard: int, manifest: pa.Table, extracted: pa.Table) -> None:
        if before is not None:
            before.result()  # after a failure nothing more is committed
        with self._times.stage(DECIDE):
            self._commit(shard, manifest, extracted)
