"""The files of a run: manifest, extracted shards, reports.

They need no catalog: the process that does a run writes them itself, even while a server is running. `lock_runs`
ensures that it is only one.
"""

from __future__ import annotations

import hashlib
import json
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.errors import StoreError
from pipeline.store.files import run_sums, shards
from pipeline.store.files.durable import TEMPORARY, Folder, disk_errors
from pipeline.store.files.encryption import encrypt_image
from pipeline.store.files.lock import REINDEX_LOCK_NAME, RUN_LOCK_NAME, StoreLock
from pipeline.store.records import RunRow
from pipeline.types import IntArray

_SHARD_STARTS: Final = "facepipe_shard_starts"  # key in the manifest's metadata


class RunFiles(ABC):
    """Reads and writes run files of an open store. Any threads may read while one writes.

    All methods may raise StoreDamaged, StoreFull or StoreUnwritable.
    """

    def __init__(self, folder: Folder) -> None:
        self.folder = folder
        self._manifest: _OpenManifest | None = None
        self._manifest_lock = threading.RLock()  # guards the open file

    @abstractmethod
    def key_of_run(self, run_id: str) -> bytes | None:
        """The key of a run's extracted shards, which contain face crops; None: not encrypted."""

    def lock_runs(self, command: str) -> StoreLock:
        """Locks the store's runs. Raises StoreLocked naming the holder.

        The store's own lock is not enough: a server holds it for all processes, and a process whose server died
        continues until it notices.
        """
        return StoreLock.acquire(self.folder.root, command, RUN_LOCK_NAME)

    def lock_reindex(self, command: str) -> StoreLock:
        """Locks the index being built. Raises StoreLocked naming the holder."""
        return StoreLock.acquire(self.folder.root, command, REINDEX_LOCK_NAME)

    def write_manifest(
        self,
        run_id: str,
        batches: Iterable[pa.RecordBatch],
        schema: pa.Schema,
        *,
        shard_rows: int = 256,
        shard_pixels: int | None = None,
    ) -> int:
        """Streams the manifest to disk, in row groups of `shard_rows`; returns its number of rows.

        A shard has at most `shard_rows` rows and, unless it has only one, at most `shard_pixels` in total (column
        `pixels`).

        Errors of `batches` propagate and leave no manifest.
        """
        self.forget_manifest()
        file = shards.manifest_file(run_id)
        self.folder.make(file.rpartition("/")[0])
        starts = _ShardStarts(shard_rows, shard_pixels)
        own = schema.with_metadata({shards.METADATA_KEY: json.dumps({"run_id": run_id})})
        with self.folder.replacing(file, "manifest") as out:
            writer = pq.ParquetWriter(out, own, compression=shards.COMPRESSION, write_page_checksum=True)
            try:
                for group in _regrouped(batches, schema, shard_rows):
                    with disk_errors(self.folder.root):
                        writer.write_table(group, row_group_size=shard_rows)
                    starts.add(group)
                writer.add_key_value_metadata({_SHARD_STARTS: json.dumps(starts.found)})
            finally:
                with disk_errors(self.folder.root):
                    writer.close()
        run_sums.begin(self.folder, run_id, run_sums.MANIFEST, shards.sha256_of(self.folder, file))
        return starts.rows

    def read_manifest(self, run: RunRow, shard: int) -> pa.Table:
        """A shard's rows of the manifest."""
        with self._open_manifest(run) as manifest:
            start, stop = manifest.shard_starts[shard : shard + 2].tolist()
            return manifest.read(start, stop)

    def shard_starts(self, run: RunRow) -> IntArray:
        """[shards + 1] the first row of each shard, then the number of rows."""
        with self._open_manifest(run) as manifest:
            return manifest.shard_starts

    @contextmanager
    def _open_manifest(self, run: RunRow) -> Iterator[_OpenManifest]:
        file = shards.manifest_file(run.run_id)
        try:
            with self._manifest_lock:
                if self._manifest is None or self._manifest.run_id != run.run_id:
                    self.forget_manifest()
                    self._manifest = _OpenManifest(run, run_sums.open_manifest(self.folder, run.run_id))
                yield self._manifest
        except (OSError, ValueError, pa.ArrowException) as exc:
            raise shards.damaged_file(self.folder, file, str(exc)) from exc

    def read_manifest_columns(self, run_id: str, columns: Sequence[str]) -> pa.Table:
        """These columns of the whole manifest."""
        run_sums.open_manifest(self.folder, run_id).close()
        return shards.read_parquet(self.folder, shards.manifest_file(run_id), columns)

    def manifest_damage(self, run: RunRow) -> str | None:
        """The damage of a planned run's manifest; None if all rows are readable."""
        return run_sums.manifest_damage(self.folder, run)

    def forget_manifest(self) -> None:
        """Closes the open manifest."""
        with self._manifest_lock:
            if self._manifest is not None:
                self._manifest.file.close()
                self._manifest = None

    def write_run_shard(self, run_id: str, shard: int, table: pa.Table, metadata: Mapping[str, Any]) -> None:
        """Writes an extracted shard atomically."""
        file = shards.run_shard_file(run_id, shard)
        data = shards.parquet_bytes(table, {**metadata, "run_id": run_id, "shard": shard})
        key = self.key_of_run(run_id)
        self._write_listed(run_id, file, data if key is None else encrypt_image(key, data), "shard")

    def read_run_shard(self, run_id: str, shard: int) -> pa.Table:
        """An extracted shard, without metadata."""
        file = shards.run_shard_file(run_id, shard)
        listed = run_sums.require_unchanged(self.folder, run_id, file.removeprefix(f"runs/{run_id}/"))
        own = {"run_id": run_id, "shard": shard} if listed else {}
        return shards.read_parquet(self.folder, file, key=self.key_of_run(run_id), metadata=own)

    def extracted_shards(self, run_id: str) -> set[int]:
        """The extracted shards that are still needed."""
        return run_sums.extracted(self.folder, run_id)

    def write_report(self, run_id: str, name: str, data: bytes) -> None:
        """Writes a file such as run.json into the run's folder atomically."""
        if not name or Path(name).name != name or name.endswith(TEMPORARY):
            raise StoreError(message=f'"{name}" cannot name a report.')
        self._write_listed(run_id, f"runs/{run_id}/{name}", data, "report")

    def _write_listed(self, run_id: str, file: str, data: bytes, kind: str) -> None:
        sha256 = hashlib.sha256(data).hexdigest()
        self.folder.make(file.rpartition("/")[0])
        run_sums.add(self.folder, run_id, file.removeprefix(f"runs/{run_id}/"), sha256)
        self.folder.write(file, data, kind)


def _regrouped(batches: Iterable[pa.RecordBatch], columns: pa.Schema, group_rows: int) -> Iterator[pa.Table]:
    """The rows in tables of exactly `group_rows`; the last may be shorter."""
    waiting: list[pa.RecordBatch] = []
    count = 0
    for batch in batches:
        waiting.append(batch)
        count += batch.num_rows
        while count >= group_rows:
            table = pa.Table.from_batches(waiting, columns)
            yield table.slice(0, group_rows)
            waiting = table.slice(group_rows).to_batches()
            count -= group_rows
    if count:
        yield pa.Table.from_batches(waiting, columns)


class _ShardStarts:
    """Finds the first row of each shard while the manifest is written."""

    def __init__(self, most_rows: int, most_pixels: int | None) -> None:
        self.rows = 0
        self.found: list[int] = []
        self._most_rows = most_rows
        self._most_pixels = most_pixels
        self._pixels = 0  # of the current shard

    def add(self, rows: pa.Table) -> None:
        pixels = [0] * len(rows) if self._most_pixels is None else rows["pixels"].to_pylist()
        for more in pixels:
            self._pixels += more or 0
            full = bool(self.found) and self.rows - self.found[-1] == self._most_rows
            if not self.found or full or (self._most_pixels is not None and self._pixels > self._most_pixels):
                self.found.append(self.rows)
                self._pixels = more or 0
            self.rows += 1


class _OpenManifest:
    """A run's open manifest."""

    def __init__(self, run: RunRow, file: pq.ParquetFile) -> None:
        self.run_id = run.run_id
        self.file = file
        metadata = file.metadata
        sizes = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
        self._group_starts = np.cumsum([0, *sizes], dtype=np.int64)
        # Missing if an earlier version wrote it, with equal numbers of rows per shard.
        found = (metadata.metadata or {}).get(_SHARD_STARTS.encode())
        starts = range(0, metadata.num_rows, int(run.settings["shard_rows"])) if found is None else json.loads(found)
        self.shard_starts: IntArray = np.array([*starts, metadata.num_rows], np.int64)

    def read(self, start: int, stop: int) -> pa.Table:
        """Rows start .. stop - 1."""
        first, last = np.searchsorted(self._group_starts, [start, stop - 1], side="right") - 1
        groups = self.file.read_row_groups(list(range(first, last + 1))).replace_schema_metadata(None)
        return groups.slice(start - int(self._group_starts[first]), stop - start)
