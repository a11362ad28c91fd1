"""How often the networks ran: what reports tell, and what tests of batching and of resuming read."""

from __future__ import annotations

import threading


class NetworkCounts:
    """How often one network ran, and over how many inputs (canvases, levels or crops) in all. Threads may share it."""

    def __init__(self) -> None:
        self.calls = 0
        self.inputs = 0
        self._lock = threading.Lock()

    def add(self, inputs: int) -> None:
        with self._lock:
            self.calls += 1
            self.inputs += inputs
