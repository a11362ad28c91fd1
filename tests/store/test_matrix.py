"""The reference matrix is a cache: whatever its files hold, `references` answers right."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.errors import StoreFull
from pipeline.store.checks.check import check_store
from pipeline.store.commits import shard as commits
from pipeline.store.files import matrix
from pipeline.store.files.durable import Folder
from pipeline.store.local import LocalStore
from pipeline.store.records import RunRow
from tests.store.store_samples import (
    SHARD_ROWS,
    SHARDS,
    SIZE,
    Asked,
    at_fault_points,
    commit,
    commit_shard,
    flip,
    insertion,
    replacement,
    shard_commit,
    unit_vectors,
)
from tests.stored import stored_people

STEM = "references/g0001/1"
Between = Callable[[Callable[[], object]], None]


def seq_file(client: LocalStore) -> Path:
    return client.path / (STEM + ".seq")


def vector_file(client: LocalStore) -> Path:
    return client.path / (STEM + ".f32")


def test_one_that_finds_no_room_leaves_none_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a full disk would stay full, for whatever else is written to it."""
    monkeypatch.setattr(matrix, "_CHUNK_ROWS", 2)
    folder, vectors, append = Folder(tmp_path), unit_vectors(5, 1), Folder.append

    def full_after_one_chunk(self: Folder, relative: str, data: bytes, kind: str) -> None:
        append(self, relative, data, kind)
        if self.path("1.f32").stat().st_size > 2 * 4 * SIZE:
            raise StoreFull(path=tmp_path, detail="No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Folder, "append", full_after_one_chunk)
        with pytest.raises(StoreFull):
            matrix.load(folder, "1", np.arange(5), SIZE, lambda rows: vectors[rows])
        assert not [*tmp_path.iterdir()]
    np.testing.assert_array_equal(matrix.load(folder, "1", np.arange(5), SIZE, lambda rows: vectors[rows]), vectors)


def test_commits_append_to_it(client: LocalStore, run: RunRow) -> None:
    for shard in range(2):
        commit_shard(client, shard_commit(client, run, shard))
        inode = seq_file(client).stat().st_ino
        assert seq_file(client).stat().st_size == (shard + 1) * SHARD_ROWS * 8
    found = stored_people(client, run.account_id, "main")
    assert isinstance(found.vectors, np.memmap)
    assert not found.vectors.flags.writeable
    assert seq_file(client).stat().st_ino == inode  # the file was used unchanged
    earlier = np.array(found.vectors)
    commit_shard(client, shard_commit(client, run, 2))
    np.testing.assert_array_equal(found.vectors, earlier)  # a commit keeps a reader's rows


def crc_file(client: LocalStore) -> Path:
    return client.path / (STEM + ".crc")


def _cut(file: Path, end: int) -> None:
    file.write_bytes(file.read_bytes()[:end])


def _miss_an_append(seq: Path, vectors: Path) -> None:
    _cut(seq, -8)
    _cut(vectors, -4 * SIZE)


DAMAGE: dict[str, Callable[[Path, Path], object]] = {
    "no seq": lambda seq, _: seq.unlink(),
    "no vectors": lambda _, vectors: vectors.unlink(),
    "torn seq": lambda seq, _: _cut(seq, -3),
    "missed append": _miss_an_append,
    "torn vectors": lambda _, vectors: _cut(vectors, -5),
    "extra vectors": lambda _, vectors: vectors.write_bytes(vectors.read_bytes() + bytes(4 * SIZE)),
    "one number twice": lambda seq, _: seq.write_bytes(np.ones(SHARDS * SHARD_ROWS, "<i8")),
    "dead numbers": lambda seq, _: seq.write_bytes(np.arange(100, 108, dtype="<i8")),
    "empty": lambda seq, _: seq.write_bytes(b""),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_matrix_that_does_not_fit_is_rebuilt(store: Path, damage: Callable[[Path, Path], object]) -> None:
    with LocalStore.open(store, command="test") as client:
        expected = np.array(stored_people(client, 1, "main").vectors)
        files = seq_file(client), vector_file(client)
    before = [file.read_bytes() for file in files]
    damage(*files)
    with LocalStore.open(store, command="test") as client:
        np.testing.assert_array_equal(stored_people(client, 1, "main").vectors, expected)
    assert [file.read_bytes() for file in files] == before


def _swap_rows(store: Path) -> None:
    file = store / (STEM + ".f32")
    rows = np.fromfile(file, "<f4").reshape(-1, SIZE)
    rows[[0, 5]] = rows[[5, 0]]
    file.write_bytes(rows.tobytes())


CHANGES: dict[str, Callable[[Path], object]] = {
    "two rows swapped": _swap_rows,
    "a bit of a vector": lambda store: flip(store / (STEM + ".f32"), 70),
    "a bit of a checksum": lambda store: flip(store / (STEM + ".crc"), 5),
    "two numbers swapped": lambda store: (store / (STEM + ".seq")).write_bytes(
        np.array([2, 1, 3, 4, 5, 6, 7, 8], "<i8").tobytes()
    ),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_changed_matrix_is_never_used(
    store: Path, change: Callable[[Path], object], caplog: pytest.LogCaptureFixture
) -> None:
    with LocalStore.open(store, command="test") as client:
        expected = np.array(stored_people(client, 1, "main").vectors)
    change(store)
    with LocalStore.open(store, command="test") as client:
        assert [problem.kind for problem in client.check().problems] == ["matrix"]
        np.testing.assert_array_equal(stored_people(client, 1, "main").vectors, expected)
        assert "was damaged" in caplog.text
        assert client.check().problems == []


def test_a_matrix_without_checksums_is_built_again(store: Path) -> None:
    """That of an earlier version."""
    with LocalStore.open(store, command="test") as client:
        crc_file(client).unlink()
        assert client.check().problems == []
        before = vector_file(client).read_bytes()
        assert len(stored_people(client, 1, "main")) == SHARDS * SHARD_ROWS
        assert vector_file(client).read_bytes() == before
        assert crc_file(client).stat().st_size == SHARDS * SHARD_ROWS * 4


def test_posts_don_t_append_and_the_next_reader_does(filled: LocalStore) -> None:
    before = vector_file(filled).read_bytes()
    commit(filled, insertion(1, "main", 50, "A", "B"))
    assert vector_file(filled).read_bytes() == before
    found = stored_people(filled, 1, "main")
    assert isinstance(found.vectors, np.memmap)
    assert found.seq.tolist() == list(range(1, 11))
    np.testing.assert_array_equal(found.vectors[8:], [unit_vectors(1, 50)[0], unit_vectors(1, 51)[0]])
    grown = vector_file(filled).read_bytes()
    assert grown[: len(before)] == before
    assert len(grown) == 10 * SIZE * 4


def test_a_commit_of_a_shard_adds_the_posts_before_it(client: LocalStore, run: RunRow) -> None:
    commit_shard(client, shard_commit(client, run, 0))
    commit(client, insertion(run.account_id, "main", 50, "A"))
    commit_shard(client, shard_commit(client, run, 1))
    inode = seq_file(client).stat().st_ino
    assert np.fromfile(seq_file(client), "<i8").tolist() == list(range(1, 10))
    found = stored_people(client, run.account_id, "main")
    assert isinstance(found.vectors, np.memmap)
    np.testing.assert_array_equal(found.vectors[SHARD_ROWS], unit_vectors(1, 50)[0])
    assert seq_file(client).stat().st_ino == inode


@pytest.fixture
def between(client: LocalStore, monkeypatch: pytest.MonkeyPatch) -> Between:
    """Arranges that `work` is done once between two pieces that a matrix grows by."""
    monkeypatch.setattr(commits, "_PIECE_ROWS", SHARD_ROWS // 2)

    def arrange(work: Callable[[], object]) -> None:
        submit, left = client.submit, [work]

        def with_others(job: Any, *args: Any) -> object:
            answer = submit(job, *args)
            if job is commits.grow_matrix and left:
                left.pop()()
            return answer

        monkeypatch.setattr(client, "submit", with_others)

    return arrange


def test_a_person_deleted_while_it_grows_leaves_no_vector(client: LocalStore, run: RunRow, between: Between) -> None:
    def delete() -> None:
        gone = stored_people(client, run.account_id, "main").persons[1]
        commit(client, Asked(run.account_id, "main", deleted=[gone.person_id]))
        seq_file(client).unlink()  # made by `references`; now the shard's own rows are appended

    between(delete)
    commit_shard(client, shard_commit(client, run, 0))
    assert np.fromfile(seq_file(client), "<i8").tolist() == [1, *range(3, SHARD_ROWS + 1)]


def test_a_directory_deleted_while_it_grows_leaves_no_file(client: LocalStore, run: RunRow, between: Between) -> None:
    between(lambda: client.delete_directory(run.account_id, "main"))
    commit_shard(client, shard_commit(client, run, 0))
    assert not list((client.path / "references").rglob("*.*"))
    assert check_store(client).problems == []


def test_rows_a_reader_adds_while_it_grows_are_added_once(client: LocalStore, run: RunRow, between: Between) -> None:
    between(lambda: stored_people(client, run.account_id, "main"))
    commit_shard(client, shard_commit(client, run, 0))
    assert np.fromfile(seq_file(client), "<i8").tolist() == list(range(1, SHARD_ROWS + 1))


def test_a_replaced_row_is_added_and_the_old_one_ignored(filled: LocalStore) -> None:
    before = stored_people(filled, 1, "main")
    expected = np.array(before.vectors)
    inode = seq_file(filled).stat().st_ino
    commit(filled, replacement(1, "main", 50, before.persons[2]))
    expected[2] = unit_vectors(1, 50)[0]
    for _ in range(2):
        after = stored_people(filled, 1, "main")
        np.testing.assert_array_equal(after.vectors, expected)
        assert after.seq.tolist() == before.seq.tolist()
        assert not after.vectors.flags.writeable
    assert np.fromfile(seq_file(filled), "<i8").tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert seq_file(filled).stat().st_ino == inode


def test_with_too_many_dead_rows_it_is_rebuilt(filled: LocalStore) -> None:
    before = stored_people(filled, 1, "main")
    gone = [record.person_id for record in before.persons[1:3]]
    commit(filled, Asked(1, "main", deleted=gone))
    after = stored_people(filled, 1, "main")
    assert isinstance(after.vectors, np.memmap)
    np.testing.assert_array_equal(after.vectors, before.vectors[[0, 3, 4, 5, 6, 7]])
    assert np.fromfile(seq_file(filled), "<i8").tolist() == [1, 4, 5, 6, 7, 8]


def test_fold_leaves_nothing_of_dead_rows(filled: LocalStore) -> None:
    before = stored_people(filled, 1, "main")
    vector = before.vectors[4].tobytes()
    commit(filled, Asked(1, "main", deleted=[before.persons[4].person_id]))
    assert vector in vector_file(filled).read_bytes()
    filled.fold()
    assert vector not in vector_file(filled).read_bytes()
    after = stored_people(filled, 1, "main")
    np.testing.assert_array_equal(after.vectors, before.vectors[[0, 1, 2, 3, 5, 6, 7]])
    assert check_store(filled).problems == []


def test_a_fold_that_is_cut_off_before_the_numbers_leaves_no_damage(filled: LocalStore) -> None:
    removed = stored_people(filled, 1, "main").persons[4].person_id
    commit(filled, Asked(1, "main", deleted=[removed]))

    def cut_off(point: str) -> None:
        if point == "matrix.rename":  # of the numbers: the vectors are zeros by now
            raise RuntimeError("cut off")

    with at_fault_points(cut_off), pytest.raises(RuntimeError, match="cut off"):
        filled.fold()
    assert not np.fromfile(vector_file(filled), "<f4").reshape(-1, SIZE)[4].any()
    assert check_store(filled).problems == []
    flip(vector_file(filled), 4 * SIZE * 4 + 2)  # of the same row: it is not what `fold` writes
    assert [problem.kind for problem in check_store(filled).problems] == ["matrix"]
    filled.fold()
    assert np.fromfile(seq_file(filled), "<i8")[4] == matrix.BLANK
    assert check_store(filled).problems == []


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_load_is_right_whatever_the_files_hold(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """Any numbers and rows, torn anywhere and in any order, as long as each number has its own vector."""
    folder, name = Folder(tmp_path_factory.mktemp("matrix")), "references/g0001/1"
    numbers = st.lists(st.integers(1, 30), unique=True)
    stored, wanted = data.draw(numbers), np.array(sorted(data.draw(numbers.filter(len))), np.int64)
    folder.make("references/g0001")
    vectors = np.arange(31 * SIZE, dtype="<f4").reshape(31, SIZE)
    sums = [zlib.crc32(vectors[n].tobytes(), zlib.crc32(n.to_bytes(8, "little"))) for n in stored]
    whole = vectors[stored].tobytes(), np.array(sums, "<u4").tobytes(), np.array(stored, "<i8").tobytes()
    for file, content in zip(matrix.files(name), whole, strict=True):
        folder.path(file).write_bytes(content[: data.draw(st.integers(0, len(content)))])
    for _ in range(2):
        found = matrix.load(folder, name, wanted, SIZE, lambda rows: vectors[wanted[rows]])
        np.testing.assert_array_equal(found, vectors[wanted])
    held = matrix.numbers(folder, name, SIZE)
    np.testing.assert_array_equal(np.fromfile(folder.path(name + ".f32"), "<f4").reshape(-1, SIZE), vectors[held])
