"""Parquet files of the store: names, embedding shards, transfers.

An embedding shard is immutable: one file per committed shard of a run, with its name, so a commit repeated after a
crash writes the same file again.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.errors import StoreDamaged
from pipeline.store import schema
from pipeline.store.files.durable import Folder
from pipeline.store.files.encryption import decrypt_image, encrypt_image
from pipeline.store.records import Generation, embeddings_schema
from pipeline.types import FloatArray, IntArray

METADATA_KEY = b"facepipe"
HANDOVER = "handover"
COMPRESSION = "zstd"
PLAN_ANEW = "`facepipe run SOURCE` plans its source anew; `facepipe abandon` gives the run up."


@dataclass(frozen=True)
class WrittenFile:
    """A finished file: relative path, size, SHA-256, rows."""

    file: str
    bytes: int
    sha256: str
    rows: int


def embedding_file(generation: int, run_id: str, shard: int) -> str:
    return f"embeddings/g{generation:04d}/{run_id}-{shard:05d}.parquet"


def embedding_stem(file: str) -> str:
    """The name that a shard keeps when rewritten."""
    return re.sub(r"(\.\d+)?\.parquet$", "", file)


def rewritten_file(file: str) -> str:
    """The next name of a rewritten shard: `<stem>.<n>.parquet` for the n-th time."""
    times = file.removeprefix(embedding_stem(file)).removesuffix(".parquet").removeprefix(".")
    return f"{embedding_stem(file)}.{int(times or 0) + 1}.parquet"


def run_shard_file(run_id: str, shard: int) -> str:
    return f"runs/{run_id}/shards/{shard:05d}.parquet"


def manifest_file(run_id: str) -> str:
    return f"runs/{run_id}/manifest.parquet"


def report_file(run_id: str) -> str:
    """A finished run's counts and lists."""
    return f"runs/{run_id}/run.json"


def parquet_bytes(table: pa.Table, metadata: Mapping[str, Any]) -> bytes:
    """One Parquet file, with `metadata` as JSON under the key `facepipe`."""
    text = json.dumps(dict(metadata), sort_keys=True)
    kept = {**(table.schema.metadata or {}), METADATA_KEY: text.encode()}
    buffer = io.BytesIO()
    # A dictionary of unique vector components would add half their size.
    pq.write_table(table.replace_schema_metadata(kept), buffer, compression=COMPRESSION, use_dictionary=False)
    return buffer.getvalue()


def read_metadata(file_schema: pa.Schema) -> dict[str, Any]:
    """The metadata from `parquet_bytes`; empty if missing."""
    metadata = json.loads((file_schema.metadata or {}).get(METADATA_KEY, b"{}"))
    return metadata if isinstance(metadata, dict) else {}


def embedding_metadata(generation: Generation) -> dict[str, Any]:
    """An embedding shard's metadata."""
    identity = generation.identity
    return {
        "format_version": schema.FORMAT_VERSION,
        "schema_version": schema.SCHEMA_VERSION,
        "embedder": identity.embedder,
        "weights": identity.weights,
        "weights_sha256": identity.weights_sha256,
        "embedding_size": identity.embedding_size,
        "mode": identity.mode,
        "generation": generation.number,
        "output_hash": identity.output_hash,
    }


def write_embeddings(folder: Folder, file: str, table: pa.Table, generation: Generation) -> WrittenFile:
    """Writes an embedding shard (`embeddings_schema`). Raises StoreFull, StoreUnwritable."""
    data = parquet_bytes(table, embedding_metadata(generation))
    folder.write(file, data, "embeddings")
    return WrittenFile(file, len(data), hashlib.sha256(data).hexdigest(), table.num_rows)


def read_embeddings(folder: Folder, file: str, size: int) -> tuple[IntArray, FloatArray]:
    """A shard's face ids [n] and embeddings [n, size] float32. Raises StoreDamaged."""
    table = read_parquet(folder, file)
    if not table.schema.equals(embeddings_schema(size)):
        raise damaged_file(folder, file, "its columns are not those of an embedding shard")
    ids: IntArray = table["face_id"].to_numpy()
    return ids, vectors_of(table["embedding"], size)


def embedding_rows(face_ids: Sequence[int] | IntArray, vectors: FloatArray) -> pa.Table:
    """Face ids [n] and embeddings [n, size] float32 as `embeddings_schema`."""
    lists = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), vectors.shape[1])
    return pa.table([pa.array(face_ids, pa.int64()), lists], schema=embeddings_schema(vectors.shape[1]))


def vectors_of(column: pa.ChunkedArray, size: int) -> FloatArray:
    """A fixed-size list column as [n, size] float32."""
    parts = [chunk.flatten().to_numpy() for chunk in column.chunks if len(chunk)]
    flat = np.concatenate(parts) if parts else np.zeros(0, np.float32)
    vectors: FloatArray = flat.reshape(-1, size)
    return vectors


def vector_bytes(vector: FloatArray) -> bytes:
    """An embedding [size] as in core.pending_embeddings: little-endian float32."""
    return vector.astype("<f4").tobytes()


def vectors_of_bytes(column: pa.ChunkedArray, size: int) -> FloatArray:
    """[n, size] float32 from a column of `vector_bytes`."""
    flat = np.frombuffer(b"".join(column.to_pylist()), "<f4")
    vectors: FloatArray = flat.reshape(-1, size).astype(np.float32, copy=False)
    return vectors


def read_parquet(
    folder: Folder,
    file: str,
    columns: Sequence[str] | None = None,
    key: bytes | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> pa.Table:
    """A Parquet file of the store (encrypted as a whole if a key is given), or some of its columns.

    Raises StoreDamaged if it is missing or broken, or lacks one of `metadata`.
    """
    try:
        # Not memory-mapped: a broken disk would raise a signal instead of an exception.
        data = folder.path(file).read_bytes()
        return parquet_table(data if key is None else decrypt_image(key, data), columns, metadata)
    except (OSError, ValueError, pa.ArrowException) as exc:
        raise damaged_file(folder, file, str(exc).split("\n")[0]) from exc


def parquet_table(
    data: bytes, columns: Sequence[str] | None = None, metadata: Mapping[str, Any] | None = None
) -> pa.Table:
    """The table of `parquet_bytes`, without metadata. Raises ValueError if one of `metadata` is missing; ValueError,
    OSError or ArrowException for invalid data."""
    table = pq.read_table(io.BytesIO(data), columns=None if columns is None else list(columns))
    found = read_metadata(table.schema)
    for name, value in (metadata or {}).items():
        if found.get(name) != value:
            raise ValueError(f"its {name} is {found.get(name)}, not {value}")
    return table.replace_schema_metadata(None)


def sha256_of(folder: Folder, file: str) -> str:
    """A file's hash. Raises StoreDamaged if unreadable."""
    digest = hashlib.sha256()
    try:
        with folder.path(file).open("rb") as opened:
            while part := opened.read(2**20):
                digest.update(part)
        return digest.hexdigest()
    except OSError as exc:
        raise damaged_file(folder, file, f"cannot be read: {exc.strerror}") from exc


def require_hash(folder: Folder, file: str, sha256: str | None) -> None:
    """Raises StoreDamaged unless the file has this SHA-256."""
    if sha256_of(folder, file) != sha256:
        raise damaged_file(folder, file, "its SHA-256 is not the recorded one")


# Faces that a command extracted, transferred to the server that holds the store: too many for a request. The file
# exists during the call; leftovers are removed when the store is opened. In an encrypted store it is encrypted as a
# whole: it contains pictures.


@contextmanager
def handed_over(folder: Folder, table: pa.Table, key: bytes | None) -> Iterator[str]:
    """Yields the hash of a file with the table, which exists within the block. Raises StoreFull, StoreUnwritable."""
    data = parquet_bytes(table, {})
    data = data if key is None else encrypt_image(key, data)
    sha256 = hashlib.sha256(data).hexdigest()
    try:
        folder.write(_handover_file(sha256), data, "shard")
        yield sha256
    finally:
        folder.unlink(_handover_file(sha256))


def read_handed_over(folder: Folder, sha256: str, key: bytes | None) -> pa.Table:
    """The table of the file with this hash. Raises StoreDamaged if missing."""
    require_hash(folder, _handover_file(sha256), sha256)
    return read_parquet(folder, _handover_file(sha256), key=key)


def _handover_file(sha256: str) -> str:
    return f"{HANDOVER}/{sha256}.parquet"


def damaged_file(folder: Folder, file: str, detail: str) -> StoreDamaged:
    cure = "Restore the file from a backup."
    if "/shards/" in file:
        cure = f"`facepipe check --repair --store {folder.root}` removes it: the same run extracts these photos again."
    elif file.endswith("/manifest.parquet"):
        cure = PLAN_ANEW
    elif file.startswith("runs/"):
        cure = "Delete the file: `facepipe run` makes it again."
    return StoreDamaged(path=folder.root, detail=f"{file}: {detail}", cure=cure)
