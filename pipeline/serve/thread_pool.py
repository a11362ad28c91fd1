"""Threads for work that blocks, with a limit on how much may wait for them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from pipeline.errors import Overloaded
from pipeline.identities.batcher import RETRY_AFTER_S

T = TypeVar("T")


class BoundedThreadPool:
    """`threads` work and `queue` more calls may wait; any beyond that are refused at once."""

    def __init__(self, name: str, *, threads: int, queue: int) -> None:
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._room = threads + queue
        self._pending = 0
        self._lock = threading.Lock()

    @property
    def pending(self) -> int:
        """How many calls run or wait."""
        return self._pending

    async def run(self, work: Callable[[], T]) -> T:
        """What `work` returns or raises. Raises Overloaded where too many calls wait.

        Cancelling the caller does not end work that has begun; it counts as pending until it is done.
        """
        with self._lock:
            if self._pending >= self._room:
                raise Overloaded(retry_after_s=RETRY_AFTER_S)
            self._pending += 1
        try:
            future = self._threads.submit(work)
        except BaseException:
            self._done(None)
            raise
        future.add_done_callback(self._done)
        return await asyncio.wrap_future(future)

    def close(self) -> None:
        """Waits for the work that has begun."""
        self._threads.shutdown()

    def _done(self, _: Future[T] | None) -> None:
        with self._lock:
            self._pending -= 1
