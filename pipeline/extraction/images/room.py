"""Bounds the decoding memory of the process, shared by server and run."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from pipeline.runtime.threads import usable_cores

_LEAST_BYTES: Final = 2**30
_BYTES_PER_CORE: Final = 2**28  # a photo of 25 MP


class DecodingRoom:
    """Makes pictures wait for memory.

    Pictures over half of `limit` take turns in an extra slot, so that small and large ones never wait for each other.
    The total is `limit` plus one such picture. A thread inside must not wait for one outside.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._large = threading.Lock()
        self._next = threading.Lock()  # held by a waiting small picture: later ones queue
        self._changed = threading.Condition()
        self._used = 0

    @contextmanager
    def taken(self, size: int) -> Iterator[None]:
        """Waits for room for `size` bytes."""
        if size > self._limit // 2:
            with self._large:
                yield
            return
        with self._next, self._changed:
            self._changed.wait_for(lambda: self._used + size <= self._limit)
            self._used += size
        try:
            yield
        finally:
            with self._changed:
                self._used -= size
                self._changed.notify_all()


ROOM: Final = DecodingRoom(max(_LEAST_BYTES, _BYTES_PER_CORE * usable_cores()))
