"""Shards that a run hands to the server that holds the store."""

from __future__ import annotations

import threading

from pipeline.config import Settings
from pipeline.decode import Decoder
from pipeline.directory import Directories
from pipeline.enrol import Enroller, make_enroller
from pipeline.store.client import StoreClient


class ShardEnroller:
    """Enrols the shards of a run as they come, one at a time, on the directories that answer the requests."""

    def __init__(self, client: StoreClient, directories: Directories, decoder: Decoder, settings: Settings) -> None:
        self._client = client
        self._directories = directories
        self._decoder = decoder
        self._max_bytes = settings.decode.max_bytes
        self._one_at_a_time = threading.Lock()
        self._current: tuple[str, Enroller] | None = None

    def enrol(self, run_id: str, shard: int) -> None:
        """Decides and commits an extracted shard. Raises StoreError."""
        with self._one_at_a_time:
            run = self._client.run_row(run_id)
            manifest = self._client.read_manifest(run_id, int(run.settings["shard_rows"]), shard)
            if self._current is None or self._current[0] != run_id:
                enroller = make_enroller(self._client, run, self._decoder, self._directories, self._max_bytes)
                self._current = run_id, enroller
            self._current[1].commit(shard, manifest, self._client.read_run_shard(run_id, shard))
