"""Making a store, opening one, upgrading an older one as a whole or not at all, and what cannot be opened."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pytest

from pipeline.config import load_settings
from pipeline.errors import (
    CorrectionImpossible,
    StoreDamaged,
    StoreError,
    StoreMissing,
    StoreTooNew,
    StoreUnwritable,
)
from pipeline.jobs.people import People
from pipeline.jobs.store import Store
from pipeline.store.catalog import directories
from pipeline.store.catalog.opening import catalog_file
from pipeline.store.checks.check import check_store
from pipeline.store.files.durable import Folder
from pipeline.store.keyed_digests import ERASED
from pipeline.store.local import LocalStore
from pipeline.store.records import Remembered, StoreIdentity
from pipeline.store.schema import SCHEMA_VERSION
from tests.cli.report import facepipe
from tests.store.store_samples import (
    SOURCE,
    Asked,
    commit,
    commit_shard,
    identity,
    insertion,
    of_version,
    posted,
    replacement,
    sha,
    shard_commit,
    unit_vectors,
)
from tests.stored import stored_people

OPEN_AND_DIE = """
import os, signal, sys
from pipeline.store.files import faults
from pipeline.store.keyed_digests import ERASED
from pipeline.store.local import LocalStore
faults.install(lambda name: name == sys.argv[2] and os.kill(os.getpid(), signal.SIGKILL))
LocalStore.open(sys.argv[1], command="migrate")
"""


def never() -> StoreIdentity:
    raise AssertionError("there is a store already")


def edit(store: Path, sql: str) -> None:
    with duckdb.connect(str(store / "catalog-0001.duckdb")) as connection:
        connection.execute(sql)


def test_a_new_store_has_its_identity(tmp_path: Path) -> None:
    with LocalStore.open_or_create(tmp_path / "a" / "store", identity, command="test") as client:
        assert client.identity == identity()
        assert client.generation == 1
        assert (client.path / "CURRENT").read_text() == "catalog-0001.duckdb\n"
        made = client.identity
    with LocalStore.open_or_create(tmp_path / "a" / "store", never, command="test") as client:
        assert client.identity == made


@pytest.mark.parametrize("make", [False, True])
def test_no_store(tmp_path: Path, make: bool) -> None:
    if make:
        (tmp_path / "store").mkdir()
    with pytest.raises(StoreMissing):
        LocalStore.open(tmp_path / "store", command="test")
    assert not (tmp_path / "store" / "LOCK").exists()


def test_after_a_failing_identity_the_next_try_succeeds(tmp_path: Path) -> None:
    def fail() -> StoreIdentity:
        raise LookupError("no weights")

    with pytest.raises(LookupError):
        LocalStore.open_or_create(tmp_path / "store", fail, command="test")
    LocalStore.open_or_create(tmp_path / "store", identity, command="test").close()


def test_a_folder_with_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "holiday.jpg").write_bytes(b"x")
    with pytest.raises(StoreUnwritable, match=r"holiday\.jpg"):
        LocalStore.open_or_create(tmp_path, identity, command="test")
    assert [p.name for p in tmp_path.iterdir()] == ["holiday.jpg"]
    with pytest.raises(StoreUnwritable, match="is a file"):
        LocalStore.open_or_create(tmp_path / "holiday.jpg", identity, command="test")


def test_a_lost_current_is_an_error_with_a_cure(store: Path) -> None:
    text = (store / "CURRENT").read_text()
    (store / "CURRENT").unlink()
    (store / "INTENTS").write_text("")  # as a killed server leaves it
    for attempt in (
        lambda: LocalStore.open(store, command="test"),
        lambda: LocalStore.open_or_create(store, identity, command="test"),
    ):
        with pytest.raises(StoreDamaged, match=r"CURRENT was lost.*catalog-0001\.duckdb"):
            attempt()
    (store / "CURRENT").write_text(text)
    LocalStore.open(store, command="test").close()


def test_a_catalog_in_use_without_current_is_not_replaced(tmp_path: Path) -> None:
    with LocalStore.open_or_create(tmp_path / "s", identity, command="test") as client:
        client.create_account("ann", None)
    (tmp_path / "s" / "CURRENT").unlink()
    with pytest.raises(StoreDamaged, match="a catalog in use"):
        LocalStore.open_or_create(tmp_path / "s", identity, command="test")


@pytest.mark.parametrize("text", ["", "../elsewhere.duckdb\n", "catalog-0002.duckdb\n"])
def test_a_current_that_names_no_catalog(store: Path, text: str) -> None:
    (store / "CURRENT").write_text(text)
    with pytest.raises(StoreDamaged, match="CURRENT names"):
        LocalStore.open(store, command="test")


@pytest.mark.parametrize("command", ["check", "export"])
def test_a_current_that_is_a_folder(store: Path, command: str, tmp_path: Path) -> None:
    (store / "CURRENT").unlink()
    (store / "CURRENT").mkdir()
    to = ("--to", tmp_path / "to") if command == "export" else ()
    result = facepipe(command, "--store", store, *to)
    assert result.exit_code == 43
    assert "CURRENT cannot be read" in result.stderr


@pytest.mark.parametrize("version", ["1", "2", "0", "NULL"])
def test_a_faked_version_of_the_tables_is_damage(store: Path, version: str) -> None:
    edit(store, f"UPDATE core.store SET schema_version = {version}")
    for _ in range(2):
        with pytest.raises(StoreDamaged, match="version"):
            LocalStore.open(store, command="test")


@pytest.mark.parametrize("column", ["format_version", "schema_version"])
def test_a_newer_store_is_refused_before_its_tables_are_checked(store: Path, column: str) -> None:
    edit(store, f"UPDATE core.store SET {column} = 99; DROP VIEW main.persons; DROP TABLE core.objects")
    with pytest.raises(StoreTooNew, match=r"has format 99.*reads up to \d"):
        LocalStore.open(store, command="test")


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("DROP TABLE core.objects", "core.objects is missing"),
        ("ALTER TABLE core.media DROP COLUMN path", r"core\.media\.path is missing"),
        ("DROP VIEW main.faces", r"main\.faces is missing"),
        ("DELETE FROM core.store", "0 rows"),
        ("UPDATE core.generations SET calibration = '{'", "not JSON"),
        ("DELETE FROM core.generations", "does not have the current generation"),
        ("DROP TABLE core.store", "core.store|store does not exist"),
    ],
)
def test_a_catalog_with_another_schema(store: Path, sql: str, message: str) -> None:
    edit(store, sql)
    with pytest.raises(StoreDamaged, match=message):
        LocalStore.open(store, command="test")
    with pytest.raises(StoreDamaged):  # and no lock is left behind
        LocalStore.open(store, command="test")


@pytest.mark.parametrize("damage", ["empty", "text", "half", "header"])
def test_a_catalog_that_duckdb_cannot_open(store: Path, damage: str) -> None:
    file = store / "catalog-0001.duckdb"
    data = bytearray(file.read_bytes())
    data[4100] ^= 0xFF
    contents = {
        "empty": b"x",
        "text": b"not a database" * 1000,
        "half": file.read_bytes()[:9000],
        "header": bytes(data),
    }
    file.write_bytes(contents[damage])
    with pytest.raises(StoreDamaged) as caught:
        LocalStore.open(store, command="test").close()
    assert "facepipe check" in str(caught.value)


def test_a_closed_store_is_an_error(store: Path) -> None:
    client = LocalStore.open(store, command="test")
    client.close()
    client.close()
    with pytest.raises(StoreError, match="is closed"):
        client.accounts()


def version_of(store: Path) -> int:
    catalog = catalog_file(Folder(store))  # another one once the erasure that a stored store owes was made
    with duckdb.connect(str(catalog)) as connection:
        return int(connection.execute("SELECT schema_version FROM core.store").fetchall()[0][0])


def test_a_store_of_version_1_is_upgraded_and_keeps_its_contents(tmp_path: Path) -> None:
    store = of_version(1, tmp_path)
    assert version_of(store) == 1
    with LocalStore.open(store, command="test") as client:
        assert check_store(client).problems == []
        assert not list(client.path.glob("runs/*/manifest.parquet"))  # of a finished run
        found = stored_people(client, client.account_id("ann"), "main")
        assert [record.name for record in found.persons] == ["Person 0", "Person 1"]
        assert {(record.tags, record.ignored, record.parent_id) for record in found.persons} == {((), False, None)}
        np.testing.assert_array_equal(found.vectors, unit_vectors(2, seed=0))
        assert (client.identity.encrypted, client.identity.master_key_id) == (False, None)
    assert version_of(store) == SCHEMA_VERSION
    with LocalStore.open(store, command="again") as client:
        assert check_store(client).problems == []


def test_a_store_of_version_2_is_upgraded_and_keeps_its_contents(tmp_path: Path) -> None:
    store = of_version(2, tmp_path)
    assert version_of(store) == 2
    with LocalStore.open(store, command="test") as client:
        assert check_store(client).problems == []
        found = list(stored_people(client, 1, "main").persons)
        assert [record.name for record in found] == ["Person 0", "Person 1", "A", "B"]
        *_, a, b = found
        assert (a.tags, a.ignored, b.parent_id) == (("vip", "nörth"), True, a.person_id)
        assert {(record.first_name, record.last_name, record.metadata) for record in found} == {(None, None, None)}
        assert client.read("SELECT tags, metadata FROM main.persons WHERE name = 'A'").num_rows == 1
        changed = replace(a, first_name="Ann", metadata='{"gender":"f"}')
        commit(client, Asked(1, "main", updated=[changed]))
        commit(client, replacement(1, "main", 201, changed))
        assert client.image_was_replaced(1, "main", a.image_guid)
    assert version_of(store) == SCHEMA_VERSION
    with LocalStore.open(store, command="again") as client:
        assert check_store(client).problems == []
        assert [record.first_name for record in stored_people(client, 1, "main").persons] == [None, None, "Ann", None]


def test_a_store_of_version_3_is_upgraded_and_keeps_its_hashes_of_pixels(tmp_path: Path) -> None:
    store = of_version(3, tmp_path)
    assert version_of(store) == 3
    with LocalStore.open(store, command="test") as client:
        assert check_store(client).problems == []
        assert client.identity.pixel_key is None  # so SHA-256 goes on
        found = stored_people(client, 1, "main")
        pixels = [sha(f"pixels{SOURCE}/0-{row}.jpg") for row in range(2)]
        pixels += [posted(seed).pixel_hash for seed in (100, 102)]
        assert [hashes[1] for hashes in found.image_hashes] == pixels
        assert [record.first_name for record in found.persons] == [None, None, "Ann", None]
        assert found.persons[2].metadata == '{"gender":"f"}'
        (added,) = commit(client, insertion(1, "main", 201, "C"))
        commit(client, replacement(1, "main", 202, added))
    assert version_of(store) == SCHEMA_VERSION
    with LocalStore.open(store, command="again") as client:
        assert check_store(client).problems == []
        assert stored_people(client, 1, "main").image_hashes[4] == (posted(202).sha256, posted(202).pixel_hash)


def test_a_store_of_version_4_is_upgraded_and_gets_a_key_of_its_own(tmp_path: Path) -> None:
    store, other = (of_version(4, tmp_path / name) for name in ("one", "two"))
    assert version_of(store) == 4
    keys = []
    for path in (store, other):
        with LocalStore.open(path, command="test") as client:
            assert check_store(client).problems == []
            (row,) = client.read("SELECT next_correction_id, fact_key, pixel_key FROM core.store").to_pylist()
            assert row["next_correction_id"] == 1
            assert row["pixel_key"] == identity().pixel_key
            keys.append(bytes.fromhex(row["fact_key"]))
            assert client.read("SELECT gone_at FROM core.media")["gone_at"].null_count == 4
            assert client.read_table("facts").read_all().num_rows == 0
            known = client.known_files("/photos", 1).read_all()
            assert (
                known["path"].to_pylist()
                == client.read("SELECT path FROM core.media WHERE path IS NOT NULL")["path"].to_pylist()
            )
            assert known["sha256"].null_count == 0
            assert known["ctime_ns"].null_count == 2  # the next run reads the files again
            assert [record.name for record in stored_people(client, 1, "main").persons] == [
                "Person 0",
                "Person 1",
                "A",
                "B",
            ]
    assert [len(key) for key in keys] == [32, 32]
    assert keys[0] != keys[1]
    assert version_of(store) == SCHEMA_VERSION
    with LocalStore.open(store, command="again") as client:
        assert bytes.fromhex(client.read("SELECT fact_key FROM core.store")["fact_key"][0].as_py()) == keys[0]


def test_the_labels_of_a_store_of_version_4_are_known(tmp_path: Path) -> None:
    store = of_version(4, tmp_path)
    edit(store, "UPDATE core.media SET name = 'Ä\n', external_id = path WHERE row = 0")
    edit(store, "UPDATE core.faces SET outcome = 'removed' WHERE ordinal = 0 AND media_id = 2")
    with LocalStore.open(store, command="test") as client:
        known = client.known_files("/photos", 1).read_all()
        assert known["media_id"].to_pylist() == [1, 2]
        assert known["label"].to_pylist() == [*client.digests_of_labels([("Ä\n", known["path"][0].as_py())]), ERASED]


def test_the_corrections_of_a_store_of_version_5_can_be_undone(tmp_path: Path) -> None:
    store = of_version(5, tmp_path)
    assert version_of(store) == 5
    with LocalStore.open(store, command="test") as client:
        assert check_store(client).problems == []
        kept = client.read("SELECT kind, undone_at IS NOT NULL AS undone, undoes FROM core.corrections").to_pylist()
        assert [row["kind"] for row in kept if row["undone"]] == ["name"]
        assert {row["undoes"] for row in kept} == {None}
        people = People(Store(client, load_settings(environ={})))
        assert [people.undo().kind for _ in range(4)] == ["split", "unmerge", "merge", "not_same"]
        with pytest.raises(CorrectionImpossible, match="The correction 2 was undone at"):
            people.undo(2)
        assert "not_same" not in client.read_table("facts").read_all()["kind"].to_pylist()
        assert people.undo(10).kind == "undo"
        assert client.read_table("facts").read_all()["kind"].to_pylist().count("not_same") == 1
        assert check_store(client).problems == []
    assert version_of(store) == SCHEMA_VERSION


def test_the_scores_of_a_store_of_version_8_belong_to_its_generation(tmp_path: Path) -> None:
    store = of_version(8, tmp_path)
    assert version_of(store) == 8
    with duckdb.connect(str(store / "catalog-0001.duckdb")) as connection:
        was = connection.execute(
            "SELECT face_id, similarity_score, rejection_reasons FROM core.faces WHERE outcome <> 'removed' ORDER BY 1"
        ).fetchall()
        model = connection.execute("SELECT weights, output_hash, embedding_size FROM core.store").fetchall()
    assert {reasons for *_, reasons in was} == {None, "center-pose,contrast"}
    with LocalStore.open(store, command="test") as client:
        assert check_store(client).problems == []
        scores = (
            "SELECT face_id, similarity_score, rejection_reasons FROM core.detections WHERE generation = 1 ORDER BY 1"
        )
        assert [tuple(row.values()) for row in client.read(scores).to_pylist()] == was
        own = client.identity
        assert [(own.weights, own.output_hash, own.embedding_size)] == model
    assert version_of(store) == SCHEMA_VERSION


def test_a_store_of_version_10_keeps_its_constraints_and_the_methods_of_its_directories(tmp_path: Path) -> None:
    store = of_version(10, tmp_path)
    assert version_of(store) == 10
    edit(store, "UPDATE core.detections SET x1 = x1 + 100, x2 = x2 + 100 WHERE face_id = 6")  # face 5 is beside it
    with LocalStore.open(store, command="test") as client:
        assert check_store(client).problems == []
        assert [row["kind"] for row in client.read_table("facts").read_all().to_pylist()] == ["is"]
        assert client.ask(directories.remembered, 1, "main") == Remembered("0.5", 1, "average-link", 0.99)
        assert client.twice_allowed(1, "main") == set()
        (name,) = client.read("SELECT path FROM core.media WHERE media_id = 3")["path"].to_pylist()
        assert People(Store(client, load_settings(environ={}))).allow_twice(name).kind == "allow_twice"
        assert client.twice_allowed(1, "main") != set()
    assert version_of(store) == SCHEMA_VERSION
    with LocalStore.open(store, command="again") as client:
        assert check_store(client).problems == []


def test_the_photos_of_a_store_of_version_11_have_no_date(tmp_path: Path) -> None:
    store = of_version(11, tmp_path)
    assert version_of(store) == 11
    with LocalStore.open(store, command="test") as client:
        assert check_store(client).problems == []
        assert client.read("SELECT taken_at FROM main.media")["taken_at"].to_pylist() == [None] * 9
        run = client.begin_run("/more", "folder", 1, "main", {})
        client.plan_run(run.run_id, 2, 1)
        shard = shard_commit(client, run, 0, rows=2)
        dates = [datetime(1904, 1, 2, 3, 4, 5), datetime(2106, 5, 6, 7, 8, 9)]
        column = shard.media.column_names.index("taken_at")
        media = shard.media.set_column(column, shard.media.schema.field(column), pa.array(dates, pa.timestamp("us")))
        commit_shard(client, replace(shard, media=media))
        client.finish_run(run.run_id, {})
        assert client.read("SELECT taken_at FROM main.media ORDER BY media_id")["taken_at"].to_pylist()[-2:] == dates
        assert check_store(client).problems == []
    assert version_of(store) == SCHEMA_VERSION


def test_a_new_store_has_a_key_of_its_own(tmp_path: Path) -> None:
    keys = []
    for name in ("one", "two"):
        with LocalStore.open_or_create(tmp_path / name, identity, command="test") as client:
            keys.append(client.read("SELECT fact_key FROM core.store")["fact_key"][0].as_py())
    assert [len(bytes.fromhex(key)) for key in keys] == [32, 32]
    assert keys[0] != keys[1]


def test_a_store_of_version_1_goes_on(tmp_path: Path) -> None:
    """Upgraded tables have new columns at the end, so this also proves that no statement relies on the order."""
    with LocalStore.open(of_version(1, tmp_path), command="test") as client:
        account = client.create_account("bob", None)
        (added,) = commit(client, insertion(account, "main", 1, "A"))
        commit(client, replacement(account, "main", 2, added))
        client.create_account("cid", "hash")
        ann = client.account_id("ann")
        run = client.begin_run("/more", "folder", ann, "main", {})
        client.plan_run(run.run_id, 2, 1)
        commit_shard(client, shard_commit(client, run, 0, rows=2))
        client.finish_run(run.run_id, {})
        people = stored_people(client, ann, "main").persons
        assert [(record.seq, record.name) for record in people] == [
            (1, "Person 0"),
            (2, "Person 1"),
            (5, "Person 0"),
            (6, "Person 1"),
        ]
        commit(client, Asked(ann, "main", deleted=[people[0].person_id]))
        client.fold()
        assert check_store(client).problems == []


@pytest.mark.parametrize("step", ["begin", "commit", "committed"])
def test_a_killed_upgrade_leaves_the_old_or_the_new_version(tmp_path: Path, step: str) -> None:
    store = of_version(1, tmp_path)
    command = [sys.executable, "-c", OPEN_AND_DIE, str(store), f"migrate.{step}"]
    assert subprocess.run(command, check=False, timeout=60).returncode == -signal.SIGKILL
    assert version_of(store) == (2 if step == "committed" else 1)  # one transaction for each version
    with LocalStore.open(store, command="test") as client:
        assert check_store(client).problems == []
    assert version_of(store) == SCHEMA_VERSION
    assert not os.path.lexists(store / "catalog-0001.new.duckdb")


def test_an_unknown_version_is_an_error(tmp_path: Path) -> None:
    store = of_version(1, tmp_path)
    edit(store, "UPDATE core.store SET schema_version = 0")
    with pytest.raises(StoreDamaged, match="version 0"):
        LocalStore.open(store, command="test")
