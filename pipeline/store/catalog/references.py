"""The references of a directory, and stored embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from pipeline.errors import StoreDamaged
from pipeline.store.catalog.connection import Catalog, check_cure
from pipeline.store.catalog.directories import directory_id
from pipeline.store.files.segment_header import SegmentKey, SegmentUnusable
from pipeline.store.files.segments import Segment
from pipeline.store.files.shards import WrittenFile, read_embeddings, vectors_of_bytes
from pipeline.store.keyed_digests import keyed_digests
from pipeline.store.records import FaceVector, ReferenceOrigin, References
from pipeline.types import QUALITIES, FloatArray, IntArray, boxes_of

_REFERENCES: Final = """
    SELECT p.person_id::VARCHAR AS person_id, p.seq, r.seq AS reference_seq, r.face_id, m.sha256, m.pixel_hash,
        t.x1, t.y1, t.x2, t.y2
    FROM core.reference_faces r
    JOIN core.persons p ON p.person_id = r.person_id
    LEFT JOIN core.detections t ON t.face_id = r.face_id AND t.generation = $1
    LEFT JOIN core.faces f ON f.face_id = r.face_id
    LEFT JOIN core.media m ON m.media_id = f.media_id
    WHERE r.generation = $1 AND p.directory_id = $2 AND r.seq BETWEEN $3 AND $4
    ORDER BY r.seq
"""
_LAST: Final = 2**62


@dataclass(frozen=True)
class SegmentRow:
    """A row of core.segments: an index segment with the references of a directory in a range of numbers."""

    file: str
    rows: int
    first_seq: int
    last_seq: int


@dataclass(frozen=True)
class SegmentSecrets:
    """Per-store secrets of its segments."""

    store: str  # identifies the store
    images: bytes  # key of image digests

    @classmethod
    def of(cls, catalog: Catalog) -> SegmentSecrets:
        digests = keyed_digests(catalog.one("SELECT fact_key FROM core.store"), "segment", ["store", "images"])
        return cls(digests[0][:32], bytes.fromhex(digests[1]))


def segment_rows(catalog: Catalog, directory: int | None) -> list[SegmentRow]:
    """A directory's segments, in reference order."""
    rows = catalog.rows(
        'SELECT file, "rows", first_seq, last_seq FROM core.segments WHERE generation = ? AND directory_id = ?'
        " ORDER BY first_seq",
        [catalog.generation, directory],
    )
    return [SegmentRow(*row) for row in rows]


def segment_files(catalog: Catalog) -> list[str]:
    """Of all directories."""
    return catalog.column("SELECT file FROM core.segments")


def reference_rows(catalog: Catalog, directory: int | None, first: int = 0, last: int = _LAST) -> pa.Table:
    """A directory's references with numbers `first` to `last`, ascending."""
    return catalog.read(_REFERENCES, [catalog.generation, directory, first, last])


def tail_numbers(catalog: Catalog, directory: int, most: int) -> IntArray:
    """The first `most` numbers of a directory's references that are in no segment, ascending."""
    found = catalog.read(
        "SELECT r.seq FROM core.reference_faces r JOIN core.persons p ON p.person_id = r.person_id"
        " WHERE r.generation = ? AND r.seq > ? AND p.directory_id = ? ORDER BY r.seq LIMIT ?",
        [catalog.generation, last_in_segments(catalog, directory), directory, most],
    )
    return np.asarray(found["seq"].to_numpy())


def last_in_segments(catalog: Catalog, directory: int | None) -> int:
    """The highest reference number in the directory's segments; 0 without segments."""
    last = "SELECT coalesce(max(last_seq), 0) FROM core.segments WHERE generation = ? AND directory_id = ?"
    return int(catalog.one(last, [catalog.generation, directory]))


def references(catalog: Catalog, account_id: int, directory: str, *, mapped: bool = True) -> References:
    """A directory's current references. `mapped`: use its segments; otherwise all are in the tail. Raises StoreDamaged,
    SegmentUnusable."""
    number = directory_id(catalog, account_id, directory)
    segments: list[Segment] = []
    if mapped and number is not None and (rows := segment_rows(catalog, number)):
        segments = open_segments(catalog, number, rows, removed_numbers(catalog, number))
    tail = reference_rows(catalog, number, 1 + last_in_segments(catalog, number) if mapped else 0)
    return References(
        number=catalog.last_number,
        segments=segments,
        vectors=load_embeddings(catalog, tail["face_id"].to_numpy()),
        orders=tail["seq"].to_numpy(),
        person_ids=tail["person_id"].to_pylist(),
        image_hashes=hashes_of(tail),
        boxes=boxes_of(tail),
    )


def removed_numbers(catalog: Catalog, directory: int, first: int = 0, last: int = _LAST) -> IntArray:
    """Tombstones of the directory: numbers, `first` to `last`, of removed references still in segments; ascending."""
    found = catalog.column(
        "SELECT seq FROM core.tombstones WHERE generation = ? AND directory_id = ? AND seq BETWEEN ? AND ? ORDER BY 1",
        [catalog.generation, directory, first, last],
    )
    return np.array(found, np.int64)


def open_segments(catalog: Catalog, directory: int, rows: Sequence[SegmentRow], removed: IntArray) -> list[Segment]:
    """These segments of a directory, hiding the references numbered `removed`. Raises SegmentUnusable."""
    secrets = SegmentSecrets.of(catalog)
    key = SegmentKey(secrets.store, catalog.generation, directory, catalog.identity.embedding_size)
    opened = []
    for row in rows:
        here = removed[(removed >= row.first_seq) & (removed <= row.last_seq)]
        segment = Segment.open(catalog.folder, row.file, key, secrets.images, here)
        if len(segment) != row.rows:
            raise SegmentUnusable(f"it has {len(segment)} references, not {row.rows}")
        opened.append(segment)
    return opened


def face_vectors(catalog: Catalog, face_ids: Sequence[int]) -> dict[int, FaceVector]:
    """By face id. Raises StoreDamaged if a face has no stored embedding."""
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
    rows = zip(faces.tolist(), vectors, hashes_of(table), boxes, strict=True)
    return {face_id: FaceVector(vector, hashes, tuple(box)) for face_id, vector, hashes, box in rows}


def picture_of_face(catalog: Catalog, face_id: int) -> str | None:
    """The guid of a face's stored picture, if it is a reference, or was before a switch of generations."""
    sql = "SELECT image_guid FROM core.reference_faces WHERE face_id = ? AND image_guid IS NOT NULL LIMIT 1"
    return next(iter(catalog.column(sql, [face_id])), None)


def reference_origins(catalog: Catalog, person_ids: Sequence[str]) -> dict[str, ReferenceOrigin]:
    """The origin of these persons' current references, by person."""
    rows = catalog.rows(
        f"SELECT r.person_id::VARCHAR, {', '.join(f't.{name}' for name in QUALITIES)}, m.added_at, m.path"
        " FROM core.reference_faces r"
        " JOIN core.detections t ON t.face_id = r.face_id AND t.generation = r.generation"
        " JOIN core.faces f ON f.face_id = r.face_id JOIN core.media m ON m.media_id = f.media_id"
        " WHERE r.generation = ? AND r.person_id IN (SELECT unnest(?::UUID[]))",
        [catalog.generation, list(person_ids)],
    )
    return {person_id: ReferenceOrigin(tuple(row[:3]), *row[3:]) for person_id, *row in rows}


def hashes_of(table: pa.Table) -> list[tuple[str, ...]]:
    """sha256 and pixel_hash of each row, without nulls."""
    pairs = zip(table["sha256"].to_pylist(), table["pixel_hash"].to_pylist(), strict=True)
    return [tuple(value for value in pair if value is not None) for pair in pairs]


def add_embedding_shard(
    catalog: Catalog, file: WrittenFile, run_id: str | None = None, shard: int | None = None
) -> int:
    """Inside a transaction: adds a written shard, of a run or of posted images; returns its id."""
    number = int(catalog.one("SELECT coalesce(max(embedding_shard_id), 0) + 1 FROM core.embedding_shards"))
    row = {"embedding_shard_id": number, "generation": catalog.generation, "run_id": run_id, "shard": shard}
    catalog.insert("embedding_shards", [row | vars(file)])
    return number


def load_embeddings(catalog: Catalog, face_ids: IntArray) -> FloatArray:
    """The stored embeddings [n, d] float32 of distinct faces [n], in their order. Raises StoreDamaged."""
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
