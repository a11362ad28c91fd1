"""The current references of a directory, and the stored embeddings of faces."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from pipeline.errors import StoreDamaged
from pipeline.store import matrix
from pipeline.store.catalog import Catalog, check_cure
from pipeline.store.records import References
from pipeline.store.shards import read_embeddings
from pipeline.types import FloatArray, IntArray

_REFERENCES = """
    SELECT p.person_id::VARCHAR AS person_id, p.seq, r.seq AS reference_seq, r.face_id, p.name, p.external_id,
        m.sha256, m.pixel_sha256, t.x1, t.y1, t.x2, t.y2
    FROM core.persons p
    JOIN core.directories d ON d.directory_id = p.directory_id
    JOIN core.reference_faces r ON r.person_id = p.person_id AND r.generation = ?
    JOIN core.detections t ON t.face_id = r.face_id AND t.generation = ?
    JOIN core.faces f ON f.face_id = r.face_id
    JOIN core.media m ON m.media_id = f.media_id
    WHERE d.directory_id = ?
    ORDER BY p.seq
"""


def directory_id(catalog: Catalog, account_id: int, name: str) -> int | None:
    """None while the directory holds no identity."""
    rows = catalog.rows(
        "SELECT directory_id FROM core.directories WHERE account_id = ? AND name = ?", [account_id, name]
    )
    return int(rows[0][0]) if rows else None


def reference_rows(catalog: Catalog, generation: int, directory: int | None) -> pa.Table:
    """One row per reference of a directory, in the order of the identities."""
    return catalog.read(_REFERENCES, [generation, generation, directory])


def references(catalog: Catalog, generation: int, size: int, directory: int | None) -> References:
    """All references of a directory, in the order of the identities. Raises StoreDamaged."""
    table = reference_rows(catalog, generation, directory)
    seq: IntArray = table["reference_seq"].to_numpy()
    faces: IntArray = table["face_id"].to_numpy()
    vectors = matrix.load(
        catalog.folder,
        matrix.stem(generation, directory or 0),
        seq,
        size,
        lambda start, stop: load_embeddings(catalog, generation, size, faces[start:stop]),
    )
    return References(
        vectors=vectors,
        seq=table["seq"].to_numpy(),
        person_ids=table["person_id"].to_pylist(),
        names=table["name"].to_pylist(),
        external_ids=table["external_id"].to_pylist(),
        image_hashes=_hashes(table),
        boxes=np.stack([table[name].to_numpy() for name in ("x1", "y1", "x2", "y2")], axis=1),
    )


def _hashes(table: pa.Table) -> list[tuple[str, ...]]:
    pairs = zip(table["sha256"].to_pylist(), table["pixel_sha256"].to_pylist(), strict=True)
    return [tuple(value for value in pair if value is not None) for pair in pairs]


def load_embeddings(catalog: Catalog, generation: int, size: int, face_ids: IntArray) -> FloatArray:
    """The stored embeddings [n, size] of distinct faces [n], in their order. Raises StoreDamaged."""
    order = np.argsort(face_ids)
    wanted = face_ids[order]
    found = np.zeros(len(wanted), bool)
    vectors = np.zeros((len(wanted), size), np.float32)

    def take(ids: IntArray, values: FloatArray) -> None:
        position = np.minimum(np.searchsorted(wanted, ids), max(len(wanted) - 1, 0))
        hit = wanted[position] == ids
        vectors[order[position[hit]]] = values[hit]
        found[position[hit]] = True

    with catalog.tables(wanted_faces=pa.table({"face_id": wanted})):
        files = catalog.rows(
            "SELECT DISTINCT s.file FROM wanted_faces w JOIN core.embeddings e ON e.face_id = w.face_id"
            " JOIN core.embedding_shards s ON s.embedding_shard_id = e.embedding_shard_id"
            " WHERE e.generation = ? ORDER BY s.file",
            [generation],
        )
        pending = catalog.rows(
            "SELECT p.face_id, p.embedding FROM wanted_faces w JOIN core.pending_embeddings p"
            " ON p.face_id = w.face_id WHERE p.generation = ?",
            [generation],
        )
    for (file,) in files:
        take(*read_embeddings(catalog.folder, file, size))
    if pending:
        take(np.array([row[0] for row in pending], np.int64), np.array([row[1] for row in pending], np.float32))
    if not found.all():
        missing = int(wanted[~found][0])
        root = catalog.folder.root
        raise StoreDamaged(path=root, detail=f"face {missing} has no stored embedding", cure=check_cure(root))
    return vectors
