"""Threads for blocking work, with a limit on waiting calls."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from pipeline.errors import Overloaded
from pipeline.people.batcher import RETRY_AFTER_S

T = TypeVar("T")


class BoundedThreadPool:
    """`threads` threads; per peer `queue` calls may wait, and more are refused immediately. Peers take turns, so that
    one with many calls delays the others by one call each time. Use it from one event loop."""

    def __init__(self, name: str, *, threads: int, queue: int) -> None:
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._threads = threads
        self._free = threads
        self._queue = queue
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}  # the peer whose turn is next comes first

    @property
    def pending(self) -> int:
        """How many calls run or wait. Thread-safe."""
        return self._threads - self._free + sum(map(len, tuple(self._waiting.values())))

    async def run(self, work: Callable[[], T], peer: str = "") -> T:
        """Runs `work` on a thread. Raises Overloaded if too many calls of the peer wait.

        Cancelling the caller does not end work that has begun, nor free its thread.
        """
        await self._turn(peer)
        ended = asyncio.wrap_future(self._executor.submit(work))
        ended.add_done_callback(lambda _: self._next())
        return await asyncio.shield(ended)

    def close(self) -> None:
        """Waits for the work that has begun."""
        self._executor.shutdown()

    async def _turn(self, peer: str) -> None:
        if self._free:
            self._free -= 1
            return
        if len(self._waiting.get(peer, ())) >= self._queue:
            raise Overloaded(retry_after_s=RETRY_AFTER_S)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(peer, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # its turn had come
                self._next()
            raise

    def _next(self) -> None:
        """Gives the free thread to the next call."""
        while self._waiting:
            peer = next(iter(self._waiting))
            waiting = self._waiting.pop(peer)
            turn = waiting.popleft()
            if waiting:
                self._waiting[peer] = waiting  # behind the others
            if not turn.done():  # else it was cancelled
                turn.set_result(None)
                return
        self._free += 1
