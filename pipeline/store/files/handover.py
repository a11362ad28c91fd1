"""Faces that a command extracted, on their way to the server that holds the store: too many for a request.

A file in the store's folder, named by the hash of its bytes, and gone once the call is done. What a killed command
leaves is removed when the store is opened. Where the store is encrypted, so is the file as a whole: it holds pictures.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import pyarrow as pa

from pipeline.store.files.crypto import encrypt_image
from pipeline.store.files.durable import Folder
from pipeline.store.files.shards import parquet_bytes, read_parquet, require_hash

HANDOVER: Final = "handover"


@contextmanager
def handed_over(folder: Folder, table: pa.Table, key: bytes | None) -> Iterator[str]:
    """For the block the table is in a file, whose hash this gives. Raises StoreFull, StoreUnwritable."""
    data = parquet_bytes(table, {})
    data = data if key is None else encrypt_image(key, data)
    sha256 = hashlib.sha256(data).hexdigest()
    try:
        folder.write(_file(sha256), data, "shard")
        yield sha256
    finally:
        folder.unlink(_file(sha256))


def read_handed_over(folder: Folder, sha256: str, key: bytes | None) -> pa.Table:
    """The table of the file with this hash. Raises StoreDamaged where there is none."""
    require_hash(folder, _file(sha256), sha256)
    return read_parquet(folder, _file(sha256), key=key)


def _file(sha256: str) -> str:
    return f"{HANDOVER}/{sha256}.parquet"
