"""The changes of one request are committed as a whole and durably, or not at all."""

from __future__ import annotations

import itertools
import uuid
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pipeline.errors import DirectoryUnknown, ObjectUnknown, StoreError, StoreFull, TooManyDirectories
from pipeline.store import segments
from pipeline.store.checks.check import check_store
from pipeline.store.files.objects import read_object
from pipeline.store.local import LocalStore
from pipeline.store.records import Deleted, DirectoryRow, RunRow
from pipeline.store.schema import MAX_DIRECTORIES, TABLES
from tests.store.store_samples import (
    JPEG,
    NOW,
    Asked,
    at_fault_points,
    commit,
    commit_shard,
    counters,
    execute,
    failing_at,
    identity,
    insertion,
    person,
    posted,
    reference,
    replacement,
    rows_of,
    segments_of,
    sha,
    shard_commit,
    small_segments,
    unit_vectors,
)
from tests.stored import stored_people


def objects_on_disk(client: LocalStore) -> list[str]:
    return sorted(path.name for path in client.path.glob("objects/*/*/*"))


def test_an_insertion_is_read_back(client: LocalStore, account: int) -> None:
    change = insertion(account, "main", 1, "A", "B")
    change = replace(
        change, inserted=[replace(change.inserted[0], tags=("ä", "b,c"), ignored=True), change.inserted[1]]
    )
    returned = commit(client, change)
    assert [record.seq for record in returned] == [1, 2]
    assert [record.image_guid for record in returned] == [one.image_guid for one in change.references]
    found = stored_people(client, account, "main")
    assert list(found.persons) == returned
    assert found.persons[0].tags == ("ä", "b,c")
    assert found.persons[0].last_occurrence_at == NOW
    np.testing.assert_array_equal(found.vectors, [unit_vectors(1, 1)[0], unit_vectors(1, 2)[0]])
    assert set(found.image_hashes) == {(posted(1).sha256, posted(1).pixel_hash)}
    assert found.boxes.tolist() == [[10, 20, 60, 80]] * 2
    for one in change.references:
        assert client.read_image(account, one.image_guid) == (one.image, "image/jpeg")
    (media,) = client.read("SELECT * FROM main.media").to_pylist()
    assert (media["path"], media["status"], media["sha256"]) == (None, "ok", posted(1).sha256)
    faces = client.read("SELECT path, outcome, similarity_score FROM main.faces").to_pylist()
    assert faces == [{"path": None, "outcome": "inserted", "similarity_score": 1.5}] * 2
    assert check_store(client).problems == []


def test_an_insertion_survives_a_killed_process(tmp_path: Path) -> None:
    with LocalStore.open_or_create(tmp_path / "s", identity, command="test") as client:
        account = client.create_account("ann", None)
        commit(client, insertion(account, "main", 1, "A"))
        for name in ("catalog-0001.duckdb", "catalog-0001.duckdb.wal", "COMMITS", "CURRENT"):  # as a kill leaves them
            (tmp_path / "copy" / name).parent.mkdir(exist_ok=True)
            (tmp_path / "copy" / name).write_bytes((client.path / name).read_bytes())
    with LocalStore.open(tmp_path / "copy", command="test") as client:
        assert [record.name for record in stored_people(client, account, "main").persons] == ["A"]


def test_a_replaced_reference_is_removed_with_its_image_and_face(client: LocalStore, account: int) -> None:
    first, other = commit(client, insertion(account, "main", 1, "A", "B"))
    (changed,) = commit(client, replacement(account, "main", 9, first))
    assert (changed.occurrence, changed.seq) == (2, 1)
    assert changed.image_guid != first.image_guid
    found = stored_people(client, account, "main")
    assert list(found.persons) == [changed, other]
    np.testing.assert_array_equal(found.vectors, [unit_vectors(1, 9)[0], unit_vectors(1, 2)[0]])
    assert found.image_hashes[0][0] == posted(9).sha256
    assert objects_on_disk(client) == sorted([changed.image_guid, other.image_guid])
    with pytest.raises(ObjectUnknown):
        client.read_image(account, first.image_guid)
    seqs = client.read("SELECT seq FROM core.reference_faces ORDER BY 1")["seq"].to_pylist()
    assert seqs == [2, 3]  # a number that was never used
    assert (rows_of(client)["media"], rows_of(client)["faces"], rows_of(client)["pending_embeddings"]) == (2, 2, 2)
    commit(client, replacement(account, "main", 10, other))
    assert rows_of(client)["media"] == 2  # with its last reference the first image went
    assert check_store(client).problems == []


def test_a_replaced_image_is_remembered_for_a_day(client: LocalStore, account: int) -> None:
    (record,) = commit(client, insertion(account, "main", 1, "A"))
    (other,) = commit(client, insertion(account, "other", 2, "B"))
    commit(client, replacement(account, "main", 9, record))
    bob = client.create_account("bob", None)

    def remembered() -> list[bool]:
        asked = [(account, "main"), (account, "other"), (bob, "main")]
        return [client.image_was_replaced(*place, record.image_guid) for place in asked]

    assert remembered() == [True, False, False]
    assert not client.image_was_replaced(account, "other", other.image_guid)
    client.fold()
    assert remembered() == [True, False, False]
    execute(client, "UPDATE core.replaced_images SET replaced_at = replaced_at - INTERVAL 1 DAY")
    assert remembered() == [False, False, False]
    client.fold()
    assert rows_of(client)["replaced_images"] == 0
    assert check_store(client).problems == []


def test_a_replaced_image_is_forgotten_with_its_person(client: LocalStore, account: int) -> None:
    (record,) = commit(client, insertion(account, "main", 1, "A"))
    commit(client, replacement(account, "main", 9, record))
    commit(client, Asked(account, "main", deleted=[record.person_id]))
    assert rows_of(client)["replaced_images"] == 0


def test_the_face_of_a_replaced_reference_of_a_run_stays(filled: LocalStore) -> None:
    record = stored_people(filled, 1, "main").persons[0]
    before = filled.read("SELECT * FROM main.faces WHERE face_id = 1").to_pylist()
    commit(filled, replacement(1, "main", 9, record))
    assert filled.read("SELECT * FROM main.faces WHERE face_id = 1").to_pylist() == before
    assert filled.read("SELECT count(*) AS n FROM core.embeddings WHERE face_id = 1")["n"].to_pylist() == [1]
    assert record.image_guid not in objects_on_disk(filled)
    filled.fold()
    assert check_store(filled).problems == []


def test_only_updated_persons_are_written(client: LocalStore, account: int) -> None:
    a, b, c = commit(client, insertion(account, "main", 1, "A", "B", "C"))
    a = replace(a, parent_id=b.person_id, name=None, external_id="new", tags=("t",), occurrence=7)
    a = replace(a, first_name="A", last_name="Z", metadata='{"ä":"\\u0000"}')
    b = replace(b, ignored=True)
    assert commit(client, Asked(account, "main", updated=[a, b])) == [a, b]
    assert list(stored_people(client, account, "main").persons) == [a, b, c]
    (view,) = client.read("SELECT * FROM main.persons WHERE external_id = 'new'").to_pylist()
    assert (view["root_person_id"], view["name"]) == (b.person_id, None)
    assert (view["first_name"], view["last_name"], view["tags"]) == ("A", "Z", '["t"]')
    assert view["metadata"] == a.metadata
    assert check_store(client).problems == []


def test_nothing_of_a_deleted_person_stays(client: LocalStore, account: int) -> None:
    first, other = commit(client, insertion(account, "main", 1, "A", "B"))
    commit(client, Asked(account, "main", deleted=[first.person_id]))
    assert [record.name for record in stored_people(client, account, "main").persons] == ["B"]
    assert objects_on_disk(client) == [other.image_guid]
    for table, columns in TABLES.items():
        kept = " EXCLUDE (gone)" if table == "corrections" else ""  # which tells readers of changes to drop the id
        assert first.person_id not in str(client.read(f"SELECT *{kept} FROM core.{table}").to_pylist()), table
        assert "x-A" not in str(client.read(f"SELECT * FROM core.{table}").to_pylist()), (table, columns)
    assert client.read("SELECT name FROM core.media")["name"].to_pylist() == [None]  # it was the largest face's
    counts = rows_of(client)
    tables = ("media", "faces", "detections", "pending_embeddings", "reference_faces", "objects")
    assert [counts[table] for table in tables] == [1] * 6
    assert check_store(client).problems == []


def test_faces_of_a_run_lose_their_deleted_person(filled: LocalStore) -> None:
    record = stored_people(filled, 1, "main").persons[0]
    execute(filled, "UPDATE core.media SET name = 'Person 0' WHERE media_id IN (1, 2)")
    before, known = rows_of(filled), filled.media_of_hashes(1, [sha("/photos/0-0.jpg"), sha("/photos/0-1.jpg")])
    commit(filled, Asked(1, "main", deleted=[record.person_id]))
    (face,) = filled.read("SELECT * FROM core.faces WHERE face_id = 1").to_pylist()
    assert (face["outcome"], face["person_id"]) == ("removed", None)
    names = filled.read("SELECT name, extra, path FROM core.media WHERE media_id < 3 ORDER BY media_id").to_pylist()
    assert [row["name"] for row in names] == [None, "Person 0"]
    assert names[0]["extra"] is None
    assert names[0]["path"] is None  # a digest of it is kept, so that the next run does not take the file again
    assert filled.forgotten_photos(1, ["main"], ["/photos/0-0.jpg"], [sha("/photos/0-0.jpg")]) == {
        "/photos/0-0.jpg",
        sha("/photos/0-0.jpg"),
    }
    # The photo's rejected face is removed as well.
    assert filled.read("SELECT count(*) AS n FROM main.faces")["n"].to_pylist() == [14]
    assert known == {}  # each photo of the sample has a rejected face
    after = rows_of(filled)
    lost = {table: before[table] - after[table] for table in TABLES if before[table] != after[table]}
    assert lost == {
        **dict.fromkeys(["embeddings", "persons", "reference_faces", "objects", "files"], 1),
        **dict.fromkeys(["detections", "page_subjects"], 2),
        "forgotten": -2,
        "corrections": -1,  # which tells who was deleted
        "tombstones": -1,  # in its segment
        "erasures": -1,
    }
    assert check_store(filled).problems == []


def test_an_image_with_a_removed_face_is_not_reused(client: LocalStore, run: RunRow) -> None:
    shard = shard_commit(client, run, 0)
    kept = [row for row, ordinal in enumerate(shard.faces["ordinal"].to_pylist()) if ordinal == 0]
    commit_shard(client, replace(shard, faces=shard.faces.take(kept)))
    wanted = [sha("/photos/0-0.jpg"), sha("/photos/0-1.jpg")]
    assert client.media_of_hashes(run.account_id, wanted) == {wanted[0]: 1, wanted[1]: 2}
    gone = stored_people(client, run.account_id, "main").persons[0].person_id
    commit(client, Asked(run.account_id, "main", deleted=[gone]))
    assert client.media_of_hashes(run.account_id, wanted) == {wanted[1]: 2}


def test_a_posted_image_is_not_reused_by_a_run(client: LocalStore, account: int) -> None:
    commit(client, insertion(account, "main", 1, "A"))
    assert client.media_of_hashes(account, [posted(1).sha256]) == {}


def test_a_directory_exists_while_it_holds_an_identity(client: LocalStore, account: int) -> None:
    assert client.directories() == []
    (first,) = commit(client, insertion(account, "one", 1, "A"))
    (second,) = commit(client, insertion(account, "two", 2, "B"))
    assert client.directories() == [DirectoryRow(account, "ann", name, 1, 1) for name in ("one", "two")]
    with small_segments(1):
        deque(segments.fold(client), 0)
    assert segments_of(client, 2) == [(1, 2, 2)]
    commit(client, Asked(account, "two", deleted=[second.person_id]))
    assert client.directories() == [DirectoryRow(account, "ann", "one", 1, 1)]
    assert segments_of(client, 2) == []
    commit(client, insertion(account, "three", 3, "C"))  # takes the same number
    assert [record.name for record in stored_people(client, account, "three").persons] == ["C"]
    assert client.delete_directory(account, "one") == Deleted(1, 0)
    with pytest.raises(DirectoryUnknown, match=r'"ann" has no directory "one"\. Directories: three'):
        client.delete_directory(account, "one")
    assert first.image_guid not in objects_on_disk(client)
    assert check_store(client).problems == []


def test_the_eleventh_directory_is_refused(client: LocalStore, account: int) -> None:
    for number in range(MAX_DIRECTORIES):
        commit(client, insertion(account, f"d{number}", 10 + number, f"P{number}"))
    before, files = rows_of(client), objects_on_disk(client)
    with pytest.raises(TooManyDirectories):
        commit(client, insertion(account, "eleventh", 50, "X"))
    assert rows_of(client) == before
    assert objects_on_disk(client) == files
    other = client.create_account("bob", None)
    commit(client, insertion(other, "d0", 60, "Y"))  # each account has a limit of its own
    client.delete_directory(account, "d3")
    commit(client, insertion(account, "eleventh", 70, "X"))
    assert check_store(client).problems == []


def test_accounts_share_nothing(client: LocalStore, account: int) -> None:
    other = client.create_account("bob", None)
    (mine,) = commit(client, insertion(account, "main", 1, "A"))
    (his,) = commit(client, insertion(other, "main", 2, "B"))
    assert list(stored_people(client, account, "main").persons) == [mine]
    for change in (
        Asked(other, "main", deleted=[mine.person_id]),
        Asked(other, "main", updated=[mine]),
        replacement(other, "main", 3, mine),
    ):
        with pytest.raises(StoreError, match="not in the directory"):
            commit(client, change)
    assert list(stored_people(client, account, "main").persons) == [mine]
    assert list(stored_people(client, other, "main").persons) == [his]
    assert objects_on_disk(client) == sorted([mine.image_guid, his.image_guid])


A, B = person("A"), person("B")
NOBODY = "00000000-0000-0000-0000-000000000000"
WRONG: dict[str, tuple[Callable[[Asked], Asked], str]] = {
    "changed and deleted": (lambda c: replace(c, deleted=[A.person_id]), "changed and deleted"),
    "no reference": (lambda c: replace(c, inserted=[A, B]), "has no reference"),
    "size": (
        lambda c: replace(c, references=[replace(c.references[0], embedding=unit_vectors(1, 0, 9)[0])]),
        "8 numbers",
    ),
    "guid": (
        lambda c: replace(c, references=[replace(c.references[0], image_guid="../../x")]),
        "cannot name an object",
    ),
    "unknown deleted": (lambda c: replace(c, deleted=[NOBODY]), "1 of the persons are not in"),
    "unknown updated": (lambda c: replace(c, updated=[B]), "1 of the persons to be changed are not in the directory"),
    "unknown replaced": (
        lambda c: replace(c, references=[*c.references, reference(B, 5, outcome="matched")]),
        "1 of the persons are not in",
    ),
    "unknown account": (lambda c: replace(c, account_id=77), "no account 77"),
    "unknown directory": (
        lambda c: Asked(c.account_id, "nowhere", deleted=[NOBODY]),
        'has no directory "nowhere"',
    ),
}


@pytest.mark.parametrize(("change", "message"), WRONG.values(), ids=WRONG)
def test_an_invalid_commit_stores_nothing(
    client: LocalStore, account: int, change: Callable[[Asked], Asked], message: str
) -> None:
    commit(client, insertion(account, "main", 90, "before"))
    before = rows_of(client), counters(client), objects_on_disk(client)
    good = insertion(account, "main", 1, "A")
    with pytest.raises(StoreError, match=message):
        commit(client, change(good))
    assert (rows_of(client), counters(client), objects_on_disk(client)) == before
    commit(client, good)
    assert check_store(client).problems == []


def test_a_parent_is_not_deleted_before_its_child(client: LocalStore, account: int) -> None:
    a, b = commit(client, insertion(account, "main", 1, "A", "B"))
    child = replace(a, parent_id=b.person_id)
    commit(client, Asked(account, "main", updated=[child]))
    with pytest.raises(StoreError, match="parent of another"):
        commit(client, Asked(account, "main", deleted=[b.person_id]))
    commit(client, Asked(account, "main", updated=[a], deleted=[b.person_id]))
    assert list(stored_people(client, account, "main").persons) == [a]


@pytest.mark.parametrize("step", ["object.write", "object.rename", "change.begin", "change.commit"])
def test_a_failure_before_the_commit_leaves_nothing(client: LocalStore, account: int, step: str) -> None:
    (first,) = commit(client, insertion(account, "main", 1, "A"))
    before, files = rows_of(client), objects_on_disk(client)
    _fail_at(step, lambda: commit(client, replacement(account, "main", 2, first)))
    assert (rows_of(client), objects_on_disk(client)) == (before, files)
    commit(client, replacement(account, "main", 2, first))
    assert check_store(client).problems == []


@pytest.mark.parametrize("step", ["change.committed", "unlink"])
def test_a_failure_after_the_commit_loses_nothing(client: LocalStore, account: int, step: str) -> None:
    (first,) = commit(client, insertion(account, "main", 1, "A"))
    change = replacement(account, "main", 2, first)
    _fail_at(step, lambda: commit(client, change))
    (found,) = stored_people(client, account, "main").persons
    assert read_object(client.folder, found.image_guid) == change.references[0].image
    commit(client, replacement(account, "main", 3, found))
    assert check_store(client).problems == []
    assert len(objects_on_disk(client)) == 1


def _fail_at(step: str, work: Callable[[], object]) -> None:
    calls = itertools.count()

    def fail(name: str) -> None:
        if name == step and next(calls) == 0:
            raise RuntimeError(step)

    with at_fault_points(fail), pytest.raises(RuntimeError, match=step):
        work()


def test_the_files_of_a_new_reference_are_durable_before_its_rows(client: LocalStore, account: int) -> None:
    commit(client, insertion(account, "main", 1, "A"))
    seen: list[str] = []
    change = insertion(account, "main", 2, "B").change(client)
    with at_fault_points(seen.append):
        client.commit(change)
    assert seen == [
        *("object.write", "object.fsync", "object.rename", "object.fsync_folder"),
        *("change.begin", "change.commit"),
        *("commits.write", "commits.fsync", "change.committed"),  # nobody is told before
    ]


def test_posts_between_the_shards_of_a_run(client: LocalStore, run: RunRow) -> None:
    """Both draw ids; the order of the identities is that of the commits."""
    prepared = client.prepare_shard(shard_commit(client, run, 0))
    commit(client, insertion(run.account_id, "main", 1, "A"))
    client.commit_prepared(prepared)
    client.finish_shard()
    commit(client, insertion(run.account_id, "main", 2, "B"))
    commit_shard(client, shard_commit(client, run, 1))
    names = [record.name for record in stored_people(client, run.account_id, "main").persons]
    assert names == ["A", *(f"Person {n}" for n in range(4)), "B", *(f"Person {n}" for n in range(4))]


def test_the_labels_of_a_replaced_face_are_removed_with_it(client: LocalStore, account: int) -> None:
    first, _ = commit(client, insertion(account, "main", 1, "A", "B"))
    commit(client, replacement(account, "main", 9, first))
    names = client.read("SELECT name FROM core.media ORDER BY media_id")["name"].to_pylist()
    assert names == [None, "Posted"]  # of the first image only the smaller face is still there
    commit(client, Asked(account, "main", deleted=[first.person_id]))
    assert "Posted" not in str(client.read("SELECT * FROM core.media").to_pylist())


def test_labels_of_a_face_that_is_not_a_reference_are_not_kept(client: LocalStore, account: int) -> None:
    change = insertion(account, "main", 1, "A")
    commit(client, replace(change, references=[replace(change.references[0], ordinal=1)]))
    assert client.read("SELECT name, external_id FROM core.media").to_pylist() == [{"name": None, "external_id": None}]
    assert check_store(client).problems == []


@pytest.mark.parametrize("fault", ["unlink", "clear_deletes.begin", "clear_deletes.commit"])
def test_a_file_that_cannot_be_deleted_yet_fails_no_commit(client: LocalStore, account: int, fault: str) -> None:
    """The rows are committed by then: after an error the caller would go on with the old state."""
    first, other = commit(client, insertion(account, "main", 1, "A", "B"))
    with failing_at(fault, StoreFull(path=client.path, detail="for a test")):
        commit(client, replacement(account, "main", 9, first))
        commit(client, Asked(account, "main", deleted=[other.person_id]))
        assert client.delete_directory(account, "main") == Deleted(1, 0)
    assert [record.name for record in stored_people(client, account, "main").persons] == []
    client.close()
    with LocalStore.open(client.path, command="test") as again:
        assert objects_on_disk(again) == []
        assert check_store(again).problems == []


def test_images_ahead_that_no_commit_takes_are_removed(client: LocalStore) -> None:
    guids = sorted(str(uuid.uuid4()) for _ in range(3))
    with client.images_ahead(1, [(guid, JPEG + guid.encode(), "image/jpeg") for guid in guids]) as ahead:
        assert objects_on_disk(client) == guids == sorted(ahead)
    assert objects_on_disk(client) == []


def test_a_failure_leaves_no_images_ahead(client: LocalStore) -> None:
    guid = str(uuid.uuid4())
    with pytest.raises(StoreError, match="cannot name an object"), client.images_ahead(1, [(guid, JPEG, "image/jpeg")]):
        read_object(client.folder, "no guid")
    assert objects_on_disk(client) == []
