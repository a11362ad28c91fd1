"""What bounds the decoded images that wait."""

from __future__ import annotations

import threading


class Gate:
    """Holds decoding back while the images that are decoded and wait have more than `limit` pixels.

    The image that is wanted next always passes, so that nothing waits for ever. Each decoder thread may pass once
    while there is room: at most that many images come on top of the limit.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._moved = threading.Condition()
        self._waiting = 0
        self._wanted = -1
        self._closed = False

    def enter(self, number: int) -> None:
        """Waits until image `number` may be decoded."""
        with self._moved:
            self._moved.wait_for(lambda: self._closed or self._waiting <= self._limit or number <= self._wanted)

    def want(self, number: int) -> None:
        """Image `number` is what the next batch waits for."""
        with self._moved:
            self._wanted = number
            self._moved.notify_all()

    def count(self, pixels: int) -> None:
        """So many pixels were decoded, or (negative) taken."""
        with self._moved:
            self._waiting += pixels
            self._moved.notify_all()

    def close(self) -> None:
        """Nobody wants any more: lets everything pass."""
        with self._moved:
            self._closed = True
            self._moved.notify_all()
