"""A readers-writer lock (Courtois et al. 1971, "Concurrent Control with Readers and Writers")."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class SharedLock:
    """Shared by any number of threads, or held by one, which precedes newcomers."""

    def __init__(self) -> None:
        self._door = threading.Lock()  # held by the exclusive thread, or the next to be
        self._changed = threading.Condition()
        self._users = 0  # threads that share it

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Waits while a thread is in `alone` or waits for it."""
        with self._door, self._changed:
            self._users += 1
        try:
            yield
        finally:
            with self._changed:
                self._users -= 1
                self._changed.notify_all()

    @contextmanager
    def alone(self, timeout_s: float | None = None) -> Iterator[None]:
        """Waits until no other thread shares it. Raises TimeoutError after `timeout_s`."""
        with self._door:
            with self._changed:
                if not self._changed.wait_for(lambda: not self._users, timeout_s):
                    raise TimeoutError
            yield
