"""Threads for work that blocks, with a limit on how much may wait for them: for all together, or for each peer."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from pipeline.errors import Overloaded
from pipeline.people.batcher import RETRY_AFTER_S

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


class FairThreadPool:
    """`threads` work, and of each peer `queue` calls may wait. The peers take turns, so that one with many calls delays
    the others by one call each time. To be used from one event loop.
    """

    def __init__(self, name: str, *, threads: int, queue: int) -> None:
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._free = threads
        self._queue = queue
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}  # the peer first whose turn is next

    async def run(self, peer: str, work: Callable[[], T]) -> T:
        """What `work` returns or raises. Raises Overloaded where too many calls of the peer wait.

        Cancelling the caller does not end work that has begun: its thread is free when it is done.
        """
        await self._turn(peer)
        ended = asyncio.wrap_future(self._threads.submit(work))
        ended.add_done_callback(lambda _: self._next())
        return await asyncio.shield(ended)

    def close(self) -> None:
        """Waits for the work that has begun."""
        self._threads.shutdown()

    async def _turn(self, peer: str) -> None:
        if self._free:
            self._free -= 1
            return
        waiting = self._waiting.setdefault(peer, deque())
        if len(waiting) >= self._queue:
            raise Overloaded(retry_after_s=RETRY_AFTER_S)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # its turn had come
                self._next()
            raise

    def _next(self) -> None:
        """Gives the thread that is free now to the next call."""
        while self._waiting:
            peer = next(iter(self._waiting))
            waiting = self._waiting.pop(peer)
            turn = waiting.popleft()
            if waiting:
                self._waiting[peer] = waiting  # behind the others
            if not turn.done():  # else nobody waits for it any more
                turn.set_result(None)
                return
        self._free += 1
