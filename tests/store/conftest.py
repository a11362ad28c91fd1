"""A store with two committed shards, made once and copied for each test."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.store.local import LocalStore
from pipeline.store.records import RunRow
from tests.store.store_samples import MANIFEST, SHARD_ROWS, SOURCE, identity, manifest_batches, play


@pytest.fixture(scope="session")
def finished_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("finished") / "store"
    play(path)
    return path


@pytest.fixture
def store(finished_store: Path, tmp_path: Path) -> Path:
    """A store of one finished run, that the test may damage."""
    return Path(shutil.copytree(finished_store, tmp_path / "store"))


@pytest.fixture
def filled(store: Path) -> Iterator[LocalStore]:
    """The same store, open: eight persons of account 1 in the directory `main`."""
    with LocalStore.open(store, command="test") as opened:
        yield opened


@pytest.fixture(scope="session")
def new_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("new") / "store"
    LocalStore.open_or_create(path, identity, command="test").close()
    return path


@pytest.fixture
def client(new_store: Path, tmp_path: Path) -> Iterator[LocalStore]:
    """A new store, open."""
    with LocalStore.open(Path(shutil.copytree(new_store, tmp_path / "store")), command="test") as opened:
        yield opened


@pytest.fixture
def run(client: LocalStore) -> RunRow:
    """An open run of ten shards."""
    account = client.create_account("ann", None)
    begun = client.begin_run(SOURCE, "folder", account, "main", {"threshold": 0.54})
    client.write_manifest(begun.run_id, manifest_batches([40]), MANIFEST, shard_rows=SHARD_ROWS)
    client.plan_run(begun.run_id, 40, 10)
    return client.run_row(begun.run_id)


@pytest.fixture
def account(client: LocalStore) -> int:
    """An account of the new store."""
    return client.create_account("ann", None)
