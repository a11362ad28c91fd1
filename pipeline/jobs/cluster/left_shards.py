"""The shard folder of Ray workers, and checks of its shards. Needs no Ray."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

from pipeline.errors import ImageMissing
from pipeline.extraction.rows import EXTRACT, shard_schema
from pipeline.jobs.store import Store
from pipeline.runtime.buckets import is_address
from pipeline.store import ShardFolder, ShardUnusable, StoreIdentity, is_left

Metadata = dict[str, Any]


def shard_metadata(identity: StoreIdentity) -> Metadata:
    """The metadata that identifies a store's own shards."""
    return {"weights_sha256": identity.weights_sha256, "output_hash": identity.output_hash, "mode": identity.mode}


def shard_folder(store: Store, run_id: str, folder: str | None) -> ShardFolder:
    """The folder of a run's shards, by `run.shard_folder`."""
    identity = store.identity
    secret = store.key_of_run(run_id) or bytes.fromhex(identity.pixel_key or "")
    return ShardFolder.of_run(run_id, folder or str(store.folder.path("runs")), identity.output_hash, secret)


def read_left(folder: ShardFolder, number: int, manifest: pa.Table, size: int, metadata: Metadata) -> pa.Table:
    """Reads a worker's shard. `size`: numbers per embedding. Raises ShardUnusable if its rows are not the manifest's,
    or its worker did not see photos that exist here."""
    table = folder.read(number, metadata)
    if not table.schema.equals(shard_schema(size)) or not table["row"].equals(manifest["row"]):
        raise ShardUnusable(f"shard {number} has other rows than the manifest")
    columns = manifest["file"], manifest["action"], table["status"]
    for file, action, status in zip(*(column.to_pylist() for column in columns), strict=True):
        if action == EXTRACT and status == ImageMissing.status and _is_here(os.fsdecode(file)):
            raise ShardUnusable(f"a worker does not see {os.fsdecode(file)}, which is there on this machine")
    return table


def take_left(
    store: Store, run_id: str, folder: str | None, missing: set[int], manifest: Callable[[int], pa.Table]
) -> set[int]:
    """Moves `missing` shards written by Ray workers into the store; returns their numbers. Raises BucketFailed."""
    own = store.folder.path(f"runs/{run_id}/shards")
    if folder is None and not any(is_left(file.name) for file in own.glob("*")):
        return set()  # does not need obstore
    left, taken, metadata = shard_folder(store, run_id, folder), set[int](), shard_metadata(store.identity)
    left.remove_signs()
    for number in sorted(left.shards() & missing):
        try:
            table = read_left(left, number, manifest(number), store.identity.embedding_size, metadata)
        except ShardUnusable:
            continue
        store.write_run_shard(run_id, number, table, metadata)
        taken.add(number)
    left.clear()
    return taken


def _is_here(file: str) -> bool:
    return not is_address(file) and Path(file).exists()
