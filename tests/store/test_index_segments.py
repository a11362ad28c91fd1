"""Index segments of a store: written from the references that none has, merged, rewritten, and made again if they are
damaged. Whatever happens, the references that a search sees are those of the catalog, and what is erased is in no file.
"""

from __future__ import annotations

import os
import shutil
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import patch

import duckdb
import numpy as np
import pyarrow.parquet as pq
import pytest
from coded_faces import Shown, photo

from pipeline.config import MatchSettings
from pipeline.errors import StoreDamaged, StoreFull
from pipeline.jobs.people import People
from pipeline.jobs.store import Store
from pipeline.people import records
from pipeline.people.types import PostRequest
from pipeline.store import segments
from pipeline.store.catalog.directories import directory_id
from pipeline.store.catalog.references import open_segments, references, segment_rows
from pipeline.store.checks.check import check_store
from pipeline.store.files.faults import FILE_STEPS
from pipeline.store.files.segment_header import PAGE_BYTES, Header
from pipeline.store.files.segments import codes_of
from pipeline.store.local import LocalStore
from pipeline.store.records import PersonChange, RunRow
from pipeline.store.schema import SCHEMA_VERSION
from pipeline.types import IntArray
from tests.asking import ask_for
from tests.identities.planted import listed
from tests.people.coded_archive import SETTINGS, ArchiveExtractor, fill, serving
from tests.store.store_samples import (
    Asked,
    at_fault_points,
    commit,
    commit_shard,
    copied_at_points,
    failing_at,
    flip,
    insertion,
    no_room,
    of_version,
    replacement,
    segments_of,
    shard_commit,
    small_segments,
    tombstones_of,
    unit_vectors,
)
from tests.store.test_disk import in_namespace
from tests.stored import stored_people

NOTHING = np.empty(0, np.int64)


@pytest.fixture(autouse=True)
def two_references_are_worth_a_segment() -> Iterator[None]:
    with small_segments():
        yield


def seen(client: LocalStore, directory: str = "main") -> dict[str, tuple[int, bytes]]:
    """Of each person with a reference that a search sees: the person's number, and the vector."""
    found = stored_people(client, 1, directory)
    rows = zip(found.persons, found.seq.tolist(), found.vectors, strict=True)
    return {record.person_id: (seq, vector.tobytes()) for record, seq, vector in rows}


def recorded(client: LocalStore, directory: str = "main") -> dict[str, tuple[int, bytes]]:
    """The same, as the catalog and the embeddings have it."""
    found = client.submit(references, 1, directory, mapped=False)
    rows = zip(found.person_ids, found.orders.tolist(), found.vectors, strict=True)
    return {person_id: (seq, vector.tobytes()) for person_id, seq, vector in rows}


def assert_right(client: LocalStore, directory: str = "main") -> None:
    """A search sees what is recorded; the segments ascend, and each row in them is a reference or has a tombstone."""
    assert seen(client, directory) == recorded(client, directory)
    number = client.submit(directory_id, 1, directory)
    last, written = 0, set[int]()
    for row in client.submit(segment_rows, number):
        assert last < row.first_seq <= row.last_seq
        last = row.last_seq
        numbers: IntArray = client.submit(open_segments, number, [row], NOTHING)[0].seq.checked(0, row.rows)
        assert (numbers[0], numbers[-1]) == (row.first_seq, row.last_seq)
        written.update(numbers.tolist())
    removed = [seq for seq, _ in tombstones_of(client, number or 0)]
    sql = "SELECT r.seq FROM core.reference_faces r JOIN core.persons USING (person_id) WHERE directory_id = ?"
    current = set(client.read(sql, [number])["seq"].to_pylist())
    assert len(removed) == len({*removed})
    assert written == {*removed} | {seq for seq in current if seq <= last}
    assert not current & {*removed}
    assert check_store(client).problems == []


def files_with(store: Path, vector: bytes) -> list[str]:
    """The files that have this vector, or its int8 copy. Not the catalog, in which DuckDB leaves what was deleted."""
    codes = codes_of(np.frombuffer(vector, "<f4")[None]).codes.tobytes()
    found = []
    for path in store.rglob("*"):
        if not path.is_file() or path.name.startswith("catalog-"):
            continue
        data = path.read_bytes()
        if path.parent.parent.name == "embeddings":
            data = np.array(pq.read_table(path)["embedding"].to_pylist(), "<f4").tobytes()
        if vector in data or codes in data:
            found.append(path.relative_to(store).parts[0])
    return sorted(found)


def vector_of(seed: int) -> bytes:
    """That of `reference(_, seed)`."""
    return unit_vectors(1, seed)[0].tobytes()


def post(client: LocalStore, *seeds: int) -> None:
    """A new person for each."""
    for seed in seeds:
        commit(client, insertion(1, "main", seed, f"P{seed}"))


def delete(client: LocalStore, *seqs: int, forget: bool = False) -> None:
    """Deletes the persons of these numbers."""
    ids = [record.person_id for record in stored_people(client, 1, "main").persons if record.seq in seqs]
    commit(client, Asked(1, "main", deleted=ids, forget=forget))


def replace(client: LocalStore, seq: int, seed: int) -> None:
    """Replaces the reference of the person of this number."""
    (record,) = (record for record in stored_people(client, 1, "main").persons if record.seq == seq)
    commit(client, replacement(1, "main", seed, record))


# When they are written


def test_a_run_writes_them_and_they_are_merged_until_they_are_full(client: LocalStore, run: RunRow) -> None:
    found = []
    for shard in range(3):
        commit_shard(client, shard_commit(client, run, shard))
        found.append(segments_of(client))
        assert_right(client)
    assert found == [[(4, 1, 4)], [(8, 1, 8)], [(8, 1, 8), (4, 9, 12)]]


def test_posts_are_in_none_until_enough_wait(client: LocalStore, account: int) -> None:
    post(client, 1)
    client.fold()
    assert segments_of(client) == []
    post(client, 2)
    assert segments_of(client) == []
    assert_right(client)
    client.fold()
    assert segments_of(client) == [(2, 1, 2)]
    assert_right(client)
    commit(client, insertion(account, "other", 3, "A", "B"))
    client.fold()
    assert (segments_of(client), segments_of(client, 2)) == ([(2, 1, 2)], [(2, 3, 4)])
    assert_right(client, "other")


def test_a_first_reader_writes_many(client: LocalStore, account: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "_LONG_TAIL", 3)
    post(client, 1, 2)
    stored_people(client, account, "main")
    assert segments_of(client) == []
    post(client, 3)
    stored_people(client, account, "main")
    assert segments_of(client) == [(3, 1, 3)]
    assert_right(client)


@pytest.mark.slow
@pytest.mark.usefixtures("account")
def test_small_ones_are_merged(client: LocalStore) -> None:
    """So that each reference is written a few times only, and there are few segments."""
    found = []
    with small_segments(most=100):
        for seed in range(0, 10, 2):
            post(client, seed, seed + 1)
            client.fold()
            found.append([rows for rows, _, _ in segments_of(client)])
            assert_right(client)
    assert found == [[2], [4], [6], [6, 2], [10]]


@pytest.mark.usefixtures("account")
def test_many_are_read_in_pieces_and_written_into_several(client: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "_PIECE_ROWS", 2)
    post(client, *range(7))
    with small_segments(most=3):
        client.fold()
    assert segments_of(client) == [(3, 1, 3), (3, 4, 6)]  # one is not worth another
    assert_right(client)


def test_nothing_is_written_twice(filled: LocalStore) -> None:
    (file,) = filled.path.glob("references/*/*")
    filled.fold()
    replace(filled, 3, 50)
    filled.fold()
    assert [*filled.path.glob("references/*/*")] == [file]


# What is removed


def test_a_replaced_reference_leaves_a_tombstone_and_nothing_is_written(filled: LocalStore) -> None:
    (old,) = filled.path.glob("references/*/*")
    vector = recorded(filled)[stored_people(filled, 1, "main").persons[2].person_id][1]
    replace(filled, 3, 50)
    filled.fold()
    assert tombstones_of(filled) == [(3, False)]
    assert [*filled.path.glob("references/*/*")] == [old]
    assert "references" in files_with(filled.path, vector)
    assert_right(filled)


def test_one_with_many_removed_rows_is_written_again(filled: LocalStore) -> None:
    vectors = [vector for _, vector in recorded(filled).values()]
    replace(filled, 3, 50)
    filled.fold()
    assert segments_of(filled) == [(8, 1, 8)]
    replace(filled, 8, 51)
    filled.fold()
    assert tombstones_of(filled) == []
    assert [rows for rows, _, _ in segments_of(filled)] == [6, 2]
    assert segments_of(filled)[0] == (6, 1, 7)
    assert_right(filled)
    assert [files_with(filled.path, vectors[place]) for place in (2, 7)] == [["embeddings"]] * 2  # faces of a run stay


@pytest.mark.slow
@pytest.mark.usefixtures("account")
def test_one_without_rows_is_deleted(client: LocalStore) -> None:
    post(client, *range(10))
    client.fold()
    assert [rows for rows, _, _ in segments_of(client)] == [8, 2]
    delete(client, 9, 10)
    client.fold()
    assert segments_of(client) == [(8, 1, 8)]
    delete(client, *range(1, 8))
    client.fold()
    assert segments_of(client) == [(1, 8, 8)]
    assert_right(client)
    delete(client, 8)
    client.fold()
    assert (segments_of(client), tombstones_of(client)) == ([], [])
    post(client, 20, 21)
    client.fold()
    assert len(segments_of(client)) == 1
    assert_right(client)


@pytest.mark.slow
@pytest.mark.parametrize("forget", [False, True], ids=["delete", "forget"])
@pytest.mark.usefixtures("account")
def test_after_one_fold_nothing_of_a_deleted_person_is_in_a_file(client: LocalStore, forget: bool) -> None:
    """Nor of references that the person had before."""
    for seed, others in ((None, range(8)), (50, range(60, 66)), (51, range(66, 67))):
        if seed is not None:
            replace(client, 3, seed)
        post(client, *others)
        client.fold()
    assert [rows for rows, _, _ in segments_of(client)] == [8, 7, 2]
    vectors = [vector_of(seed) for seed in (2, 50, 51)]
    assert all("references" in files_with(client.path, vector) for vector in vectors)
    delete(client, 3, forget=forget)
    assert_right(client)
    client.fold()
    assert [files_with(client.path, vector) for vector in vectors] == [[]] * 3
    assert (3, "P2") not in [(record.seq, record.name) for record in stored_people(client, 1, "main").persons]
    assert_right(client)


@pytest.mark.usefixtures("account")
def test_after_one_fold_nothing_is_left_of_one_whose_vector_is_in_no_shard_yet(client: LocalStore) -> None:
    post(client, *range(8))
    client.fold(min_pending=100)
    delete(client, 3)
    client.fold(min_pending=100)
    assert files_with(client.path, vector_of(2)) == []
    assert_right(client)


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store that a run filled from photos, with two posts, all in one segment: person 1 has the faces 1, 2 and 3 and
    the name Ann; person 2 the faces 4 and 5; 6, 8 and 9 are the only faces of theirs, and 8 and 9 were posted."""
    folder = fill(tmp_path_factory.mktemp("archive"))
    with serving(folder / "store") as service, small_segments():
        ids = [view.record.person_id for view in listed(service, 1, "main")]
        ask_for(service, "update", 1, "main", ids[:1], PersonChange(name="Ann"))
        for number, name in ((20, "Gus"), (21, "Hal")):
            service.post(1, "main", photo(Shown(number)), PostRequest(name=name))
    with small_segments(), LocalStore.open(folder / "store", command="test") as client:
        client.fold()
        assert [rows for rows, _, _ in segments_of(client)] == [5]
    return folder / "store"


@pytest.fixture
def people(archive: Path, tmp_path: Path) -> Iterator[People]:
    with LocalStore.open(shutil.copytree(archive, tmp_path / "store"), command="test") as client:
        yield People(Store(client, SETTINGS))
        assert_right(client)


def vectors_of_faces(people: People) -> dict[int, bytes]:
    faces = people._store.local.read("SELECT face_id FROM core.embeddings")["face_id"].to_pylist()
    return {face: found.embedding.tobytes() for face, found in people._store.local.face_vectors(faces).items()}


def owner_of(people: People, face: int) -> str:
    sql = "SELECT person_id::VARCHAR AS p FROM core.faces WHERE face_id = ?"
    return str(people._store.local.read(sql, [face])["p"][0].as_py())


def assert_erased(people: People, vectors: dict[int, bytes], *faces: int) -> None:
    """These faces are in no file, and the others still are."""
    path = people._store.local.path
    assert {face for face, vector in vectors.items() if not files_with(path, vector)} == {*faces}


@pytest.mark.slow
@pytest.mark.parametrize("moved", [False, True], ids=["its reference", "a former reference"])
def test_after_one_fold_nothing_of_a_forgotten_photo_is_in_a_file(people: People, moved: bool) -> None:
    vectors = vectors_of_faces(people)
    if moved:
        people.move(1, owner_of(people, 4))
        assert tombstones_of(people._store.local) == [(1, False)]
    people.forget_photos([1])
    assert_erased(people, vectors, 1)


def test_a_reference_that_was_moved_is_erased_with_its_new_person(people: People) -> None:
    vectors = vectors_of_faces(people)
    people.move(1, owner_of(people, 4))
    people.forget(owner_of(people, 4))
    assert_erased(people, vectors, 1, 4, 5)


def test_a_last_reference_that_was_moved_is_erased_with_its_new_person(people: People) -> None:
    """Its former person, who has no name, is deleted by the move."""
    vectors = vectors_of_faces(people)
    people.move(6, owner_of(people, 9))
    assert_right(people._store.local)
    people.forget(owner_of(people, 9))
    assert_erased(people, vectors, 6, 9)


def test_one_that_was_moved_there_and_back_is_found(people: People) -> None:
    people.move(1, owner_of(people, 4))
    people.undo()
    assert_right(people._store.local)
    people._store.local.fold()
    people.merge(owner_of(people, 1), owner_of(people, 4))
    people.undo()
    assert_right(people._store.local)


@pytest.mark.slow
def test_what_a_regroup_admitted_is_erased_when_it_is_undone(people: People) -> None:
    """The face 7 was too poor, so that no vector of it is kept."""
    store, vectors = people._store.local, vectors_of_faces(people)
    assert 7 not in vectors
    with patch("pipeline.jobs.decode_rejected.load_extractor", lambda *_: ArchiveExtractor(32)):
        people.regroup(MatchSettings(min_cpq=0, min_fsq=0, min_fcq=0), decode=True)
    admitted = vectors_of_faces(people)[7]
    with small_segments(least=1):
        store.fold()
    assert files_with(store.path, admitted) == ["embeddings", "references"]
    assert_right(store)
    people.undo()
    assert_right(store)
    assert_erased(people, {**vectors, 7: admitted}, 7)


def test_a_deleted_directory_leaves_no_segment(filled: LocalStore) -> None:
    vectors = [vector for _, vector in recorded(filled).values()]
    filled.delete_directory(1, "main")
    assert (segments_of(filled), tombstones_of(filled)) == ([], [])
    filled.fold()
    assert [files_with(filled.path, vector) for vector in vectors] == [[]] * 8
    assert check_store(filled).problems == []


@pytest.mark.usefixtures("account")
def test_what_is_erased_from_a_damaged_segment_is_in_no_file(client: LocalStore) -> None:
    """The whole segment is deleted."""
    post(client, *range(8))
    deque(segments.fold(client), 0)
    delete(client, 3)
    flip(next(client.path.glob("references/*/*")), 200)
    with small_segments(least=100):
        client.fold(min_pending=100)
    assert files_with(client.path, vector_of(2)) == []
    assert (segments_of(client), tombstones_of(client)) == ([], [])
    assert_right(client)


# Meanwhile


def at_first(point: str, work: Callable[[], object]) -> Callable[[str], None]:
    """A hook that does `work` when the point is reached first."""
    left = [work]

    def hook(name: str) -> None:
        if name == point and left:
            left.pop()()

    return hook


@pytest.mark.slow
@pytest.mark.usefixtures("account")
def test_one_who_is_deleted_while_the_first_segment_is_written(client: LocalStore) -> None:
    """That reference was in no segment yet, so its deletion left no tombstone."""
    post(client, 1, 2, 3)
    with at_fault_points(at_first("segment.rename", lambda: delete(client, 2))):
        client.fold()
    assert tombstones_of(client) == [(2, True)]
    assert_right(client)
    assert len(seen(client)) == 2
    client.fold()
    assert (segments_of(client), tombstones_of(client)) == ([(2, 1, 3)], [])
    assert files_with(client.path, vector_of(2)) == []
    assert_right(client)


@pytest.mark.usefixtures("account")
def test_a_reference_that_is_replaced_while_the_first_segment_is_written(client: LocalStore) -> None:
    post(client, 1, 2, 3)
    with at_fault_points(at_first("segment.rename", lambda: replace(client, 2, 50))):
        client.fold()
    assert [seq for seq, _ in tombstones_of(client)] == [2]
    assert_right(client)
    client.fold()
    assert tombstones_of(client) == []
    assert files_with(client.path, vector_of(2)) == []
    assert_right(client)


@pytest.mark.slow
@pytest.mark.parametrize("seq", [2, 9], ids=["of the old segment", "of the tail"])
def test_one_who_is_deleted_while_segments_are_merged(filled: LocalStore, seq: int) -> None:
    vectors = dict(recorded(filled).values()) | {9: vector_of(51)}
    post(filled, *range(51, 56))
    delete(filled, 5)
    with small_segments(most=100), at_fault_points(at_first("segment.rename", lambda: delete(filled, seq))):
        deque(segments.fold(filled), 0)
    assert len(segments_of(filled)) == 1
    assert tombstones_of(filled) == [(seq, True)]
    assert_right(filled)
    filled.fold()
    assert [files_with(filled.path, vectors[number]) for number in (5, seq)] == [[], []]
    assert tombstones_of(filled) == []
    assert_right(filled)


@pytest.mark.slow
def test_one_who_is_deleted_while_a_segment_is_rewritten(filled: LocalStore) -> None:
    vectors = [vector for _, vector in recorded(filled).values()]
    delete(filled, 3)
    with at_fault_points(at_first("segment.rename", lambda: delete(filled, 8))):
        segments.rewrite(filled)
    assert tombstones_of(filled) == [(8, True)]
    assert_right(filled)
    segments.rewrite(filled)
    assert (segments_of(filled), tombstones_of(filled)) == ([(6, 1, 7)], [])
    filled.fold()
    assert [files_with(filled.path, vectors[place]) for place in (2, 7)] == [[], []]
    assert_right(filled)


@pytest.mark.parametrize("seqs", [(1,), (1, 2, 3)], ids=["one", "all"])
@pytest.mark.usefixtures("account")
def test_those_who_are_deleted_before_their_vectors_are_read(
    client: LocalStore, monkeypatch: pytest.MonkeyPatch, seqs: tuple[int, ...]
) -> None:
    post(client, 1, 2, 3)
    submit, left = client.submit, [*seqs]

    def deleted_first(work: Callable[..., object], *args: object, **kwargs: object) -> object:
        if any(each is segments._piece for each in (work, *args)) and left:
            gone, left[:] = [*left], []
            delete(client, *gone)
        return submit(work, *args, **kwargs)

    monkeypatch.setattr(client, "submit", deleted_first)
    client.fold()
    assert tombstones_of(client) == []
    assert segments_of(client) == ([(2, 2, 3)] if len(seqs) == 1 else [])
    assert check_store(client).problems == []


def test_a_directory_that_is_deleted_while_its_segment_is_written(filled: LocalStore) -> None:
    post(filled, *range(51, 56))
    vectors = [vector for _, vector in recorded(filled).values()]
    with at_fault_points(at_first("segment.rename", lambda: filled.delete_directory(1, "main"))):
        filled.fold()
    assert (segments_of(filled), tombstones_of(filled)) == ([], [])
    filled.fold()
    assert [files_with(filled.path, vector) for vector in vectors] == [[]] * len(vectors)
    assert check_store(filled).problems == []


@pytest.mark.usefixtures("account")
def test_a_directory_that_takes_the_number_of_one_whose_segment_is_written(client: LocalStore) -> None:
    post(client, 1, 2, 3)

    def another() -> None:
        client.delete_directory(1, "main")
        commit(client, insertion(1, "another", 50, "X", "Y"))

    with at_fault_points(at_first("segment.rename", another)):
        client.fold()
    assert client.submit(directory_id, 1, "another") == 1
    assert_right(client, "another")
    assert len(seen(client, "another")) == 2
    client.fold()
    assert [files_with(client.path, vector_of(seed)) for seed in (1, 2, 3)] == [[]] * 3
    assert tombstones_of(client) == []
    assert_right(client, "another")


# Crashes and full disks


def prepared(client: LocalStore) -> list[bytes]:
    """A store that `fold` has everything to do in: a segment is rewritten, another merged with the tail, embeddings are
    moved. Returns the vectors that it erases."""
    with small_segments(most=4):
        client.submit(segments.forget, 1)
        client.fold()
    assert [rows for rows, _, _ in segments_of(client)] == [4, 4]
    vectors = dict(recorded(client).values())
    post(client, 50, 51)
    replace(client, 6, 52)
    delete(client, 2)
    return [vectors[2]]


def folded(client: LocalStore) -> tuple[object, ...]:
    """What is there once everything is folded."""
    client.fold()
    assert_right(client)
    return seen(client), [(rows, first) for rows, first, _ in segments_of(client)], tombstones_of(client)


@pytest.mark.slow
def test_killed_at_each_point_the_store_is_whole_and_goes_on(store: Path, tmp_path: Path, journeys: bool) -> None:
    with LocalStore.open(store, command="test") as client:
        erased, before = prepared(client), recorded(client)
        copies = copied_at_points(store, tmp_path, client.fold, every=journeys)
        expected = folded(client)
        assert expected[1:] == ([(3, 1), (6, 5)], [])
    points = [name.partition("-")[2] for name in copies]
    assert {"fold.commit", *(f"segment.{step}" for step in FILE_STEPS)} <= {*points}
    assert not journeys or (points.count("segment.rename") == 3 and points.count("fold.commit") >= 4)
    for point, copy in copies.items():
        with LocalStore.open(copy, command="test") as client:
            assert_right(client)
            assert recorded(client) == before, point
            assert [files_with(client.path, vector) for vector in erased] == [[]], point
            assert folded(client) == expected, point
        shutil.rmtree(copy)


FAULTS = [*(f"segment.{step}" for step in FILE_STEPS), "fold.begin", "fold.commit"]


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.usefixtures("account")
def test_a_full_disk_is_not_filled_further(client: LocalStore, fault: str) -> None:
    """Each new try has another name."""
    post(client, 1, 2, 3)
    with small_segments(least=100):
        client.fold()
    with failing_at(fault, StoreFull(path=client.path, detail="for a test")):
        for _ in range(2):
            with pytest.raises(StoreFull):
                client.fold()
            assert_right(client)
    assert segments_of(client) == []  # and no file
    client.fold()
    assert segments_of(client) == [(3, 1, 3)]
    assert_right(client)


@pytest.mark.slow
def test_a_disk_without_room(filled: LocalStore) -> None:
    post(filled, 50, 51)
    with no_room(), pytest.raises(StoreFull):
        deque(segments.fold(filled), 0)
    assert segments_of(filled) == [(8, 1, 8)]
    assert_right(filled)
    delete(filled, 3)
    with no_room(), pytest.raises(StoreFull):
        filled.fold()
    assert tombstones_of(filled) == [(3, True)]
    assert seen(filled) == recorded(filled)
    filled.fold()
    assert_right(filled)


# Damage


def of_section(file: Path, name: str) -> int:
    return Header.read(file.read_bytes()[:PAGE_BYTES]).sections[name].offset


def of_another_store(file: Path) -> None:
    """The segment of a store whose people are the same."""
    with LocalStore.open(file.parents[2], command="test") as client:
        other = shutil.copytree(client.path, client.path.parent / "other")
    with duckdb.connect(str(other / "catalog-0001.duckdb")) as connection:
        connection.execute("UPDATE core.store SET fact_key = repeat('ab', 32)")
    with LocalStore.open(other, command="test") as client:
        client.submit(segments.forget, 1)
        client.fold()
        (made,) = other.glob("references/*/*")
    file.write_bytes(made.read_bytes())


UNUSABLE: dict[str, Callable[[Path], object]] = {
    "missing": Path.unlink,
    "empty": lambda file: file.write_bytes(b""),
    "cut off": lambda file: file.write_bytes(file.read_bytes()[:-5]),
    "a bit of the header": lambda file: flip(file, 99),
    "a bit of the checksums": lambda file: flip(file, -1),
    "a bit of the numbers": lambda file: flip(file, of_section(file, "seq") + 1),
    "of another store": of_another_store,
}


@pytest.mark.slow
@pytest.mark.parametrize("damage", UNUSABLE.values(), ids=UNUSABLE)
def test_one_that_cannot_be_used_is_made_again(
    store: Path, damage: Callable[[Path], object], caplog: pytest.LogCaptureFixture
) -> None:
    with LocalStore.open(store, command="test") as client:
        replace(client, 2, 50)
        expected = recorded(client)
    (file,) = store.glob("references/*/*")
    damage(file)
    caplog.clear()
    with LocalStore.open(store, command="test") as client:
        assert seen(client) == expected
        assert "the index segments of main are made again from the embeddings" in caplog.text
        assert [(rows, first) for rows, first, _ in segments_of(client)] == [(8, 1)]
        assert tombstones_of(client) == []
        client.fold()
        assert_right(client)
        caplog.clear()
        assert seen(client) == expected
        assert not caplog.text


def test_a_damaged_one_of_few_references_is_deleted_at_once(store: Path) -> None:
    flip(next(store.glob("references/*/*")), 99)
    with small_segments(least=100), LocalStore.open(store, command="test") as client:
        assert len(seen(client)) == 8
        assert segments_of(client) == []
        assert_right(client)


def test_a_damaged_vector_is_never_used(store: Path) -> None:
    with LocalStore.open(store, command="test") as client:
        expected = recorded(client)
    (file,) = store.glob("references/*/*")
    flip(file, of_section(file, "vectors") + 5)
    with LocalStore.open(store, command="test") as client:
        for _ in range(2):
            with pytest.raises(StoreDamaged, match=r"the index segment .* is not as it was written.*check .*--repair"):
                seen(client)
        assert client.check(repair=True).problems == []
        assert seen(client) == expected
        assert_right(client)


@pytest.mark.parametrize("section", ["vectors", "codes", "seq", "image_rows"])
def test_a_damaged_segment_is_not_merged(store: Path, section: str, caplog: pytest.LogCaptureFixture) -> None:
    """Else what is wrong in it would get a valid checksum."""
    (file,) = store.glob("references/*/*")
    flip(file, of_section(file, section) + 2)
    with LocalStore.open(store, command="test") as client:
        post(client, *range(50, 55))
        with small_segments(most=100):
            client.fold()
        assert "are damaged, and made again from the embeddings" in caplog.text
        assert [rows for rows, _, _ in segments_of(client)] == [13]
        assert_right(client)


READ_ONLY = """
from pipeline.matching.calibration import Calibration
from pipeline.matching.match import Matcher
from pipeline.people.directory import Directory
from pipeline.people.records import StoredDirectory
with LocalStore.open(store, command="x", reading=True) as client:
    directory = Directory(StoredDirectory(client, 1, "main"))
    directory.load()
    print(sorted(record.name for record in directory.everybody()))
    try:
        found = stored_people(client, 1, "main")
        view = directory.view()
        nearest = Matcher(Calibration(note=""), 0.54).top_k(view.index, found.vectors, 1)[0]
    except StoreDamaged as exc:
        print("damaged", "check --store" in str(exc))
    else:
        names = [view.person_ids[place] for place in nearest.ravel().tolist()]
        print(len(found), names == [record.person_id for record in found.persons])
    before = sorted(p.name for p in store.rglob("*"))
print(sorted(p.name for p in store.rglob("*")) == before)
"""
READING: dict[str, Callable[[Path], object]] = {"sound": lambda _: None, **UNUSABLE}


@pytest.mark.slow
@pytest.mark.parametrize("damage", READING.values(), ids=READING)
def test_on_a_read_only_disk_people_are_listed_and_found(
    store: Path, tmp_path: Path, damage: Callable[[Path], object]
) -> None:
    """With or without the segment."""
    with LocalStore.open(store, command="test") as client:
        replace(client, 2, 50)
    damage(next(store.glob("references/*/*")))
    assert on_a_read_only_disk(store, tmp_path) == [str(NAMES), "8 True", "True"]


NAMES = sorted(f"Person {n % 4}" for n in range(8))


@pytest.mark.parametrize("section", ["vectors", "person_keys"])
def test_on_a_read_only_disk_a_damaged_vector_is_an_error(store: Path, tmp_path: Path, section: str) -> None:
    """Lists need none."""
    (file,) = store.glob("references/*/*")
    flip(file, of_section(file, section) + 3)
    assert on_a_read_only_disk(store, tmp_path) == [str(NAMES), "damaged True", "True"]


def on_a_read_only_disk(store: Path, tmp_path: Path) -> list[str]:
    disk = tmp_path / "disk"
    shutil.copytree(store, disk / "store")
    mount = f"mount --bind '{disk}' '{disk}' && mount -o remount,bind,ro '{disk}'"
    return in_namespace(disk, mount, READ_ONLY).splitlines()


# Stores of earlier versions


def with_matrices(version: int, folder: Path) -> Path:
    """A store of an earlier version, with the matrices of its directory and of one that was deleted."""
    store = of_version(version, folder)
    (store / "references/g0001").mkdir(exist_ok=True, parents=True)
    for number in (1, 2):
        for end in (".f32", ".crc", ".seq"):
            (store / f"references/g0001/{number}{end}").write_bytes(os.urandom(64))
    listed = ["references/g0001/1", "references/g0001/2.f32", "references/g0001/2.crc", "references/g0001/2.seq"]
    with duckdb.connect(str(store / "catalog-0001.duckdb")) as connection:
        for path in listed:
            connection.execute("INSERT INTO core.pending_deletes VALUES (?, now()::TIMESTAMP)", [path])
    return store


def upgraded(store: Path) -> tuple[object, ...]:
    """Opens it, and writes its segments."""
    with small_segments(most=100), LocalStore.open(store, command="test") as client:
        assert not [file for file in store.glob("references/*/*") if file.suffix != ".segment"]
        (directory,) = client.directories()
        assert client.read("SELECT path FROM core.pending_deletes")["path"].to_pylist() == []
        assert seen(client, directory.name) == recorded(client, directory.name)
        client.fold()
        assert_right(client, directory.name)
        rows, first, _ = segments_of(client)[0]
        return recorded(client, directory.name), rows, first


@pytest.mark.parametrize("version", range(1, 7))
def test_a_store_with_matrices_gets_segments(tmp_path: Path, version: int) -> None:
    found, rows, _ = upgraded(with_matrices(version, tmp_path))
    assert isinstance(found, dict)
    assert len(found) == rows >= 2


@pytest.mark.slow
def test_killed_at_each_point_of_an_upgrade(tmp_path: Path, journeys: bool) -> None:
    store, found = with_matrices(6, tmp_path), []
    copies = copied_at_points(store, tmp_path, lambda: found.append(upgraded(store)), every=journeys)
    points = [name.partition("-")[2] for name in copies]
    assert {"migrate.commit", "unlink", "segment.rename", "fold.commit", "clear_deletes.commit"} <= {*points}
    assert not journeys or points.count("migrate.commit") == SCHEMA_VERSION - 6
    for point, copy in copies.items():
        assert [upgraded(copy)] == found, point
