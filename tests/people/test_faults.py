"""What is changed while the disk fails: nothing half done, and a server goes on answering by what is stored."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from coded_faces import CodedExtractor

from pipeline.config import MatchSettings
from pipeline.errors import CleanUpLeft, StoreError, StoreFull, StoreUnwritable
from pipeline.extraction.images.decode import Decoder
from pipeline.jobs.people import People
from pipeline.jobs.store import Store
from pipeline.people import corrections, regroup
from pipeline.people.correction_plan import Plan
from pipeline.people.service import IdentityService
from pipeline.store import cleanup
from pipeline.store.checks.check import check_store
from pipeline.store.local import LocalStore
from pipeline.store.records import ScanNotes
from tests.cli.report import answer, facepipe
from tests.people.broken_disk import broken_at
from tests.people.changes import CHANGES, contents, held, make, prepare, same_each_time
from tests.people.coded_archive import SETTINGS, SIZE
from tests.store.store_samples import at_fault_points, failing_at
from tests.stored import stored_people

ERRORS: dict[int, tuple[type[StoreError], ...]] = {errno.ENOSPC: (StoreFull,), errno.EIO: (StoreUnwritable, StoreFull)}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepare(tmp_path_factory.mktemp("prepared"))


@contextmanager
def served(prepared: Path, path: Path) -> Iterator[tuple[LocalStore, IdentityService]]:
    """A copy of the store, and the service that answers from it."""
    with LocalStore.open(shutil.copytree(prepared, path), command="test") as store:
        service = IdentityService(store, CodedExtractor(SIZE), Decoder(SETTINGS.decode), SETTINGS)  # type: ignore[arg-type]
        try:
            yield store, service
        finally:
            service.close()


def assert_answers_from(store: LocalStore, service: IdentityService) -> None:
    """The memory of the service is what the store holds. What is in doubt is read again before the next change."""
    stored = stored_people(store, 1, "main")
    with service.directories.using(1, "main") as opened, service.directories.writing(opened):
        everybody = {record.person_id: record for record in (*stored.persons, *stored.faceless)}
        assert opened.of(everybody) == everybody
        assert len(opened) == len(everybody)
        for person, vector in zip(stored.persons, stored.vectors, strict=True):
            view, position = opened.reference_of(person.person_id)
            assert position is not None
            assert view.index.vectors_at(np.array([position])).tobytes() == vector.tobytes()
        assert all(opened.reference_of(record.person_id)[1] is None for record in stored.faceless)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    full = metafunc.config.getoption("full")
    if "change" in metafunc.fixturenames:
        metafunc.parametrize("change", [name for name, change in CHANGES.items() if full or not change.like])
    if "late" in metafunc.fixturenames:  # by default one of each way to commit
        metafunc.parametrize("late", CHANGES if full else ("move of a reference", "forget", "notes of a scan"))


def writes_before_the_commit(store: LocalStore, change: str, service: IdentityService) -> list[str]:
    """The fault points that a change meets until its COMMIT, which fails."""
    met: list[str] = []

    def fail_at_the_commit(name: str) -> None:
        met.append(name)
        if name.endswith(".commit"):
            raise StoreFull(path=store.path, detail="no space left on device")

    with at_fault_points(fail_at_the_commit), pytest.raises(StoreFull):
        make(store, change, service)
    return list(dict.fromkeys(met[: met.index(next(point for point in met if point.endswith(".commit"))) + 1]))


@pytest.mark.slow
def test_on_a_broken_disk_nothing_is_changed(prepared: Path, tmp_path: Path, change: str, full: bool) -> None:
    """Each write before the COMMIT fails, by default every third; then there is room again."""
    with same_each_time(), served(prepared, tmp_path / "store") as (store, service):
        store.note_scan("nowhere", 1, ScanNotes())  # so that the catalog has a log
        before = contents(store)
        points = writes_before_the_commit(store, change, service)
        failures = [(point, error) for point in points for error in ERRORS]
        for point, error in failures if full else failures[len(change) % 3 :: 3]:
            with broken_at(point, error), pytest.raises(ERRORS[error], match=str(store.path)):
                make(store, change, service)
            assert contents(store) == before, point
            assert_answers_from(store, service)
        make(store, change, service)
        assert contents(store) != before
        assert_answers_from(store, service)


@pytest.mark.slow
def test_what_fails_after_the_commit_is_in(prepared: Path, tmp_path: Path, late: str, full: bool) -> None:
    """The disk fails while it is recorded, or files go that are needed no more; by default at every fourteenth."""
    met: list[str] = []
    with same_each_time(), served(prepared, tmp_path / "undisturbed") as (store, service):
        with at_fault_points(met.append):
            make(store, late, service)
        after = contents(store)
    first, *_ = (number for number, point in enumerate(met) if point.endswith(".commit"))
    failures = [(point, error) for point in dict.fromkeys(met[first + 1 :]) for error in ERRORS]
    for point, error in failures if full else failures[::14]:
        with same_each_time(), served(prepared, tmp_path / f"{point}-{error}") as (store, service):
            with suppress(CleanUpLeft), broken_at(point, error):
                make(store, late, service)
            assert_answers_from(store, service)
            cleanup.unlink_pending(store)
            store.fold()
            assert contents(store) == after, point
            assert check_store(store).problems == []


@pytest.mark.slow
def test_a_regroup_waits_for_no_correction_that_failed_after_its_commit(
    prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was decided before is decided again: that Eve and Ann are two is in."""
    with served(prepared, tmp_path / "store") as (store, service):
        people = People(Store(store, SETTINGS, service))
        decisions: list[Plan] = []

        def decide(plan: Plan, *args: Any) -> None:
            regroup.regroup(plan, *args)
            decisions.append(plan)
            if len(decisions) == 1:
                with pytest.raises(CleanUpLeft), broken_at("commits.write", errno.EIO):
                    people.not_same(nameless, "Gus")

        nameless = next(row.person_id for row in people.all() if row.name is None)
        monkeypatch.setattr(corrections, "regroup", decide)
        people.regroup(MatchSettings(threshold=3.9))
        assert len(decisions) == 2
        roots = {row["person_id"]: row["root_person_id"] for row in store.people(1, "main").to_pylist()}
        assert roots[nameless] != roots[people.find("Gus")]


@pytest.mark.parametrize(("error", "exit_code"), [(errno.ENOSPC, 44), (errno.EIO, 48)])
def test_the_command_says_which_disk_and_what_to_do(prepared: Path, tmp_path: Path, error: int, exit_code: int) -> None:
    store = shutil.copytree(prepared, tmp_path / "store")
    with broken_at("object.write", error):
        told = facepipe("people", "move", 1, "Berta", "--store", store)
    assert told.exit_code == exit_code
    assert str(store) in told.stderr
    assert "run the same command again" in told.stderr
    assert facepipe("people", "move", 1, "Berta", "--store", store).exit_code == 0


ERASING = {
    "forget": ("people", "forget", "Berta", "--yes"),
    "forget of a posted one": ("people", "forget", "Gus", "--yes"),
    "directory": ("directory", "delete", "main", "--yes"),
}


@pytest.mark.slow
@pytest.mark.parametrize("words", ERASING.values(), ids=ERASING)
def test_what_a_broken_disk_leaves_of_an_erasure_the_next_command_erases(
    prepared: Path, tmp_path: Path, words: tuple[str, ...], full: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The disk fails at each write after the COMMIT; the command says that it is done, and what is left."""
    met: list[str] = []
    undisturbed = shutil.copytree(prepared, tmp_path / "undisturbed")
    with at_fault_points(met.append):
        assert facepipe(*words, "--store", undisturbed).exit_code == 0
    erased = held(prepared) - held(undisturbed)
    assert {type(item) for item in erased} == {bytes, str}
    committed = next(number for number, point in enumerate(met) if point == "change.commit")
    late = [point for point in dict.fromkeys(met[committed + 1 :]) if point not in met[: committed + 1]]
    failures = [(point, error) for point in late for error in ERRORS]
    assert len(failures) > 10
    for point, error in failures if full else failures[::3]:
        store = shutil.copytree(prepared, tmp_path / f"{point}-{error}")
        with broken_at(point, error):
            told = facepipe(*words, "--store", store)
        if held(store) & erased:
            assert told.exit_code == CleanUpLeft.exit_code, point
            assert "the next command on this store finishes that" in told.stderr
            caplog.clear()
            assert facepipe("people", "list", "--store", store).exit_code in (0, 51)
            assert "Finished an erasure" in caplog.text
        assert held(store) & erased == set(), point


@pytest.mark.slow
def test_an_erasure_that_cannot_be_finished_is_told_first(
    prepared: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The disk stays full: other commands work, `check` ends with 43, and once there is room all is erased."""
    before, store = held(prepared), shutil.copytree(prepared, tmp_path / "store")
    with broken_at("clear_deletes.begin", errno.ENOSPC):
        assert facepipe("people", "forget", "Berta", "--yes", "--store", store).exit_code == CleanUpLeft.exit_code
    with failing_at("fold.begin", StoreFull(path=store, detail="no space left on device")):
        listed = facepipe("people", "list", "--store", store)
        assert (listed.exit_code, "Berta" in listed.stdout) == (0, False)
        assert "An erasure" in caplog.text
        checked = answer("check", "--store", store, exit_code=43)
        assert all("unfinished erasure" in problem["detail"] for problem in checked["problems"])
        left = [problem["where"].partition("/")[0] for problem in checked["problems"]]
        assert left == ["references", "embeddings"]
    assert answer("check", "--store", store)["problems"] == []
    assert len(before - held(store)) > 2
    with LocalStore.open(store, command="test") as opened:
        assert "Berta" not in str(contents(opened))


def test_a_late_failure_is_told_as_done(prepared: Path, tmp_path: Path) -> None:
    """Made again, it would be another correction."""
    store = shutil.copytree(prepared, tmp_path / "store")
    with broken_at("commits.fsync", errno.EIO):
        told = facepipe("people", "move", 1, "Berta", "--store", store)
    assert told.exit_code == CleanUpLeft.exit_code
    assert "Do not repeat this one" in told.stderr
    assert [face["face_id"] for face in answer("people", "photos", "Berta", "--store", store)["faces"]] == [1, 4, 5]
