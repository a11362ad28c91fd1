"""What must hold of the store's files: each is read as a whole and compared with what the catalog says of it."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.errors import StoreError
from pipeline.store import matrix
from pipeline.store.catalog import Catalog
from pipeline.store.objects import object_file
from pipeline.store.problems import REBUILD, RESTORE, Problem
from pipeline.store.records import StoreIdentity, embeddings_schema
from pipeline.store.references import load_embeddings, reference_rows
from pipeline.store.shards import embedding_metadata, read_metadata, vectors_of

Progress = Callable[[str], None]
_NORM_TOLERANCE = 1e-3
_CHUNK_ROWS = 65_536
_MAGIC = {"image/jpeg": b"\xff\xd8\xff", "image/png": b"\x89PNG\r\n\x1a\n", "image/webp": b"RIFF"}


def check_embeddings(catalog: Catalog, identity: StoreIdentity, progress: Progress) -> list[Problem]:
    """Every embedding shard: bytes, hash, columns, metadata, face ids, norms."""
    rows = catalog.rows(
        "SELECT embedding_shard_id, generation, file, bytes, sha256 FROM core.embedding_shards ORDER BY file"
    )
    problems: list[Problem] = []
    for shard_id, generation, file, size, sha256 in rows:
        progress(file)
        details = list(_file_faults(catalog, file, size, sha256)) or list(
            _embedding_faults(catalog, identity, shard_id, generation, file)
        )
        problems.extend(Problem("embedding", file, detail, RESTORE) for detail in details)
    return problems


def _file_faults(catalog: Catalog, file: str, size: int, sha256: str) -> Iterator[str]:
    try:
        data = catalog.folder.path(file).read_bytes()
    except OSError as exc:
        yield f"cannot be read: {exc.strerror}"
        return
    if len(data) != size:
        yield f"has {len(data)} bytes instead of {size}"
    elif hashlib.sha256(data).hexdigest() != sha256:
        yield "its SHA-256 is not the recorded one"


def _embedding_faults(
    catalog: Catalog, identity: StoreIdentity, shard_id: int, generation: int, file: str
) -> Iterator[str]:
    try:
        table = pq.read_table(io.BytesIO(catalog.folder.path(file).read_bytes()))
        metadata = read_metadata(table.schema)
    except (OSError, pa.ArrowException, ValueError) as exc:
        yield f"is no readable Parquet file: {exc}"
        return
    if not table.schema.remove_metadata().equals(embeddings_schema(identity.embedding_size)):
        yield "its columns are not those of an embedding shard"
        return
    for key, value in embedding_metadata(identity, generation).items():
        if metadata.get(key) != value:
            yield f"its metadata say {key} = {metadata.get(key)}, the store {value}"
    ids = catalog.read("SELECT face_id FROM core.embeddings WHERE embedding_shard_id = ? ORDER BY 1", [shard_id])
    if not np.array_equal(np.sort(table["face_id"].to_numpy()), ids["face_id"].to_numpy()):
        yield "its face ids are not those of the catalog"
    norms = np.linalg.norm(vectors_of(table["embedding"], identity.embedding_size), axis=1)
    if not np.all(np.abs(norms - 1) <= _NORM_TOLERANCE):  # also true of NaN
        yield "it holds embeddings whose norm is not 1"


def check_objects(catalog: Catalog, progress: Progress) -> list[Problem]:
    """Every stored image: bytes, hash, and that it begins as its media type does."""
    problems = []
    rows = catalog.rows("SELECT image_guid, bytes, sha256, media_type, encrypted FROM core.objects ORDER BY 1")
    for guid, size, sha256, media_type, encrypted in rows:
        try:
            file = object_file(guid)
        except StoreError as exc:
            problems.append(Problem("object", guid, str(exc), RESTORE))
            continue
        progress(file)
        details = list(_file_faults(catalog, file, size, sha256))
        if not details and not encrypted:
            details = list(_magic_faults(catalog, file, media_type))
        problems.extend(Problem("object", file, detail, RESTORE) for detail in details)
    return problems


def _magic_faults(catalog: Catalog, file: str, media_type: str) -> Iterator[str]:
    with catalog.folder.path(file).open("rb") as opened:
        begin = opened.read(16)
    if not begin.startswith(_MAGIC.get(media_type, b"")):
        yield f"is not {media_type}"


def check_matrices(catalog: Catalog, generation: int, size: int, progress: Progress) -> list[Problem]:
    """Every reference matrix that is there, bit by bit against the embeddings. An absent one is made when needed."""
    problems: list[Problem] = []
    for (directory,) in catalog.rows("SELECT directory_id FROM core.directories ORDER BY 1"):
        stem = matrix.stem(generation, directory)
        if catalog.folder.path(stem + ".f32").exists() or catalog.folder.path(stem + ".seq").exists():
            progress(stem + ".f32")
            problems.extend(_matrix_problems(catalog, generation, size, directory, stem))
    return problems


def _matrix_problems(catalog: Catalog, generation: int, size: int, directory: int, stem: str) -> Iterator[Problem]:
    rows = reference_rows(catalog, generation, directory)
    seq, faces = rows["reference_seq"].to_numpy(), rows["face_id"].to_numpy()
    if not matrix.fits(catalog.folder, stem, seq, size):
        yield Problem("matrix", stem + ".seq", "its rows are not the directory's references", REBUILD)
        return
    if len(seq) == 0:
        return
    stored = np.memmap(catalog.folder.path(stem + ".f32"), matrix.VECTOR_TYPE, "r", shape=(len(seq), size))
    for start in range(0, len(seq), _CHUNK_ROWS):
        chunk = slice(start, start + _CHUNK_ROWS)
        try:
            truth = load_embeddings(catalog, generation, size, faces[chunk])
        except StoreError:
            return  # reported with the embedding shard
        if truth.astype(matrix.VECTOR_TYPE).tobytes() != stored[chunk].tobytes():
            yield Problem("matrix", stem + ".f32", "it differs from the embeddings", REBUILD)
            return
