"""A catalog that has lost transactions is refused and left alone, and `check --repair` goes on without them.

A copy of the folder of an open store is what SIGKILL would leave of it.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import duckdb
import numpy as np
import pytest

from pipeline.errors import StoreDamaged, StoreError
from pipeline.store import cleanup
from pipeline.store.commits.commit import write_pictures
from pipeline.store.files import commit_count
from pipeline.store.files.durable import Folder
from pipeline.store.files.objects import object_file
from pipeline.store.local import LocalStore
from tests.store.store_samples import commit, failing_at, flip, insertion, of_version, unit_vectors
from tests.stored import stored_people

LOG = "catalog-0001.duckdb.wal"
POSTS = 6
COMMITS = 7  # with that of folding


def recorded(store: LocalStore) -> int:
    number = commit_count.recorded(store.folder)
    assert number is not None
    return number


def files_of(store: Path) -> dict[str, bytes]:
    """Everything but the lock, which each opening writes."""
    found = {path.relative_to(store).as_posix(): path for path in store.rglob("*") if path.is_file()}
    return {name: path.read_bytes() for name, path in found.items() if not name.startswith("LOCK")}


@pytest.fixture(scope="module")
def killed_store(finished_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store killed after POSTS answered insertions, with two of them in a folded shard."""
    folder = tmp_path_factory.mktemp("killed")
    shutil.copytree(finished_store, folder / "open")
    with LocalStore.open(folder / "open", command="test") as client:
        for number in range(POSTS):
            commit(client, insertion(1, "posted", 100 + number, f"P{number}"))
            if number == 1:
                client.fold()
        return Path(shutil.copytree(folder / "open", folder / "store"))


@pytest.fixture
def killed(killed_store: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(killed_store, tmp_path / "store"))


def persons(store: Path) -> list[str]:
    with LocalStore.open(store, command="test") as client:
        return [str(record.name) for record in stored_people(client, 1, "posted").persons]


def assert_refused(store: Path) -> StoreDamaged:
    before = files_of(store)
    with pytest.raises(StoreDamaged) as caught:
        LocalStore.open(store, command="test")
    assert files_of(store) == before
    return caught.value


def kept_logs(store: Path) -> list[bytes]:
    """Those in quarantine, the oldest first."""
    return [path.read_bytes() for path in sorted((store / "quarantine").glob(LOG + ".*"))]


def commit_ends(log: Path) -> list[int]:
    """Where the log's transactions end, by the entry that DuckDB ends each with."""
    data = log.read_bytes()
    return [match.end() for match in re.finditer(re.escape(data[-21:]), data)]


DAMAGE: dict[str, Callable[[Path], object]] = {
    "removed": lambda log: log.unlink(),
    "emptied": lambda log: log.write_bytes(b""),
    "cut": lambda log: log.write_bytes(log.read_bytes()[: log.stat().st_size // 2]),
    "last byte cut": lambda log: log.write_bytes(log.read_bytes()[:-1]),
    "not a log": lambda log: log.write_bytes(bytes(1000)),
}


def test_a_killed_store_is_opened_with_everything_that_was_answered(killed: Path) -> None:
    assert persons(killed) == [f"P{number}" for number in range(POSTS)]


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_lost_log_is_refused_and_nothing_is_touched(killed: Path, damage: Callable[[Path], object]) -> None:
    damage(killed / LOG)
    assert f"facepipe check --repair --store {killed}" in str(assert_refused(killed))


@pytest.mark.slow
@pytest.mark.parametrize("place", ["first", "spread"])
def test_a_flipped_bit_in_the_log_loses_nobody_in_silence(killed: Path, place: str) -> None:
    """Most of the first bits make DuckDB drop all of the log without an error."""
    whole = (killed / LOG).read_bytes()
    bits = range(0, 8 * 40, 7) if place == "first" else range(0, 8 * len(whole), len(whole) // 4 + 1)
    refused = 0
    for bit in bits:
        (killed / LOG).write_bytes(whole)
        flip(killed / LOG, bit // 8, bit % 8)
        try:
            with duckdb.connect(str(killed / "catalog-0001.duckdb"), read_only=True) as look:
                complete = look.execute("SELECT number FROM core.commits").fetchall() == [
                    (commit_count.recorded(Folder(killed)),)
                ]
        except duckdb.Error:
            complete = False
        if not complete:
            assert "facepipe check --repair" in str(assert_refused(killed))
            refused += 1
    assert refused > len(bits) / 2


def test_an_older_copy_of_the_catalog_is_refused(killed: Path, finished_store: Path) -> None:
    (killed / LOG).unlink()
    shutil.copy(finished_store / "catalog-0001.duckdb", killed)
    assert "of its last changes are gone" in str(assert_refused(killed))


@pytest.mark.parametrize("damage", ["missing", "unreadable"])
def test_a_lost_count_is_refused_and_repaired(killed: Path, damage: str) -> None:
    if damage == "missing":
        (killed / "COMMITS").unlink()
    else:
        (killed / "COMMITS").write_bytes(b"0" * 9000)
    assert "COMMITS" in str(assert_refused(killed))
    with LocalStore.open(killed, command="test", repair=True) as client:
        assert len(client.check(repair=True).repaired) == 1
    assert len(persons(killed)) == POSTS


def test_a_torn_write_of_the_count_is_no_loss(killed: Path) -> None:
    data = bytearray((killed / "COMMITS").read_bytes())
    last = commit_count.recorded(Folder(killed))
    assert last is not None
    data[last % 2 * 4096 + 3] = 0
    (killed / "COMMITS").write_bytes(data)
    assert commit_count.recorded(Folder(killed)) == last - 1
    assert len(persons(killed)) == POSTS


def test_no_two_transactions_have_one_number(filled: LocalStore) -> None:
    """A COMMIT that is reported as failed may be durable."""

    def numbers() -> list[object]:
        return [filled.submit(lambda catalog: catalog.one("SELECT number FROM core.commits")), recorded(filled)]

    before = recorded(filled)
    with failing_at("change.commit", LookupError()), pytest.raises(LookupError):
        commit(filled, insertion(1, "main", 100, "A"))
    assert numbers() == [before, before]
    commit(filled, insertion(1, "main", 101, "B"))
    assert numbers() == [before + 2, before + 2]


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_repair_goes_on_without_what_is_lost_and_deletes_nothing_of_it(
    killed: Path, damage: Callable[[Path], object]
) -> None:
    kept = {name: data for name, data in files_of(killed).items() if name.startswith(("objects/", "embeddings/"))}
    damage(killed / LOG)
    log = (killed / LOG).read_bytes() if (killed / LOG).exists() else None
    with LocalStore.open(killed, command="test", repair=True) as client:
        checked = client.check(repair=True)
        assert "changes are gone" in checked.repaired[0].detail
        assert ("and the log" in checked.repaired[0].detail) == (log is not None)
        assert checked.problems == []
        known = len(stored_people(client, 1, "posted").persons)
        # What is inserted now draws the same numbers again.
        commit(client, insertion(1, "main", 500, "new"))
        np.testing.assert_array_equal(stored_people(client, 1, "main").vectors[-1], unit_vectors(1, 500)[0])
    assert known < POSTS
    after = files_of(killed)
    for name, data in kept.items():
        assert data in (after.get(name), after.get(f"quarantine/{name}")), name
    assert kept_logs(killed) == ([] if log is None else [log])
    with LocalStore.open(killed, command="test") as client:
        assert client.check().problems == []


@pytest.mark.slow
@pytest.mark.parametrize("damaged", range(1, COMMITS))
@pytest.mark.parametrize("place", ["first byte", "middle", "last byte"])
def test_repair_keeps_what_comes_before_a_flipped_bit(killed: Path, damaged: int, place: str) -> None:
    last, ends = commit_count.recorded(Folder(killed)), [0, *commit_ends(killed / LOG)]
    assert last is not None
    start, end = ends[damaged : damaged + 2]
    flip(killed / LOG, {"first byte": start, "middle": (start + end) // 2, "last byte": end - 1}[place])
    log = (killed / LOG).read_bytes()
    with LocalStore.open(killed, command="test", repair=True) as client:
        checked = client.check(repair=True)
        assert checked.problems == []
    told = [problem.detail for problem in checked.repaired]
    assert f"{COMMITS - damaged} of its last changes are gone" in told[0]
    assert f"changes intact in the log: {damaged} " in told[0]
    listed = re.findall(r"\d+", " ".join(re.findall(r"change ([\d, ]+):", "\n".join(told))))
    assert [int(number) for number in listed] == list(range(last - COMMITS + damaged + 1, last + 1))
    assert kept_logs(killed) == [log]


def test_repair_lists_what_follows_the_damage(killed: Path) -> None:
    last = commit_count.recorded(Folder(killed))
    assert last is not None
    flip(killed / LOG, commit_ends(killed / LOG)[-4] + 50)
    with LocalStore.open(killed, command="test", repair=True) as client:
        _, *lost = [problem.detail for problem in client.check(repair=True).repaired]
    for place, detail in enumerate(reversed(lost)):
        assert f"change {last - place}: " in detail
        assert f"persons P{POSTS - 1 - place} x-P{POSTS - 1 - place}" in detail
    assert len(lost) == 3


@pytest.mark.parametrize(
    ("log", "point"),
    [
        ("removed", "count_commits.begin"),
        ("damaged", "catalog.rename"),
        ("damaged", "catalog.fsync"),
        ("damaged", "count_commits.begin"),
    ],
)
def test_a_repair_that_is_cut_off_is_repeated(killed: Path, log: str, point: str) -> None:
    if log == "removed":
        (killed / LOG).unlink()
    else:
        flip(killed / LOG, commit_ends(killed / LOG)[-3] + 50)
    data = (killed / LOG).read_bytes() if log == "damaged" else None
    with failing_at(point, LookupError()), pytest.raises(LookupError):
        LocalStore.open(killed, command="test", repair=True)
    assert "facepipe check --repair" in str(assert_refused(killed))
    with LocalStore.open(killed, command="test", repair=True) as client:
        assert client.check(repair=True).problems == []
    assert len(persons(killed)) == (POSTS - 2 if data else 0)
    assert kept_logs(killed) == ([] if data is None else [data])


def test_a_second_repair_tells_of_its_own_loss_alone(killed: Path) -> None:
    flip(killed / LOG, commit_ends(killed / LOG)[-2] + 50)
    first = (killed / LOG).read_bytes()
    with LocalStore.open(killed, command="test", repair=True) as client:
        commit(client, insertion(1, "posted", 200, "later"))
        shutil.copytree(killed, killed.parent / "again")
    again = killed.parent / "again"
    (again / LOG).write_bytes(b"")
    with LocalStore.open(again, command="test", repair=True) as client:
        (told,) = [problem for problem in client.check(repair=True).repaired if problem.kind == "catalog"]
    assert "changes intact in the log: 0 " in told.detail
    assert kept_logs(again) == [first, b""]


def test_repair_of_a_store_with_a_folder_as_its_log(killed: Path) -> None:
    (killed / LOG).unlink()
    (killed / LOG).mkdir()
    assert_refused(killed)
    with LocalStore.open(killed, command="test", repair=True) as client:
        assert client.check(repair=True).problems == []


def test_repair_of_a_whole_store_changes_nothing(killed: Path) -> None:
    with LocalStore.open(killed, command="test", repair=True) as client:
        assert client.check(repair=True).repaired == []
    assert len(persons(killed)) == POSTS
    assert not (killed / "quarantine").exists()


def test_a_catalog_that_is_opened_again_is_not_trusted_either(
    filled: LocalStore, caplog: pytest.LogCaptureFixture
) -> None:
    """A checkpoint that failed makes a running store do so."""
    commit_count.record(filled.folder, recorded(filled) + 1)
    filled.submit(lambda catalog: catalog._reconnect())
    assert "of its last changes are gone" in caplog.text
    with pytest.raises((duckdb.Error, StoreError)):
        filled.accounts()


def test_a_store_of_before_is_counted_from_its_opening(tmp_path: Path) -> None:
    store = of_version(1, tmp_path)
    for _ in range(2):
        LocalStore.open(store, command="test").close()
    first = commit_count.recorded(Folder(store))
    assert first is not None
    with LocalStore.open(store, command="test") as client:
        client.create_account("bob", None)
    assert commit_count.recorded(Folder(store)) == first + 1


def test_a_picture_whose_post_was_never_answered_is_kept_for_some_days(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    guid = "ab" * 16
    with LocalStore.open(store, command="test") as client:
        write_pictures(client.folder, [(guid, b"picture", "image/jpeg")], None)
    aside = store / "quarantine" / object_file(guid)
    assert aside.read_bytes() == b"picture"
    assert not (store / object_file(guid)).exists()
    with LocalStore.open(store, command="test") as client:
        assert client.check().problems == []
    assert aside.exists()
    monkeypatch.setattr(cleanup, "_QUARANTINE_S", -1.0)
    LocalStore.open(store, command="test").close()
    assert not aside.exists()
