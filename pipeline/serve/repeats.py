"""Keeps what a client can make the server repeat from filling the log's disk."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

MOST: Final = 20  # lines of one kind in a window
WINDOW_S: Final = 60.0


@dataclass
class _Kind:
    window_end: float
    passed: int = 0
    left_out: int = 0


class RepeatFilter(logging.Filter):
    """Lets `MOST` warnings and errors of one kind through in `WINDOW_S`: from one line of code, with one type of
    exception. The first of the next window says how many were left out."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._kinds: dict[object, _Kind] = {}
        self._lock = threading.Lock()

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.WARNING:
            return True
        key = (record.name, record.pathname, record.lineno, record.exc_info and record.exc_info[0])
        with self._lock:
            now = self._clock()
            kind = self._kinds.setdefault(key, _Kind(now + WINDOW_S))
            left_out = 0
            if now >= kind.window_end:
                left_out = kind.left_out
                kind = self._kinds[key] = _Kind(now + WINDOW_S)
            if kind.passed >= MOST:
                kind.left_out += 1
                return False
            kind.passed += 1
        if left_out:
            record.msg, record.args = f"{record.getMessage()} (and {left_out:,} like it before)", None
        return True
