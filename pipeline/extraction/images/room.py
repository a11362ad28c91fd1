"""The memory of decoding, bounded in bytes for the whole process: server and run take from one budget."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from pipeline.runtime.threads import usable_cores

_LEAST_BYTES: Final = 2**30
_BYTES_PER_CORE: Final = 2**28  # a photo of 25 MP for each


class DecodingRoom:
    """Pictures wait here until there is memory for them.

    A picture that takes more than half of `limit` has a place of its own beside it, in turn with others of its size: so
    it gets in however many small ones come, and they never wait for it. All together take `limit` and one such picture.
    Who is inside must not wait for somebody who is not.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._large = threading.Lock()
        self._next = threading.Lock()  # held by the small one that waits, so that later ones do not overtake it
        self._changed = threading.Condition()
        self._used = 0

    @contextmanager
    def taken(self, size: int) -> Iterator[None]:
        """Waits until there is room for `size` bytes; it is given back at the end."""
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
