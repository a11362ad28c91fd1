"""Directories and accounts that are deleted as a whole, and what later runs make of their photos."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from coded_faces import Shown
from coded_store import USER

from pipeline.errors import ChangesUnknown, StoreFull
from pipeline.jobs.accounts import delete_account, find_account
from pipeline.jobs.store import open_store
from pipeline.people.service import IdentityService
from pipeline.people.shards import Enrolment
from pipeline.store.files.lock import RUN_LOCK_NAME, StoreLock
from pipeline.store.local import LocalStore
from tests.cli.report import answer, facepipe
from tests.people.coded_archive import fill, make_store, problems, run_over, serving, write_photo
from tests.store.store_samples import copied_at_points

PHOTOS = 6  # of `fill`: with a poor face that makes no person


@pytest.fixture
def archive(tmp_path: Path) -> Iterator[Path]:
    yield fill(tmp_path)
    assert problems(tmp_path / "store") == []


def rows(store: Path, sql: str) -> list[dict[str, Any]]:
    with LocalStore.open(store, command="look") as client:
        found: list[dict[str, Any]] = client.read(sql).to_pylist()
        return found


@pytest.mark.parametrize("by_server", [False, True])
def test_later_runs_into_a_deleted_directory_skip_its_photos(archive: Path, by_server: bool) -> None:
    photos, store = archive / "photos", archive / "store"
    with serving(store) if by_server else nullcontext():
        deleted = answer("directory", "delete", "main", "--yes", "--store", store)
    assert deleted == {"account": USER, "directory": "main", "identities": 3, "photos": PHOTOS}
    (photos / "a1.png").rename(photos / "moved.png")
    write_photo(photos, "new.png", Shown(50))
    report = run_over(photos, store)
    assert (report.forgotten, report.persons, report.new) == (PHOTOS, 1, 1)
    assert run_over(photos, store, directory="other").persons == 1 + 3 + 1


def test_without_trace_they_are_imported_again(archive: Path) -> None:
    photos, store = archive / "photos", archive / "store"
    answer("directory", "delete", "main", "--yes", "--no-trace", "--store", store)
    assert rows(store, "SELECT * FROM core.forgotten") == []
    report = run_over(photos, store)
    assert (report.forgotten, report.new, report.persons) == (0, PHOTOS, 3)


def test_a_directory_with_photos_and_nobody(tmp_path: Path) -> None:
    store = make_store(tmp_path / "store")
    write_photo(tmp_path / "photos", "poor.png", Shown(8, 0, 0.1))
    assert run_over(tmp_path / "photos", store).persons == 0
    asked = facepipe("directory", "delete", "main", "--store", store, stdin="n\n")
    assert "Delete main of ann with its 0 identities and 1 photo?" in asked.stderr
    deleted = answer("directory", "delete", "main", "--yes", "--store", store)
    assert (deleted["identities"], deleted["photos"]) == (0, 1)
    assert rows(store, "SELECT path FROM core.media WHERE path IS NOT NULL") == []
    assert run_over(tmp_path / "photos", store).forgotten == 1
    assert (
        answer("directory", "delete", "main", "--yes", "--store", store, exit_code=51)["error"] == "directory-unknown"
    )


def test_a_photo_that_was_forgotten_since_the_plan_leaves_no_path(
    archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shard of a run that was planned before is committed without it."""
    store, enrol = archive / "store", IdentityService.enrol_shard

    def deleting(service: IdentityService, run_id: str, shard: int) -> None:
        service.delete_directory(1, "main")
        enrol(service, run_id, shard)

    monkeypatch.setattr(IdentityService, "enrol_shard", deleting)
    write_photo(archive / "more", "copy of a1.png", Shown(1))
    write_photo(archive / "more", "other.png", Shown(60))
    with serving(store):
        report = run_over(archive / "more", store)
    assert (report.persons, report.statuses) == (1, {"forgotten": 1, "ok": 1})
    (media,) = rows(store, "SELECT path FROM core.media WHERE path IS NOT NULL")
    assert media["path"].endswith("other.png")
    assert rows(store, "SELECT count(*) AS n FROM core.files") == [{"n": 1}]


@pytest.mark.parametrize("by_server", [False, True])
def test_an_account_is_deleted_with_all_that_it_has(archive: Path, by_server: bool) -> None:
    photos, store = archive / "photos", archive / "store"
    answer("account", "create", "eve", "--store", store)
    run_over(photos, store, account="eve")
    run_over(photos, store, account="eve", directory="vip")
    before = answer("erase", "log", "--store", store)["erasures"]
    with LocalStore.open(store, command="look") as client:
        read = client.changes(0, None, 1000).next
    with serving(store) if by_server else nullcontext():
        said = facepipe("account", "delete", "eve", "--store", store, stdin="n\n")
        assert said.exit_code == 130
        assert "Delete the account eve with its 2 directories, 6 identities and 12 photos?" in said.stderr
        deleted = answer("account", "delete", "eve", "--yes", "--store", store)
    assert deleted == {"account": "eve", "directories": 2, "identities": 6, "photos": 2 * PHOTOS}
    assert answer("account", "delete", "eve", "--yes", "--store", store, exit_code=46)["error"] == "account-unknown"
    for table in ("media", "runs", "files", "forgotten", "corrections", "directories", "accounts"):
        assert rows(store, f"SELECT * FROM core.{table} WHERE account_id = 2") == [], table
    log = answer("erase", "log", "--store", store)["erasures"][len(before) :]
    assert [(row["account"], row["kind"], row["people"], row["photos"]) for row in log] == [
        ("#2", "delete_directory", 3, PHOTOS),
        ("#2", "delete_directory", 3, PHOTOS),
        ("#2", "delete_account", 0, 0),
    ]
    assert [row["account"] for row in answer("account", "list", "--store", store)["accounts"]] == [USER]
    with LocalStore.open(store, command="look") as client, pytest.raises(ChangesUnknown):
        client.changes(read, None, 1000)
    assert run_over(photos, store).already_in == PHOTOS  # the other account's
    with LocalStore.open(store, command="test") as client:
        assert client.create_account("eve", None) == 3  # no number is used twice


def test_an_account_with_an_interrupted_run_and_no_directory(archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = archive / "store"
    answer("account", "create", "eve", "--store", store)

    def killed(*_: object) -> None:
        raise StoreFull(path=store, detail="for a test")

    monkeypatch.setattr(Enrolment, "commit", killed)
    with pytest.raises(StoreFull):
        run_over(archive / "photos", store, account="eve")
    (run,) = rows(store, "SELECT run_id FROM core.runs WHERE account_id = 2")
    assert [file for file in (store / "runs" / run["run_id"]).rglob("*") if file.is_file()]
    answer("account", "delete", "eve", "--yes", "--store", store)
    assert [file for file in (store / "runs" / run["run_id"]).rglob("*") if file.is_file()] == []


def test_no_account_is_deleted_during_a_run(archive: Path) -> None:
    store = archive / "store"
    with StoreLock.acquire(store, "run", RUN_LOCK_NAME):
        assert answer("account", "delete", USER, "--yes", "--store", store, exit_code=41)["error"] == "store-locked"
    assert len(answer("people", "list", "--store", store)["people"]) == 3


@pytest.mark.slow
def test_killed_anywhere_the_same_command_deletes_the_rest_of_an_account(archive: Path, tmp_path: Path) -> None:
    store = archive / "store"
    answer("account", "create", "eve", "--store", store)
    run_over(archive / "photos", store, account="eve")

    def deleting(of: Path) -> None:
        with open_store(of, command="test") as opened:
            delete_account(opened, find_account(opened, "eve"))
            opened.clean_up()

    def left(of: Path) -> list[object]:
        users = rows(of, "SELECT user_id FROM core.accounts")
        return [*users, *rows(of, "SELECT path FROM core.media WHERE account_id = 2 AND path IS NOT NULL")]

    (tmp_path / "copies").mkdir()
    copies = copied_at_points(store, tmp_path / "copies", lambda: deleting(store))
    assert {name.split("-", 1)[1] for name in copies} >= {"account.commit", "change.commit", "unlink"}
    for copy in map(Path, copies.values()):
        if {"user_id": "eve"} in left(copy):
            deleting(copy)
        assert left(copy) == [{"user_id": USER}]
        assert problems(copy) == []
