"""Commits the shards of a run beside the extraction of the next ones."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Final

import pyarrow as pa

from pipeline.runtime.stage_times import DECIDE, StageTimes
from pipeline.runtime.threads import own_threads, torch_threads

CommitShard = Callable[[int, pa.Table, pa.Table], None]  # a shard's number, its manifest rows, its extraction
_log = logging.getLogger(__name__)
_AT_ONCE: Final = 2  # shards: one in hand, and one that waits, so that memory does not grow where commits are slower


class Committer:
    """A thread that commits shards in the order in which they come. A context manager: the end of the block waits for
    all of them, an error in it only for the one in hand."""

    def __init__(self, commit: CommitShard, times: StageTimes, threads: int = 1) -> None:
        """`threads`: how many torch uses for a commit's products."""
        self._commit = commit
        self._times = times
        self._room = threading.Semaphore(_AT_ONCE)
        self._last: Future[None] | None = None
        torch_threads()  # fixes this thread's own number, before the other sets its
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="commit", initializer=own_threads, initargs=(threads,))

    def __enter__(self) -> Committer:
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        self._thread.shutdown(cancel_futures=kind is not None)
        if kind is None:
            self.wait()
        elif self._last is not None and not self._last.cancelled() and self._last.exception() is not None:
            _log.warning("Beside this error, a shard was not committed: %s", self._last.exception())

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
