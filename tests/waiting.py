"""Waiting for what another thread or process does."""

from __future__ import annotations

import time
from collections.abc import Callable


def until(reached: Callable[[], object], message: str = "it did not happen", within_s: float = 60) -> None:
    """Waits until `reached()`, and fails after `within_s`."""
    deadline = time.monotonic() + within_s
    while not reached():
        assert time.monotonic() < deadline, message
        time.sleep(0.001)
