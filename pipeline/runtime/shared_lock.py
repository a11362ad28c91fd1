"""A lock that any number of threads share, or one has alone: a readers-writer lock (Courtois et al. 1971, "Concurrent
Control with Readers and Writers")."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class SharedLock:
    """The thread that is next to be alone goes before newcomers."""

    def __init__(self) -> None:
        self._door = threading.Lock()  # held by the thread that is alone, or is the next to be
        self._changed = threading.Condition()
        self._users = 0  # that share it

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Waits until no thread is alone or waits to be."""
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
        """Waits until no other thread shares it. Raises TimeoutError if that takes longer."""
        with self._door:
            with self._changed:
                if not self._changed.wait_for(lambda: not self._users, timeout_s):
                    raise TimeoutError
            yield
