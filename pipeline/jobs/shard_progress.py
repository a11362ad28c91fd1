"""Progress over the rows of a run's shards."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pipeline.errors import Interrupted

if TYPE_CHECKING:  # the command line reads this file before it needs NumPy
    from pipeline.types import Progress


class Stop(threading.Event):
    """Ends long work after the shard in progress."""

    at_once = False  # no shard is in progress: a signal may raise KeyboardInterrupt in the main thread


@contextmanager
def loading_models(stop: threading.Event) -> Iterator[None]:
    """Lets `stop` end the block immediately. Raises Interrupted if it is set."""
    signalled = stop if isinstance(stop, Stop) else Stop()
    signalled.at_once = True
    try:
        yield
    except KeyboardInterrupt:
        if not stop.is_set():
            raise
    finally:
        signalled.at_once = False
    if stop.is_set():
        raise Interrupted(detail="the models were being loaded")


class ShardProgress:
    """Passes progress on; once `stop` is set, estimates the rest of the shard."""

    def __init__(self, progress: Progress, stop: threading.Event, clock: Callable[[], float] = time.monotonic) -> None:
        self._progress = progress
        self._stop = stop
        self._clock = clock
        self._said = False
        self._phase, self._total, self._done = "", 0, 0
        self.begin_shard(0)

    def start(self, phase: str, total: int) -> None:
        self._phase, self._total, self._done = phase, total, 0
        self._progress.start(phase, total)

    def begin_shard(self, rows: int) -> None:
        """Begins a shard of so many rows."""
        self._rows, self._rows_done, self._begun = rows, 0, self._clock()

    def advance(self, count: int) -> None:
        self._done += count
        self._rows_done += count
        self._progress.advance(count)
        if self._stop.is_set() and not self._said and 0 < self._rows_done < self._rows:
            self._said = True
            seconds = (self._clock() - self._begun) / self._rows_done * (self._rows - self._rows_done)
            self._progress.note(f"The shard in hand takes about {max(1, round(seconds))} s more.")

    @contextmanager
    def meanwhile(self, phase: str) -> Iterator[None]:
        """Shows this phase in the block, then the former one."""
        self._progress.start(phase, None)
        yield
        self._progress.start(self._phase, self._total)
        if self._done:
            self._progress.advance(self._done)
        self._begun = self._clock()
