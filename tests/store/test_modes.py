"""Nobody else on the machine reads a store, whatever the umask."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.store.files.durable import Folder
from pipeline.store.local import LocalStore
from tests.store.store_samples import commit, identity, insertion, of_version, play


@pytest.fixture(params=[0o000, 0o022])
def umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


def modes(store: Path) -> set[int]:
    """Of everything in a store, and of its folder."""
    return {path.stat().st_mode & 0o7777 for path in (store, *store.rglob("*"))}


@pytest.mark.slow
@pytest.mark.usefixtures("umask")
def test_everything_of_a_store_is_for_its_owner(tmp_path: Path) -> None:
    store = tmp_path / "store"
    play(store, posts=True)
    with LocalStore.open(store, command="test") as client:
        commit(client, insertion(1, "main", 300, "C"))
        with client.lock_runs("test"):
            assert (store / "catalog-0001.duckdb.wal").exists()
            assert modes(store) == {0o700, 0o600}
    assert modes(tmp_path / "store-export") == {0o700, 0o600}


@pytest.mark.usefixtures("umask")
def test_a_folder_that_was_there_is_closed_when_a_store_is_made_in_it(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    LocalStore.open_or_create(tmp_path / "store", identity, command="test").close()
    assert (tmp_path / "store").stat().st_mode & 0o777 == 0o700


def test_a_file_takes_no_mode_from_one_that_was_left(tmp_path: Path) -> None:
    (tmp_path / "page.html.tmp").touch(0o666)
    (tmp_path / "page.html.tmp").chmod(0o666)
    Folder(tmp_path).write("page.html", b"faces", "page")
    assert (tmp_path / "page.html").stat().st_mode & 0o777 == 0o600


def test_check_tells_of_a_folder_that_others_may_open(store: Path) -> None:
    store.chmod(0o755)
    (store / "CURRENT").chmod(0o644)
    with LocalStore.open(store, command="test") as client:
        (problem,) = client.check().problems
        assert problem.kind == "mode"
        assert "and 1 of its files" in problem.detail
        assert client.check(repair=True).problems == []
    assert store.stat().st_mode & 0o777 == 0o700


def test_the_store_of_an_earlier_version_is_closed_and_so_is_its_lock(tmp_path: Path) -> None:
    store = of_version(1, tmp_path)
    (store / "LOCK").touch()
    for path in (store, store / "LOCK"):
        path.chmod(0o755)
    with LocalStore.open(store, command="test") as client:
        assert client.check().problems == []
        assert [path.stat().st_mode & 0o777 for path in (store, store / "LOCK")] == [0o700, 0o600]
        with (store / "LOCK").open() as held, pytest.raises(BlockingIOError):
            fcntl.flock(held, fcntl.LOCK_SH | fcntl.LOCK_NB)
