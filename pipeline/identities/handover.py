"""Shards that a run hands to the server that holds the store."""

from __future__ import annotations

import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from pipeline.config import Settings
from pipeline.extraction.images.decode import Decoder
from pipeline.identities.directory import Directories
from pipeline.identities.shards import Enroller, make_enroller
from pipeline.store.client import StoreClient

_NICENESS: Final = 10


class ShardEnroller:
    """Enrols the shards of a run as they come, one at a time, on the directories that answer the requests.

    On a thread of its own, which comes after the requests where the cores don't suffice for both; but for what the
    requests wait for.
    """

    def __init__(self, client: StoreClient, directories: Directories, decoder: Decoder, settings: Settings) -> None:
        self._client = client
        self._directories = directories
        self._decoder = decoder
        self._max_bytes = settings.decode.max_bytes
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="shards", initializer=_come_after_others)
        self._urgent = ThreadPoolExecutor(1, thread_name_prefix="shard-commits")
        self._urgent.submit(int).result()  # its thread starts now: from the other it would inherit the priority
        self._current: tuple[str, Enroller] | None = None

    def enrol(self, run_id: str, shard: int) -> None:
        """Decides and commits an extracted shard; one that is in already was handed over by somebody who did not
        hear of it. Raises StoreError, TooManyDirectories."""
        self._thread.submit(self._enrol, run_id, shard).result()

    def close(self) -> None:
        """Finishes the shards in hand."""
        self._thread.shutdown()
        self._urgent.shutdown()

    def _enrol(self, run_id: str, shard: int) -> None:
        if shard in self._client.committed_shards(run_id):
            return
        run = self._client.run_row(run_id)
        manifest = self._client.read_manifest(run_id, int(run.settings["shard_rows"]), shard)
        if self._current is None or self._current[0] != run_id:
            enroller = make_enroller(self._client, run, self._decoder, self._directories, self._max_bytes, self._urgent)
            self._current = run_id, enroller
        self._current[1].commit(shard, manifest, self._client.read_run_shard(run_id, shard))
        if shard + 1 == run.shards:
            self._current = None  # it keeps faces of the last shards


def _come_after_others() -> None:
    """Lowers the priority of this thread, and of those that it starts: OpenMP's, which make the matrix products."""
    if sys.platform == "linux":  # elsewhere it would be the whole process's
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
