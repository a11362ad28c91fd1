"""Sealed shards between workers and the store."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest

from pipeline.errors import BucketFailed
from pipeline.store.files.shard_folder import ShardFolder, ShardUnusable

pytest.importorskip("obstore", reason="the extra `buckets` is not installed")

TABLE = pa.table({"row": [1, 2], "name": ["Ann", None]})
METADATA = {"run_id": "run", "output_hash": "ab" * 32}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "ä b%20#1"


@pytest.fixture
def folder(place: Path) -> ShardFolder:
    return ShardFolder.of_run("run", str(place), "ab" * 32, b"secret")


def files(place: Path) -> list[str]:
    return sorted(path.name for path in place.rglob("*") if path.is_file())


def test_a_shard_is_left_once_and_read_as_it_was(folder: ShardFolder, place: Path) -> None:
    assert folder.shards() == set()
    assert folder.put(7, TABLE, METADATA)
    assert not folder.put(7, pa.table({"row": [3]}), METADATA)
    assert folder.read(7, METADATA).equals(TABLE)
    assert folder.shards() == {7}
    assert files(place) == [f"00007-{'ab' * 8}.sealed"]
    assert b"Ann" not in (place / "run" / "shards" / files(place)[0]).read_bytes()
    folder.remove(7)
    folder.remove(7)
    assert folder.shards() == set()


def test_of_many_writers_one_wins(folder: ShardFolder) -> None:
    tables = [pa.table({"row": [number]}) for number in range(8)]
    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(lambda table: folder.put(0, table, METADATA), tables))
    assert sum(won) == 1
    assert folder.read(0, METADATA).equals(tables[won.index(True)])


def test_a_shard_that_was_changed_or_moved_is_not_taken(folder: ShardFolder, place: Path) -> None:
    folder.put(0, TABLE, METADATA)
    folder.put(1, TABLE, METADATA)
    first, second = sorted((place / "run" / "shards").iterdir())
    second.write_bytes(first.read_bytes())
    with pytest.raises(ShardUnusable, match="does not open"):
        folder.read(1, METADATA)
    data = bytearray(first.read_bytes())
    data[len(data) // 2] ^= 1
    first.write_bytes(data)
    with pytest.raises(ShardUnusable, match="does not open"):
        folder.read(0, METADATA)
    first.write_bytes(b"")
    with pytest.raises(ShardUnusable, match="sealed"):
        folder.read(0, METADATA)
    with pytest.raises(ShardUnusable, match="missing"):
        folder.read(2, METADATA)


def test_a_shard_of_other_settings_or_another_key_is_not_taken(folder: ShardFolder, place: Path) -> None:
    folder.put(0, TABLE, METADATA)
    with pytest.raises(ShardUnusable, match="its run_id is run, not other"):
        folder.read(0, {**METADATA, "run_id": "other"})
    with pytest.raises(ShardUnusable, match="does not open"):
        ShardFolder.of_run("run", str(place), "ab" * 32, b"other").read(0, METADATA)
    other = ShardFolder.of_run("run", str(place), "cd" * 32, b"secret")
    assert other.shards() == set()
    with pytest.raises(ShardUnusable, match="missing"):
        other.read(0, METADATA)
    assert ShardFolder.of_run("other", str(place), "ab" * 32, b"secret").shards() == set()


def test_clearing_leaves_nothing_of_the_run_and_nothing_else_goes(folder: ShardFolder, place: Path) -> None:
    neighbour = ShardFolder.of_run("run2", str(place), "ab" * 32, b"secret")
    neighbour.put(0, TABLE, METADATA)
    folder.put(0, TABLE, METADATA)
    assert folder.sees(folder.leave_sign())
    assert not folder.sees("another.sign")
    (place / "run" / "shards" / "00001-abababababababab.sealed#1").write_bytes(b"a worker was killed here")
    folder.clear()
    assert not (place / "run").exists()
    assert neighbour.shards() == {0}
    folder.clear()
    folder.put(0, TABLE, METADATA)
    (place / "run" / "shards" / "00000.parquet").write_bytes(b"the store's own")
    folder.clear()
    assert [path.name for path in (place / "run" / "shards").iterdir()] == ["00000.parquet"]


def test_one_folder_under_two_paths_is_the_same(folder: ShardFolder, place: Path, tmp_path: Path) -> None:
    folder.put(0, TABLE, METADATA)
    (tmp_path / "mount").symlink_to(place)
    mounted = ShardFolder.of_run("run", str(tmp_path / "mount"), "ab" * 32, b"secret")
    assert mounted.read(0, METADATA).equals(TABLE)


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    blocked = ShardFolder.of_run("run", str(tmp_path / "file"), "ab" * 32, b"secret")
    with pytest.raises(BucketFailed, match=f"file://{tmp_path}/file"):
        blocked.put(0, TABLE, METADATA)


def test_the_key_is_not_shown(folder: ShardFolder) -> None:
    assert folder.key.hex() not in repr(folder)
    assert repr(folder.key) not in repr(folder)
