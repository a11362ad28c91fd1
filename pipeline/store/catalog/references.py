"""The references of a directory, and the stored embeddings of faces."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from pipeline.errors import StoreDamaged
from pipeline.store.catalog.connection import Catalog, check_cure
from pipeline.store.catalog.directories import directory_id
from pipeline.store.files import matrix
from pipeline.store.files.shards import WrittenFile, read_embeddings, vectors_of_bytes
from pipeline.store.records import FaceVector, ReferenceOrigin, References
from pipeline.types import QUALITIES, FloatArray, IntArray, boxes_of

_REFERENCES = """
    SELECT p.person_id::VARCHAR AS person_id, p.seq, r.seq AS reference_seq, r.face_id, m.sha256, m.pixel_hash,
        t.x1, t.y1, t.x2, t.y2
    FROM core.persons p
    JOIN core.reference_faces r ON r.person_id = p.person_id AND r.generation = $1
    LEFT JOIN core.detections t ON t.face_id = r.face_id AND t.generation = $1
    LEFT JOIN core.faces f ON f.face_id = r.face_id
    LEFT JOIN core.media m ON m.media_id = f.media_id
    WHERE p.directory_id = $2
    ORDER BY p.seq
"""


def reference_rows(catalog: Catalog, directory: int | None) -> pa.Table:
    """One row per reference of a directory, in the order of the identities."""
    return catalog.read(_REFERENCES, [catalog.generation, directory])


def references(catalog: Catalog, account_id: int, directory: str) -> References:
    """The current references of a directory, in the order of its identities. Raises StoreDamaged."""
    number = directory_id(catalog, account_id, directory)
    table = reference_rows(catalog, number)
    return References(
        number=catalog.last_number,
        vectors=_reference_vectors(catalog, number, table),
        orders=table["seq"].to_numpy(),
        person_ids=table["person_id"].to_pylist(),
        image_hashes=_hashes(table),
        boxes=boxes_of(table),
    )


def _reference_vectors(catalog: Catalog, directory: int | None, table: pa.Table) -> FloatArray:
    faces: IntArray = table["face_id"].to_numpy()
    if catalog.read_only:  # a matrix that lacks rows could not be completed
        return load_embeddings(catalog, faces)
    return matrix.load(
        catalog.folder,
        matrix.stem(catalog.generation, directory or 0),
        table["reference_seq"].to_numpy(),
        catalog.identity.embedding_size,
        lambda rows: load_embeddings(catalog, faces[rows]),
    )


def face_vectors(catalog: Catalog, face_ids: Sequence[int]) -> dict[int, FaceVector]:
    """Of these faces. Raises StoreDamaged where one has no stored embedding."""
    if not face_ids:
        return {}
    table = catalog.read(
        "SELECT f.face_id, m.sha256, m.pixel_hash, t.x1, t.y1, t.x2, t.y2 FROM core.faces f"
        " JOIN core.media m ON m.media_id = f.media_id"
        " JOIN core.detections t ON t.face_id = f.face_id AND t.generation = ?"
        " WHERE f.face_id IN (SELECT unnest(?::BIGINT[])) ORDER BY f.face_id",
        [catalog.generation, list(face_ids)],
    )
    faces: IntArray = table["face_id"].to_numpy()
    vectors, boxes = load_embeddings(catalog, faces), boxes_of(table).tolist()
    rows = zip(faces.tolist(), vectors, _hashes(table), boxes, strict=True)
    return {face_id: FaceVector(vector, hashes, tuple(box)) for face_id, vector, hashes, box in rows}


def reference_origins(catalog: Catalog, person_ids: Sequence[str]) -> dict[str, ReferenceOrigin]:
    """What the current references of these persons were made from, by person."""
    rows = catalog.rows(
        f"SELECT r.person_id::VARCHAR, {', '.join(f't.{name}' for name in QUALITIES)}, m.added_at, m.path"
        " FROM core.reference_faces r"
        " JOIN core.detections t ON t.face_id = r.face_id AND t.generation = r.generation"
        " JOIN core.faces f ON f.face_id = r.face_id JOIN core.media m ON m.media_id = f.media_id"
        " WHERE r.generation = ? AND r.person_id IN (SELECT unnest(?::UUID[]))",
        [catalog.generation, list(person_ids)],
    )
    return {person_id: ReferenceOrigin(tuple(row[:3]), *row[3:]) for person_id, *row in rows}


def _hashes(table: pa.Table) -> list[tuple[str, ...]]:
    pairs = zip(table["sha256"].to_pylist(), table["pixel_hash"].to_pylist(), strict=True)
    return [tuple(value for value in pair if value is not None) for pair in pairs]


def add_embedding_shard(
    catalog: Catalog, file: WrittenFile, run_id: str | None = None, shard: int | None = None
) -> int:
    """Inside a transaction: the row of a written shard, of a run or of posted images; returns its id."""
    number = int(catalog.one("SELECT coalesce(max(embedding_shard_id), 0) + 1 FROM core.embedding_shards"))
    row = {"embedding_shard_id": number, "generation": catalog.generation, "run_id": run_id, "shard": shard}
    catalog.insert("embedding_shards", [row | vars(file)])
    return number


def load_embeddings(catalog: Catalog, face_ids: IntArray) -> FloatArray:
    """The stored embeddings [n, d] of distinct faces [n], in their order. Raises StoreDamaged."""
    generation, size = catalog.generation, catalog.identity.embedding_size
    order = np.argsort(face_ids)
    ascending = face_ids[order]
    loaded = np.zeros(len(ascending), bool)
    vectors = np.zeros((len(ascending), size), np.float32)

    def take(ids: IntArray, values: FloatArray) -> None:
        position = np.minimum(np.searchsorted(ascending, ids), max(len(ascending) - 1, 0))
        hit = ascending[position] == ids
        vectors[order[position[hit]]] = values[hit]
        loaded[position[hit]] = True

    with catalog.tables(wanted_faces=pa.table({"face_id": ascending})):
        files = catalog.column(
            "SELECT DISTINCT s.file FROM wanted_faces w JOIN core.embeddings e ON e.face_id = w.face_id"
            " JOIN core.embedding_shards s ON s.embedding_shard_id = e.embedding_shard_id"
            " WHERE e.generation = ? ORDER BY s.file",
            [generation],
        )
        pending = catalog.read(
            "SELECT p.face_id, p.embedding FROM wanted_faces w JOIN core.pending_embeddings p"
            " ON p.face_id = w.face_id WHERE p.generation = ?",
            [generation],
        )
    for file in files:
        take(*read_embeddings(catalog.folder, file, size))
    if pending.num_rows:
        take(pending["face_id"].to_numpy(), vectors_of_bytes(pending["embedding"], size))
    if not loaded.all():
        missing = int(ascending[~loaded][0])
        root = catalog.folder.root
        raise StoreDamaged(path=root, detail=f"face {missing} has no stored embedding", cure=check_cure(root))
    return vectors
