"""Manifest rows and extracted tables, joined as objects."""

from __future__ import annotations

from datetime import datetime

import pyarrow as pa

from pipeline.extraction.rows import EXTRACT, MANIFEST_SCHEMA, read_rows, shard_schema


def _manifest(count: int) -> pa.Table:
    fields = {"path": "a.jpg", "file": b"a.jpg", "directory": "main", "action": EXTRACT}
    return pa.Table.from_pylist([{"row": k, **fields} for k in range(count)], MANIFEST_SCHEMA)


def test_each_row_gets_its_own_faces() -> None:
    face = {"x1": 1.0, "y1": 2.0, "x2": 3.0, "y2": 4.0, "landmarks": [0.0] * 10, "embedding": [0.6, 0.8], "crop": b"c"}
    faces: list[list[dict[str, object]] | None] = [[face], None, [], [{**face, "x1": 5.0}, {**face, "x1": 6.0}]]
    rows = [{"row": k, "status": "ok", "width": k, "faces": f} for k, f in enumerate(faces)]
    joined = read_rows(_manifest(4), pa.Table.from_pylist(rows, shard_schema(2)))
    assert [[face.box[0] for face in row.faces] for row in joined] == [[1.0], [], [], [5.0, 6.0]]
    assert [(row.manifest["row"], row.image["width"]) for row in joined] == [(k, k) for k in range(4)]
    (first,) = joined[0].faces
    assert first.crop == b"c"
    assert first.embedding.flags.writeable
    assert first.embedding.tolist() == [pa.scalar(x, pa.float32()).as_py() for x in (0.6, 0.8)]


def test_shards_of_earlier_versions_have_no_date() -> None:
    rows = [{"row": 0, "status": "no_face", "width": 7, "taken_at": datetime(2004, 1, 2), "faces": []}]
    shard = pa.Table.from_pylist(rows, shard_schema(2))
    dates = [read_rows(_manifest(1), table)[0].image["taken_at"] for table in (shard, shard.drop_columns(["taken_at"]))]
    assert dates == [datetime(2004, 1, 2), None]


def test_a_shard_without_rows() -> None:
    assert read_rows(_manifest(0), shard_schema(2).empty_table()) == []
