"""What a serving store wants done now and then: posted embeddings go into shards, removed vectors out of them."""

from __future__ import annotations

import logging
import threading
from typing import Final

from pipeline.store.client import StoreClient

# So many wait in the catalog at most while requests keep coming; a search never reads them, a start does.
_MANY: Final = 4096
_INTERVAL_S: Final = 60.0
_log = logging.getLogger(__name__)


class Housekeeper:
    """A thread that folds (`StoreClient.fold`) when much waits, or when a while passed without a change."""

    def __init__(self, client: StoreClient, interval_s: float = _INTERVAL_S) -> None:
        self._client = client
        self._interval_s = interval_s
        self._changed = False  # since the last look
        self._dirty = False  # since the last fold
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name="housekeeper", daemon=True)
        self._thread.start()

    def note_change(self) -> None:
        """A request stored something."""
        self._changed = self._dirty = True

    def close(self) -> None:
        """Stops; what waits is folded, so that the next start is quick."""
        self._stop.set()
        self._thread.join()
        if self._dirty:
            self._fold(1)

    def _work(self) -> None:
        while not self._stop.wait(self._interval_s):
            quiet, self._changed = not self._changed, False
            if self._dirty:
                self._dirty = not quiet  # before the fold: what comes in meanwhile, or fails, is for the next
                self._fold(1 if quiet else _MANY)

    def _fold(self, least: int) -> None:
        try:
            self._client.fold(least)
        except Exception:  # noqa: BLE001 - whatever it is must not end the thread
            _log.exception("folding failed; it will be tried again")
            self._dirty = True
