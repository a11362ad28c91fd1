"""Opening a store of an older version upgrades it as a whole or not at all."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import duckdb
import numpy as np
import pytest

from pipeline.errors import StoreDamaged
from pipeline.store.checks.check import check_store
from pipeline.store.local import LocalStore
from pipeline.store.records import DirectoryCommit
from pipeline.store.schema import SCHEMA_VERSION
from tests.store import store_samples
from tests.store.store_samples import insertion, replacement, unit_vectors, version_1

OPEN_AND_DIE = f"""
import os, signal, sys
sys.path.insert(0, {str(Path(store_samples.__file__).parent)!r})
from pipeline.store.files import faults
from pipeline.store.local import LocalStore
faults.install(lambda name: name == sys.argv[2] and os.kill(os.getpid(), signal.SIGKILL))
LocalStore.open(sys.argv[1], command="migrate")
"""


def version_of(store: Path) -> int:
    with duckdb.connect(str(store / "catalog-0001.duckdb")) as connection:
        return int(connection.execute("SELECT schema_version FROM core.store").fetchall()[0][0])


def test_a_store_of_version_1_is_upgraded_and_keeps_its_contents(tmp_path: Path) -> None:
    store = version_1(tmp_path)
    assert version_of(store) == 1
    with LocalStore.open(store, command="test") as client:
        assert check_store(client).problems == []
        assert not list(client.path.glob("runs/*/manifest.parquet"))  # of a finished run
        found = client.references(client.account_id("ann"), "main")
        assert [record.name for record in found.persons] == ["Person 0", "Person 1"]
        assert {(record.tags, record.ignored, record.parent_id) for record in found.persons} == {((), False, None)}
        np.testing.assert_array_equal(found.vectors, unit_vectors(2, seed=0))
        assert (client.identity.encrypted, client.identity.master_key_id) == (False, None)
    assert version_of(store) == SCHEMA_VERSION
    with LocalStore.open(store, command="again") as client:
        assert check_store(client).problems == []


def test_a_store_of_version_1_goes_on(tmp_path: Path) -> None:
    """Upgraded tables have new columns at the end, so this also proves that no statement relies on the order."""
    with LocalStore.open(version_1(tmp_path), command="test") as client:
        account = client.create_account("bob", None)
        (added,) = client.commit_directory(insertion(account, "main", 1, "A"))
        client.commit_directory(replacement(account, "main", 2, added))
        client.create_account("cid", "hash")
        ann = client.account_id("ann")
        run = client.begin_run("/more", "folder", ann, "main", {})
        client.plan_run(run.run_id, 2, 1)
        client.commit_shard(store_samples.shard_commit(client, run, 0, rows=2))
        client.finish_run(run.run_id, {})
        people = client.references(ann, "main").persons
        assert [(record.seq, record.name) for record in people] == [
            (1, "Person 0"),
            (2, "Person 1"),
            (5, "Person 0"),
            (6, "Person 1"),
        ]
        client.commit_directory(DirectoryCommit(ann, "main", deleted=[people[0].person_id]))
        client.fold()
        assert check_store(client).problems == []


@pytest.mark.parametrize("step", ["begin", "commit", "committed"])
def test_a_killed_upgrade_leaves_the_old_or_the_new_version(tmp_path: Path, step: str) -> None:
    store = version_1(tmp_path)
    command = [sys.executable, "-c", OPEN_AND_DIE, str(store), f"migrate.{step}"]
    assert subprocess.run(command, check=False, timeout=60).returncode == -signal.SIGKILL
    assert version_of(store) == (SCHEMA_VERSION if step == "committed" else 1)
    with LocalStore.open(store, command="test") as client:
        assert check_store(client).problems == []
    assert version_of(store) == SCHEMA_VERSION
    assert not os.path.lexists(store / "catalog-0001.new.duckdb")


def test_an_unknown_version_is_an_error(tmp_path: Path) -> None:
    store = version_1(tmp_path)
    with duckdb.connect(str(store / "catalog-0001.duckdb")) as connection:
        connection.execute("UPDATE core.store SET schema_version = 0")
    with pytest.raises(StoreDamaged, match="version 0"):
        LocalStore.open(store, command="test")
