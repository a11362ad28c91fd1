"""A shard is committed as a whole and once, or not at all."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.errors import StoreError, TooManyDirectories
from pipeline.store import cleanup
from pipeline.store.catalog.connection import Catalog
from pipeline.store.checks.check import check_store
from pipeline.store.files.objects import read_object
from pipeline.store.files.shards import embedding_rows, parquet_bytes
from pipeline.store.local import LocalStore
from pipeline.store.records import RunRow, ShardCommit
from pipeline.store.schema import MAX_DIRECTORIES
from tests.store.store_samples import (
    MANIFEST,
    SHARD_ROWS,
    SIZE,
    commit_shard,
    counters,
    execute,
    failing_at,
    identity,
    manifest_batches,
    rows_of,
    shard_commit,
    unit_vectors,
)
from tests.stored import stored_people


def test_what_was_committed_is_read_back(client: LocalStore, run: RunRow) -> None:
    first = shard_commit(client, run, 0)
    commit_shard(client, first)
    commit_shard(client, shard_commit(client, run, 1))
    assert client.committed_shards(run.run_id) == {0, 1}
    assert counters(client) == (1 + 2 * SHARD_ROWS, 1 + 4 * SHARD_ROWS, 1 + 2 * SHARD_ROWS)
    found = stored_people(client, run.account_id, "main")
    assert found.seq.tolist() == list(range(1, 2 * SHARD_ROWS + 1))
    np.testing.assert_array_equal(found.vectors[:SHARD_ROWS], unit_vectors(SHARD_ROWS, seed=0))
    np.testing.assert_array_equal(found.vectors[SHARD_ROWS:], unit_vectors(SHARD_ROWS, seed=1))
    assert [p.person_id for p in found.persons[:SHARD_ROWS]] == list(first.changes[0].after.persons)
    assert [p.name for p in found.persons[:2]] == ["Person 0", "Person 1"]
    assert [p.occurrence for p in found.persons[:2]] == [2, 1]  # the second shard matched the first person
    assert found.persons[0].image_guid == first.pictures[0][0]
    media = first.media.to_pylist()[1]
    assert found.image_hashes[1] == (media["sha256"], media["pixel_hash"])
    assert found.boxes[1].tolist() == [11.0, 20.0, 60.0, 80.0]
    for guid, data, _ in first.pictures:
        assert read_object(client.folder, guid) == data
    person = client.read("SELECT * FROM main.persons ORDER BY added_at, person_id").to_pylist()
    assert {row["occurrence"] for row in person} == {1, 2}  # the second shard matched the first person
    assert {(row["account"], row["directory"]) for row in person} == {("ann", "main")}
    assert check_store(client).problems == []


def test_a_second_commit_of_a_shard_changes_nothing(client: LocalStore, run: RunRow) -> None:
    shard = shard_commit(client, run, 0)
    commit_shard(client, shard)
    before, files = rows_of(client), sorted(client.path.rglob("*"))
    again = replace(shard, embeddings=embedding_rows([2], unit_vectors(1, seed=9)))
    with pytest.raises(StoreError, match="is committed already"):
        commit_shard(client, again)
    assert rows_of(client) == before
    assert sorted(client.path.rglob("*")) == files
    assert check_store(client).problems == []


NOBODY = "00000000-0000-0000-0000-000000000000"
WRONG: dict[str, tuple[Callable[[ShardCommit], ShardCommit], str]] = {
    "no person": (
        lambda c: replace(c, changes=[replace(c.changes[0], seen={NOBODY: 1}, seqs={NOBODY: 1})]),
        "1 of the persons to be changed are not in the directory",
    ),
    "old ids": (
        lambda c: replace(c, media=c.media.set_column(0, "media_id", pa.array([1] * len(c.media), pa.int64()))),
        "ids that are taken",
    ),
    "no column": (
        lambda c: replace(c, faces=c.faces.drop_columns(["outcome"])),
        "faces of shard 0 don't have the right columns",
    ),
    "size": (
        lambda c: replace(c, embeddings=embedding_rows([1], unit_vectors(1, 0, SIZE + 1))),
        "embeddings of shard 0 don't have the right columns",
    ),
    "run": (lambda c: replace(c, run_id="nobody"), 'no run "nobody"'),
    "past the end": (lambda c: replace(c, shard=10), "has 10 shards, but no shard 10"),
    "path as guid": (
        lambda c: replace(
            c, changes=[replace(c.changes[0], pictures={NOBODY: ("../../../etc/x", b"x", "image/jpeg")})]
        ),
        "cannot name an object",
    ),
}


@pytest.mark.parametrize(("change", "message"), WRONG.values(), ids=WRONG)
def test_an_invalid_commit_stores_nothing(
    client: LocalStore, run: RunRow, change: Callable[[ShardCommit], ShardCommit], message: str
) -> None:
    commit_shard(client, shard_commit(client, run, 1))
    good = shard_commit(client, run, 0)
    before = rows_of(client)
    with pytest.raises(StoreError, match=message):
        commit_shard(client, change(good))
    assert rows_of(client) == before
    commit_shard(client, good)
    assert check_store(client).problems == []


@pytest.mark.parametrize("step", ["object.rename", "embeddings.fsync", "commit_shard.begin", "commit_shard.commit"])
def test_a_failure_before_the_commit_rolls_back_and_the_repeat_leaves_no_orphan(
    client: LocalStore, run: RunRow, step: str
) -> None:
    shard = shard_commit(client, run, 0)
    before = rows_of(client)
    with failing_at(step, RuntimeError(step)), pytest.raises(RuntimeError, match=step):
        commit_shard(client, shard)
    assert rows_of(client) == before
    commit_shard(client, shard)
    execute(client, "UPDATE core.runs SET state = 'finished', shards = 1")
    assert check_store(client).problems == []


def test_at_most_ten_directories_hold_an_identity(client: LocalStore, run: RunRow) -> None:
    for shard in range(MAX_DIRECTORIES - 1):
        commit_shard(client, shard_commit(client, run, shard, rows=1, directory=f"d{shard}"))
    commit_shard(client, shard_commit(client, run, 9, rows=1, directory="last"))
    assert len(client.directories()) == MAX_DIRECTORIES
    other = client.begin_run("/more", "folder", run.account_id, "main", {})
    client.plan_run(other.run_id, 2, 2)
    before = rows_of(client)
    with pytest.raises(TooManyDirectories, match='account "ann" 11 directories; an account holds at most 10'):
        commit_shard(client, shard_commit(client, other, 0, rows=1, directory="eleventh"))
    assert rows_of(client) == before
    commit_shard(client, shard_commit(client, other, 0, rows=1, directory="d3"))


def test_media_without_identity_make_no_directory(client: LocalStore, run: RunRow) -> None:
    shard = shard_commit(client, run, 0)
    empty = replace(shard, faces=shard.faces[:0], embeddings=shard.embeddings[:0], changes=[])
    commit_shard(client, empty)
    assert client.directories() == []
    assert len(stored_people(client, run.account_id, "main")) == 0
    assert stored_people(client, run.account_id, "main").vectors.shape == (0, SIZE)
    assert not list(client.path.glob("embeddings/*/*"))
    assert check_store(client).problems == []


def test_the_embedding_shard_has_its_metadata(client: LocalStore, run: RunRow) -> None:
    commit_shard(client, shard_commit(client, run, 0))
    (file,) = client.path.glob("embeddings/g0001/*.parquet")
    assert file.name == f"{run.run_id}-00000.parquet"
    schema = pq.read_schema(file)
    assert schema.field("embedding").type == pa.list_(pa.float32(), SIZE)
    assert pq.ParquetFile(file).metadata.row_group(0).column(0).compression == "ZSTD"
    text = schema.metadata[b"facepipe"].decode()
    for part in ('"weights_sha256": "0000', '"mode": "exact"', '"generation": 1', '"output_hash": "1111'):
        assert part in text


def test_an_embedding_shard_takes_less_than_its_vectors() -> None:
    vectors = np.random.default_rng(1).standard_normal((256, 512), dtype=np.float32)
    assert len(parquet_bytes(embedding_rows(range(256), vectors), {})) < vectors.nbytes


def test_finished_run_shards_are_deleted_and_pending_deletes_replayed(tmp_path: Path) -> None:
    with LocalStore.open_or_create(tmp_path / "s", identity, command="test") as client:
        account = client.create_account("ann", None)
        run = client.begin_run("/x", "folder", account, "main", {})
        client.write_manifest(run.run_id, manifest_batches([4]), MANIFEST)
        client.plan_run(run.run_id, 4, 1)
        client.write_run_shard(run.run_id, 0, pa.table({"a": [1]}), {})
        with failing_at("unlink", RuntimeError("unlink")), pytest.raises(RuntimeError, match="unlink"):
            commit_shard(client, shard_commit(client, run, 0))
        assert client.extracted_shards(run.run_id) == {0}
        assert client.committed_shards(run.run_id) == {0}
        assert [p.kind for p in check_store(client).problems] == ["pending_delete"]
    with LocalStore.open(tmp_path / "s", command="test") as client:
        assert client.extracted_shards(run.run_id) == set()
        assert check_store(client).problems == []
        assert len(stored_people(client, account, "main")) == SHARD_ROWS


def test_all_of_many_listed_files_are_deleted(tmp_path: Path) -> None:
    with LocalStore.open_or_create(tmp_path / "s", identity, command="test") as client:
        listed = [f"runs/{number}/run.json" for number in range(1100)]
        for file in listed[1:]:  # the first is missing
            client.folder.path(file).parent.mkdir()
            client.folder.path(file).write_text("{}")
        client.submit(cleanup.delete_later, [*listed, *listed[:600]])  # some twice
        client.unlink_needless()
        assert not [*client.path.glob("runs/*/run.json")]
        assert client.submit(cleanup.pending_files) == []


def test_nobody_waits_for_the_checkpoint_after_his_answer(client: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """He may hold a directory's lock."""
    answered, in_time = threading.Event(), list[bool]()
    monkeypatch.setattr(Catalog, "keep_log_short", lambda _: in_time.append(answered.wait(60)))
    client.create_account("bob", None)
    answered.set()
    assert client.accounts() == ["bob"]
    assert in_time[0]


def test_work_that_waits_goes_before_a_checkpoint(client: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    done, queued = list[str](), threading.Event()
    monkeypatch.setattr(Catalog, "keep_log_short", lambda _: done.append("checkpoint"))
    first = client.begin(lambda _: done.append("first" if queued.wait(60) else "alone"))
    second = client.begin(lambda _: done.append("second"))
    queued.set()
    first.result(), second.result()
    client.close()
    assert done == ["first", "second"] or done[:3] == ["first", "second", "checkpoint"]


@pytest.mark.slow
def test_calls_from_many_threads_run_one_after_another(client: LocalStore, run: RunRow) -> None:
    def add(number: int) -> int:
        stored_people(client, run.account_id, "main")
        return client.create_account(f"user{number}", None)

    with ThreadPoolExecutor(8) as pool:
        ids = list(pool.map(add, range(24)))
    assert sorted(ids) == list(range(2, 26))
