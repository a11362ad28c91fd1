"""The catalog is rewritten without what was removed: nothing else is lost, whatever goes on or fails meanwhile."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from unittest.mock import patch

import pytest

from pipeline.errors import ChangesUnknown, StoreError, StoreFull
from pipeline.store import erasure
from pipeline.store.catalog import connection, rewriting
from pipeline.store.catalog.connection import Catalog
from pipeline.store.local import LocalStore
from pipeline.store.schema import TABLES
from pipeline.types import utc_now
from tests.store.store_samples import (
    Asked,
    at_fault_points,
    commit,
    contents,
    copied_at_points,
    execute,
    failing_at,
    insertion,
    persons_of,
)

NAME = "Qwmzkrtyplvx"
LATE = 24 * 365.0


def opened(store: Path, within_h: float = LATE) -> LocalStore:
    return LocalStore.open(store, command="test", erase_within_h=within_h)


@pytest.fixture(autouse=True)
def plain() -> Iterator[None]:
    """Files show their texts."""
    with patch.dict(connection._SETTINGS, force_compression="uncompressed"):
        yield


@pytest.fixture
def forgotten(store: Path) -> Iterator[LocalStore]:
    """A store that has forgotten somebody of NAME, and does not rewrite its catalog by itself."""
    with opened(store) as client:
        commit(client, insertion(1, "posted", 100, NAME, "Stays"))
        client.submit(lambda catalog: catalog.connection.execute("CHECKPOINT"))  # into the file
        commit(client, Asked(1, "posted", deleted=[named(client)[NAME]]))
        client.fold()
        yield client


def named(client: LocalStore) -> dict[str, str]:
    """Who is in the directory `posted`: ids by name."""
    return {str(record.name): record.person_id for record in persons_of(client, 1, "posted").values()}


def current(client: LocalStore) -> str:
    return (client.path / "CURRENT").read_text().strip()


def tables(client: LocalStore) -> dict[str, list[str]]:
    """All rows, but for what a rewriting changes on purpose."""
    kept = {
        "store": "* EXCLUDE (erase_since, changes_from)",
        "corrections": "* EXCLUDE (gone)",
        "erasures": "* EXCLUDE (erased_at)",
    }
    return {
        table: sorted(map(str, client.read(f"SELECT {kept.get(table, '*')} FROM core.{table}").to_pylist()))
        for table in TABLES
    }


def in_files(store: Path, text: str) -> list[str]:
    return [file.name for file in store.rglob("*") if file.is_file() and text.encode() in file.read_bytes()]


def test_the_rows_are_the_same_in_a_new_file_without_free_blocks(forgotten: LocalStore) -> None:
    before = tables(forgotten)
    assert current(forgotten) == "catalog-0001.duckdb"
    assert forgotten.submit(rewriting.waits_since)
    forgotten.erase_catalog()
    assert current(forgotten) == "catalog-0002.duckdb"
    assert sorted(path.name for path in forgotten.path.glob("catalog-*")) == ["catalog-0002.duckdb"]
    assert tables(forgotten) == before
    assert forgotten.submit(rewriting.waits_since) is None
    assert forgotten.read("SELECT free_blocks FROM pragma_database_size()")["free_blocks"][0].as_py() == 0
    assert (forgotten.path / "catalog-0002.duckdb").stat().st_mode & 0o777 == 0o600
    commit(forgotten, insertion(1, "posted", 300, "Later"))
    forgotten.close()
    with opened(forgotten.path) as again:
        assert {"Stays", "Later"} <= named(again).keys()
        assert again.check().problems == []
        again.erase_catalog()
        assert current(again) == "catalog-0003.duckdb"


def test_a_name_is_in_the_old_file_and_not_in_the_new_one(forgotten: LocalStore) -> None:
    assert NAME not in named(forgotten)
    assert in_files(forgotten.path, NAME)
    forgotten.erase_catalog()
    assert in_files(forgotten.path, NAME) == []


def test_a_hard_link_of_a_backup_keeps_the_old_file(forgotten: LocalStore, tmp_path: Path) -> None:
    backup = tmp_path / "backup.duckdb"
    os.link(forgotten.path / current(forgotten), backup)
    bytes_before = backup.read_bytes()
    forgotten.erase_catalog()
    assert backup.read_bytes() == bytes_before


def test_what_is_committed_meanwhile_is_in_the_new_file(forgotten: LocalStore) -> None:
    """Inserted, replaced and removed at every moment between the snapshot and the last statements."""
    fill, number = rewriting.CatalogCopy.fill, 0

    def busy(copy: rewriting.CatalogCopy) -> None:
        nonlocal number
        for _ in range(2):
            number += 1
            commit(forgotten, insertion(1, "posted", 1000 * number, f"New {number}", f"Short {number}"))
        fill(copy)
        gone = named(forgotten)["Short 1"]
        commit(forgotten, Asked(1, "posted", deleted=[gone]))

    with patch.object(rewriting.CatalogCopy, "fill", busy):
        forgotten.erase_catalog()
    assert named(forgotten).keys() == {"Stays", "New 1", "New 2", "Short 2"}
    assert forgotten.submit(rewriting.waits_since)  # for Short 1
    assert forgotten.check().problems == []


def test_commits_go_on_while_it_is_copied(forgotten: LocalStore) -> None:
    done, names = threading.Event(), list[str]()

    def write() -> None:
        while not done.is_set():
            names.append(f"Busy {len(names)}")
            commit(forgotten, insertion(1, "posted", 10_000 + 10 * len(names), names[-1]))

    thread = threading.Thread(target=write)
    thread.start()
    try:
        for _ in range(5):
            forgotten.submit(_wait_again)
            forgotten.erase_catalog()
    finally:
        done.set()
        thread.join()
    assert current(forgotten) == "catalog-0006.duckdb"
    assert {"Stays", *names} == named(forgotten).keys()
    assert forgotten.check().problems == []


def _wait_again(catalog: Catalog) -> None:
    with catalog.transaction("change"):
        rewriting.note_removal(catalog)


def test_other_erasures_leave_a_copy_in_progress_alone(forgotten: LocalStore) -> None:
    """At every moment, also between the renaming of the copy and that of CURRENT."""
    fill, folds, threads = rewriting.CatalogCopy.fill, 0, list[threading.Thread]()

    def fold() -> None:
        nonlocal folds
        forgotten.fold()
        forgotten.submit(erasure.left_to_erase)
        folds += 1

    def at_point(name: str) -> None:
        if not name.startswith(("catalog", "current")) or threading.current_thread() in threads:
            return
        threads.append(threading.Thread(target=fold))
        threads[-1].start()
        threads[-1].join(0.2)  # it waits for the catalog's thread

    def busy(copy: rewriting.CatalogCopy) -> None:
        fill(copy)
        fold()

    with patch.object(rewriting.CatalogCopy, "fill", busy), at_fault_points(at_point):
        forgotten.erase_catalog()
    for thread in threads:
        thread.join()
    assert folds > len(threads) > 2
    assert current(forgotten) == "catalog-0002.duckdb"
    assert forgotten.check().problems == []
    path = _closed(forgotten)
    opened(path).close()


def test_the_last_person_can_be_deleted_meanwhile(forgotten: LocalStore) -> None:
    """Then the directory's corrections are deleted, but for those that deleted people."""
    fill = rewriting.CatalogCopy.fill

    def busy(copy: rewriting.CatalogCopy) -> None:
        fill(copy)
        commit(forgotten, Asked(1, "posted", deleted=[*named(forgotten).values()]))

    with patch.object(rewriting.CatalogCopy, "fill", busy):
        forgotten.erase_catalog()
    assert named(forgotten) == {}
    assert current(forgotten) == "catalog-0002.duckdb"
    assert forgotten.check().problems == []


def test_a_catalog_that_has_to_be_opened_again_stays(forgotten: LocalStore) -> None:
    fill = rewriting.CatalogCopy.fill

    def reopened(copy: rewriting.CatalogCopy) -> None:
        fill(copy)
        forgotten.submit(lambda catalog: catalog._reconnect())

    before = tables(forgotten)
    with patch.object(rewriting.CatalogCopy, "fill", reopened), pytest.raises(StoreError, match="opened again"):
        forgotten.erase_catalog()
    assert (current(forgotten), tables(forgotten)) == ("catalog-0001.duckdb", before)
    assert forgotten.submit(rewriting.other_catalogs) == []
    forgotten.erase_catalog()
    assert tables(forgotten) == before


def test_a_copy_that_differs_is_not_taken(forgotten: LocalStore) -> None:
    repeat = rewriting.CatalogCopy.repeat

    def forgetful(copy: rewriting.CatalogCopy, statements: list[object]) -> None:
        copy._execute("DELETE FROM core.persons")
        repeat(copy, [])

    before = tables(forgotten)
    with patch.object(rewriting.CatalogCopy, "repeat", forgetful), pytest.raises(StoreError, match="persons has 0"):
        forgotten.erase_catalog()
    assert (current(forgotten), tables(forgotten)) == ("catalog-0001.duckdb", before)


@pytest.mark.parametrize(
    "point", ["catalog.write", "catalog.fsync", "catalog.rename", "current.write", "current.rename"]
)
def test_a_full_disk_leaves_the_catalog_as_it_was(forgotten: LocalStore, point: str) -> None:
    before = tables(forgotten)
    with failing_at(point, StoreFull(path=forgotten.path, detail="full")), pytest.raises(StoreFull):
        forgotten.erase_catalog()
    assert (current(forgotten), tables(forgotten)) == ("catalog-0001.duckdb", before)
    assert forgotten.submit(rewriting.other_catalogs) == []
    forgotten.erase_catalog()
    assert tables(forgotten) == before
    assert in_files(forgotten.path, NAME) == []


@pytest.mark.slow
def test_killed_anywhere_the_next_opening_erases(forgotten: LocalStore, tmp_path: Path) -> None:
    (tmp_path / "copies").mkdir()
    copies = copied_at_points(forgotten.path, tmp_path / "copies", forgotten.erase_catalog, every=True)
    assert len(copies) > 8
    assert {name.split("-")[1] for name in copies} >= {"catalog.write", "catalog.rename", "current.rename", "unlink"}
    expected = contents(_closed(forgotten))
    for copy in map(Path, copies.values()):
        opened(copy, 0.0 if "catalog-0002" not in str([*copy.glob("catalog*")]) else LATE).close()
        assert in_files(copy, NAME) == []
        found = contents(copy)
        assert {**found, "names": None} == {**expected, "names": None}


@pytest.mark.parametrize("part", ["erase", "give_up_runs", "rewriting.rewrite"])
def test_what_was_to_be_erased_now_and_failed_is_erased_by_the_next_opening(forgotten: LocalStore, part: str) -> None:
    full = StoreFull(path=forgotten.path, detail="full")
    with patch(f"pipeline.store.erasure.{part}", side_effect=full), pytest.raises(StoreFull):
        forgotten.erase(now=True)
    assert current(forgotten) == "catalog-0001.duckdb"
    path = _closed(forgotten)
    opened(path).close()
    assert in_files(path, NAME) == []


def test_killed_while_it_is_erased_now_the_next_opening_erases(forgotten: LocalStore, tmp_path: Path) -> None:
    (tmp_path / "copies").mkdir()
    erase = partial(forgotten.erase, now=True)
    copies = copied_at_points(forgotten.path, tmp_path / "copies", erase, every=True)
    asked = [path for name, path in copies.items() if name not in ("0-fold.begin", "1-fold.commit")]
    assert len(asked) == len(copies) - 2
    for copy in asked:
        opened(Path(copy)).close()
        assert in_files(Path(copy), NAME) == []


def test_nothing_waits_and_nothing_is_written(store: Path) -> None:
    with opened(store) as client:
        number = client.submit(lambda catalog: catalog.last_number)
        client.erase(now=True)
        assert (current(client), client.submit(lambda catalog: catalog.last_number)) == ("catalog-0001.duckdb", number)


def test_what_a_killed_process_spilled_is_deleted(store: Path) -> None:
    for name in ("catalog-0001.duckdb.tmp", "catalog-0007.duckdb.tmp"):
        (store / name).mkdir()
        (store / name / "duckdb_temp_1_0_storage_S64K-0.tmp").write_text(NAME)
    opened(store).close()
    assert [path.name for path in store.glob("catalog*")] == ["catalog-0001.duckdb"]


def test_on_a_read_only_disk_it_is_told_what_waits(forgotten: LocalStore, caplog: pytest.LogCaptureFixture) -> None:
    erasure.finish(forgotten, read_only=True, within_h=LATE)
    (line,) = caplog.messages
    assert f"waits to be erased from the catalog's file, by {utc_now() + timedelta(hours=LATE):%F}" in line


def _closed(client: LocalStore) -> Path:
    client.close()
    return client.path


def test_it_waits_until_it_is_due(forgotten: LocalStore) -> None:
    path = _closed(forgotten)
    opened(path).close()
    assert in_files(path, NAME)
    with opened(path) as client:
        client.fold()
        assert current(client) == "catalog-0001.duckdb"
        execute(client, "UPDATE core.store SET erase_since = erase_since - INTERVAL 25 HOUR")
    with opened(path, 24.0) as client:  # overdue
        assert current(client) == "catalog-0002.duckdb"
    assert in_files(path, NAME) == []


def test_without_waiting_the_next_fold_erases(forgotten: LocalStore) -> None:
    path = _closed(forgotten)
    with opened(path, 0.0) as client:
        assert current(client) == "catalog-0002.duckdb"  # was overdue
        commit(client, Asked(1, "posted", deleted=[named(client)["Stays"]]))
        client.fold()
        assert current(client) == "catalog-0003.duckdb"
    assert in_files(path, "Stays") == []


@pytest.mark.parametrize("hours", [-30, 30])
def test_a_clock_that_jumps_delays_nothing(forgotten: LocalStore, hours: int) -> None:
    now = rewriting.utc_now()
    with patch.object(rewriting, "utc_now", lambda: now + timedelta(hours=hours)):
        assert forgotten.submit(rewriting.is_due, 24.0)


def test_readers_of_changes_who_were_late_begin_again(forgotten: LocalStore) -> None:
    """The ids of deleted people are gone with the old file."""
    entries = forgotten.changes(0).entries
    assert any(entry.gone for entry in entries)
    gone = next(one for entry in entries for one in entry.gone)
    forgotten.erase_catalog()
    with pytest.raises(ChangesUnknown):
        forgotten.changes(0)
    start = forgotten.read("SELECT changes_from FROM core.store")["changes_from"][0].as_py()
    assert forgotten.changes(start).entries == []
    assert gone not in str(tables(forgotten))
