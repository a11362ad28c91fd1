"""The files of a run: its manifest, the extraction of each shard, its reports.

They are in the store's folder and need no catalog, so the process that does a run writes them itself, also while a
server holds the store; `lock_runs` ensures that only one process does.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.errors import StoreError
from pipeline.store.files import shards
from pipeline.store.files.crypto import encrypt_image
from pipeline.store.files.durable import TEMPORARY, Folder, disk_errors
from pipeline.store.files.lock import RUN_LOCK_NAME, StoreLock
from pipeline.store.records import RunRow


class RunFiles(ABC):
    """Reads and writes the run files of an open store, on one thread at a time.

    Every method raises StoreDamaged, StoreFull or StoreUnwritable where it meets them.
    """

    def __init__(self, folder: Folder) -> None:
        self.folder = folder
        self._manifest: tuple[str, pq.ParquetFile] | None = None

    @abstractmethod
    def key_of_run(self, run_id: str) -> bytes | None:
        """The key of the extracted shards of a run, which hold faces cut from the photos; None: not encrypted."""

    def lock_runs(self, command: str) -> StoreLock:
        """Locks the runs of the store. Raises StoreLocked naming the process that works on one.

        The store's own lock is not enough: a server holds it for all processes, and a process whose server died works
        on until it notices.
        """
        return StoreLock.acquire(self.folder.root, command, RUN_LOCK_NAME)

    def write_manifest(
        self, run_id: str, batches: Iterable[pa.RecordBatch], schema: pa.Schema, *, shard_rows: int = 256
    ) -> int:
        """Streams the manifest to disk, `shard_rows` to a row group; returns its number of rows.

        Errors of `batches` are raised as they are, and leave no manifest.
        """
        self.forget_manifest()
        file = shards.manifest_file(run_id)
        self.folder.make(file.rpartition("/")[0])
        rows = 0
        with self.folder.replacing(file, "manifest") as out:
            writer = pq.ParquetWriter(out, schema, compression=shards.COMPRESSION, write_page_checksum=True)
            try:
                for group in _regrouped(batches, schema, shard_rows):
                    with disk_errors(self.folder.root):
                        writer.write_table(group, row_group_size=shard_rows)
                    rows += group.num_rows
            finally:
                with disk_errors(self.folder.root):
                    writer.close()
        return rows

    def read_manifest(self, run_id: str, shard_rows: int, shard: int) -> pa.Table:
        """The manifest's rows shard * shard_rows up to (shard + 1) * shard_rows."""
        file = shards.manifest_file(run_id)
        try:
            if self._manifest is None or self._manifest[0] != run_id:
                self.forget_manifest()
                self._manifest = run_id, pq.ParquetFile(self.folder.path(file))
            return _read_rows(self._manifest[1], shard * shard_rows, (shard + 1) * shard_rows)
        except (OSError, pa.ArrowException) as exc:
            raise shards.damaged_file(self.folder, file, str(exc)) from exc

    def read_manifest_columns(self, run_id: str, columns: Sequence[str]) -> pa.Table:
        """Some columns of the whole manifest."""
        return shards.read_parquet(self.folder, shards.manifest_file(run_id), columns)

    def manifest_damage(self, run: RunRow) -> str | None:
        """What is wrong with the manifest of a planned run; None where every row can be read."""
        return shards.manifest_damage(self.folder, run)

    def forget_manifest(self) -> None:
        """Closes the manifest that was read last."""
        if self._manifest is not None:
            self._manifest[1].close()
            self._manifest = None

    def write_run_shard(self, run_id: str, shard: int, table: pa.Table, metadata: Mapping[str, Any]) -> None:
        """Writes the extraction of a shard, atomically."""
        file = shards.run_shard_file(run_id, shard)
        data, key = shards.parquet_bytes(table, metadata), self.key_of_run(run_id)
        self.folder.make(file.rpartition("/")[0])
        self.folder.write(file, data if key is None else encrypt_image(key, data), "shard")

    def read_run_shard(self, run_id: str, shard: int) -> pa.Table:
        """The extraction of a shard, without its metadata."""
        return shards.read_parquet(self.folder, shards.run_shard_file(run_id, shard), key=self.key_of_run(run_id))

    def has_run_shard(self, run_id: str, shard: int) -> bool:
        """Whether the shard is extracted."""
        return self.folder.path(shards.run_shard_file(run_id, shard)).exists()

    def write_report(self, run_id: str, name: str, data: bytes) -> None:
        """Writes a file such as run.json into the run's folder, atomically."""
        if not name or Path(name).name != name or name.endswith(TEMPORARY):
            raise StoreError(message=f'"{name}" cannot name a report.')
        self.folder.make(f"runs/{run_id}")
        self.folder.write(f"runs/{run_id}/{name}", data, "report")


def _regrouped(batches: Iterable[pa.RecordBatch], columns: pa.Schema, group_rows: int) -> Iterator[pa.Table]:
    """The same rows in tables of exactly `group_rows`, the last one shorter."""
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


def _read_rows(manifest: pq.ParquetFile, start: int, stop: int) -> pa.Table:
    """The rows start..stop-1 of a manifest, whatever its row groups are."""
    groups: list[int] = []
    first = begin = 0
    for group in range(manifest.metadata.num_row_groups):
        end = begin + manifest.metadata.row_group(group).num_rows
        if end > start and begin < stop:
            first = first if groups else begin
            groups.append(group)
        begin = end
    return manifest.read_row_groups(groups).slice(start - first, stop - start)
