"""Background work of a server: threads for long corrections and shards, and compaction of posted embeddings."""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, ParamSpec, TypeVar

from pipeline.people.directory import Directories
from pipeline.store import LocalStore

P = ParamSpec("P")
T = TypeVar("T")
_NICENESS: Final = 10
# Posted embeddings left uncompacted while requests keep coming: they slow down only a start, not searches.
_MAX_PENDING: Final = 4096
_INTERVAL_S: Final = 60.0
_log = logging.getLogger(__name__)


class LongWork:
    """A low-priority thread, and a normal one (`priority`) for its work under locks."""

    def __init__(self, name: str) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name, initializer=_lower_priority)
        self.priority = ThreadPoolExecutor(1, thread_name_prefix=f"{name}-commits")
        self.priority.submit(int).result()  # starts it now: the other thread would pass on its low priority

    def do(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs `work` in the low-priority thread and returns its result."""
        return self._thread.submit(work, *args, **kwargs).result()

    def close(self) -> None:
        """Finishes the work in progress."""
        self._thread.shutdown()
        self.priority.shutdown()


def _lower_priority() -> None:
    """Lowers the priority of this thread and those it starts."""
    if sys.platform == "linux":  # elsewhere it would lower that of the process
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)


class Housekeeper:
    """A thread that calls `LocalStore.fold` if many posted embeddings wait, or after a quiet interval."""

    def __init__(self, client: LocalStore, directories: Directories, interval_s: float = _INTERVAL_S) -> None:
        self._client = client
        self._directories = directories
        self._interval_s = interval_s
        self._changed = False  # since the last interval
        self._dirty = True  # since the last fold; opening the store may have left something to erase
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name="housekeeper", daemon=True)
        self._thread.start()

    def note_change(self) -> None:
        """Called after a request stored something."""
        self._changed = self._dirty = True

    def close(self) -> None:
        """Stops, then compacts, so that the next start is fast."""
        self._stop.set()
        self._thread.join()
        if self._dirty:
            self._fold(1)

    def _work(self) -> None:
        while not self._stop.wait(self._interval_s):
            quiet, self._changed = not self._changed, False
            if self._dirty or self._client.is_erase_due():
                self._dirty = not quiet  # before the fold: a change during it, or a failure, sets it again
                self._fold(1 if quiet else _MAX_PENDING)

    def _fold(self, least: int) -> None:
        try:
            self._client.fold(least)
            self._directories.map_again()
        except Exception:  # noqa: BLE001 - nothing must end the thread
            _log.exception("folding failed; it will be tried again")
            self._dirty = True
