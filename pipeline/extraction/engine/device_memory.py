"""A device's memory, shared by batches or left to one alone."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Room:
    """Any number of threads are in it beside others, or one alone. Who waits to be alone goes before newcomers."""

    def __init__(self) -> None:
        self._moved = threading.Condition()
        self._inside = 0
        self._wanted_alone = 0

    @contextmanager
    def beside_others(self) -> Iterator[None]:
        """Waits until nobody is alone in it, or waits for that."""
        with self._moved:
            self._moved.wait_for(lambda: not self._wanted_alone)
            self._inside += 1
        with self._leaving():
            yield

    @contextmanager
    def _leaving(self) -> Iterator[None]:
        try:
            yield
        finally:
            with self._moved:
                self._inside -= 1
                self._moved.notify_all()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Waits until everybody has left."""
        with self._moved:
            self._wanted_alone += 1
        try:
            with self._moved:
                self._moved.wait_for(lambda: not self._inside)
                self._inside += 1
            with self._leaving():
                yield
        finally:
            with self._moved:
                self._wanted_alone -= 1
                self._moved.notify_all()
