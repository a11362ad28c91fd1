"""Compaction moves embeddings, changes no answer, and leaves no vector of a removed face."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.errors import StoreDamaged
from pipeline.store.checks.check import check_store
from pipeline.store.commits import compaction
from pipeline.store.export import export_store
from pipeline.store.local import LocalStore
from pipeline.store.schema import SCHEMA_VERSION
from tests.store.store_samples import (
    SIZE,
    Asked,
    at_fault_points,
    commit,
    forget_segments,
    insertion,
    replacement,
    unit_vectors,
)
from tests.stored import stored_people


def shards(client: LocalStore) -> list[tuple[str, int]]:
    found = client.read('SELECT file, "rows" FROM core.embedding_shards ORDER BY file').to_pylist()
    assert sorted(row["file"] for row in found) == sorted(
        path.relative_to(client.path).as_posix() for path in client.path.glob("embeddings/*/*")
    )
    return [(row["file"].rpartition("/")[2], row["rows"]) for row in found]


def post(client: LocalStore, account: int, count: int) -> np.ndarray:
    for seed in range(count):
        commit(client, insertion(account, "main", seed, f"P{seed}"))
    return np.stack([unit_vectors(1, seed)[0] for seed in range(count)])


def test_a_damaged_shard_is_not_rewritten(client: LocalStore, account: int) -> None:
    """The new file would have a valid hash, and nobody could tell any more that its vectors are wrong."""
    post(client, account, 3)
    client.fold()
    (file,) = client.path.glob("embeddings/*/*")
    table = pq.read_table(file)
    pq.write_table(pa.table([table["face_id"], table["embedding"].take([2, 1, 0])], schema=table.schema), file)
    other, before = file.read_bytes(), shards(client)
    gone = stored_people(client, account, "main").persons[0].person_id
    commit(client, Asked(account, "main", deleted=[gone]))
    with pytest.raises(StoreDamaged, match="SHA-256"):
        client.fold()
    assert (shards(client), file.read_bytes()) == (before, other)


def test_embeddings_move_into_one_shard(client: LocalStore, account: int) -> None:
    vectors = post(client, account, 5)
    assert client.pending_embeddings() == 5
    assert client.fold(min_pending=6) == 0
    assert client.pending_embeddings() == 5
    assert client.fold() == 5
    assert client.pending_embeddings() == 0
    assert shards(client) == [("folded-1.parquet", 5)]
    forget_segments(client)
    np.testing.assert_array_equal(stored_people(client, account, "main").vectors, vectors)
    (file,) = client.path.glob("embeddings/*/*")
    metadata = json.loads(pq.read_schema(file).metadata[b"facepipe"])
    assert metadata["schema_version"] == SCHEMA_VERSION
    assert check_store(client).problems == []
    assert client.fold() == 0
    assert shards(client) == [("folded-1.parquet", 5)]


def test_many_embeddings_move_in_parts(client: LocalStore, account: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "SHARD_ROWS", 2)
    vectors = post(client, account, 5)
    assert client.fold() == 5
    assert [rows for _, rows in shards(client)] == [2, 2, 1]
    forget_segments(client)
    np.testing.assert_array_equal(stored_people(client, account, "main").vectors, vectors)
    assert check_store(client).problems == []


def test_vectors_of_removed_faces_are_taken_out_of_shards(client: LocalStore, account: int) -> None:
    vectors = post(client, account, 4)
    client.fold()
    records = stored_people(client, account, "main").persons
    commit(client, Asked(account, "main", deleted=[records[1].person_id]))
    commit(client, replacement(account, "main", 9, records[2]))
    assert shards(client) == [("folded-1.parquet", 4)]
    assert check_store(client).problems == []
    assert client.fold() == 1
    assert shards(client) == [("folded-1.1.parquet", 2), ("folded-5.parquet", 1)]
    for path in client.path.rglob("*"):
        data = path.read_bytes() if path.is_file() and "catalog" not in path.name else b""
        assert vectors[1].tobytes() not in data, path
    forget_segments(client)
    expected = np.stack([vectors[0], unit_vectors(1, 9)[0], vectors[3]])
    np.testing.assert_array_equal(stored_people(client, account, "main").vectors, expected)
    commit(client, Asked(account, "main", deleted=[records[0].person_id]))
    client.fold()
    assert shards(client) == [("folded-1.2.parquet", 1), ("folded-5.parquet", 1)]
    client.delete_directory(account, "main")
    client.fold()
    assert shards(client) == []
    assert check_store(client).problems == []


def test_shards_of_a_run_are_rewritten_too(filled: LocalStore) -> None:
    before = stored_people(filled, 1, "main")
    vector = before.vectors[0].copy()
    (name, rows), other = shards(filled)
    commit(filled, Asked(1, "main", deleted=[before.persons[0].person_id]))
    filled.fold()
    assert shards(filled) == [(name.replace(".parquet", ".1.parquet"), rows - 1), other]
    table = pq.read_table(next(filled.path.glob("embeddings/*/*.1.parquet")))
    assert vector.tolist() not in table["embedding"].to_pylist()
    assert check_store(filled).problems == []


@pytest.mark.slow
def test_many_small_shards_become_one(client: LocalStore, account: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "_SMALL_SHARDS", 3)
    monkeypatch.setattr(compaction, "SHARD_ROWS", 6)
    vectors = []
    sizes = []
    for seed in range(10):
        commit(client, insertion(account, "main", seed, f"P{seed}"))
        vectors.append(unit_vectors(1, seed)[0])
        client.fold()
        sizes.append([rows for _, rows in shards(client)])
        assert check_store(client).problems == []
    assert sizes[:5] == [[1], [1, 1], [3], [3, 1], [5]]
    assert sizes[-1] == [5, 5]  # shards of more than half the size stay
    forget_segments(client)
    np.testing.assert_array_equal(stored_people(client, account, "main").vectors, np.stack(vectors))


@contextmanager
def deleted_while_a_shard_is_written(client: LocalStore, account: int) -> Iterator[None]:
    """Deletes the first person when the block has written a shard and not yet committed it."""
    doomed = [stored_people(client, account, "main").persons[0].person_id]

    def hook(point: str) -> None:
        if point == "embeddings.rename" and doomed:
            commit(client, Asked(account, "main", deleted=[doomed.pop()]))

    with at_fault_points(hook):
        yield


def test_a_face_that_is_removed_while_its_shard_is_written_is_taken_out(client: LocalStore, account: int) -> None:
    post(client, account, 2)
    with deleted_while_a_shard_is_written(client, account):
        client.fold()
    assert shards(client) == [("folded-1.1.parquet", 1)]
    assert check_store(client).problems == []


def test_small_shards_are_merged_without_removed_faces(
    client: LocalStore, account: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One is removed after the compaction erased what was removed before."""
    monkeypatch.setattr(compaction, "_SMALL_SHARDS", 2)
    vectors = post(client, account, 2)
    client.fold()
    commit(client, insertion(account, "main", 2, "P2"))
    with deleted_while_a_shard_is_written(client, account):
        client.fold()
    assert shards(client) == [("folded-1.1.parquet", 2)]
    assert vectors[0].tobytes() not in next(client.path.glob("embeddings/*/*")).read_bytes()
    assert check_store(client).problems == []


def test_an_export_holds_pending_and_folded_embeddings(client: LocalStore, account: int, tmp_path: Path) -> None:
    vectors = post(client, account, 2)
    client.fold()
    commit(client, insertion(account, "main", 7, "P7"))
    rows = export_store(client, tmp_path / "export")
    assert rows == {"media": 3, "faces": 3, "persons": 3, "facts": 0, "embeddings": 3}
    table = pq.read_table(tmp_path / "export" / "embeddings.parquet")
    assert table.schema.field("embedding").type == pa.list_(pa.float32(), SIZE)
    expected = [*vectors.tolist(), unit_vectors(1, 7)[0].tolist()]
    assert table["embedding"].to_pylist() == expected
