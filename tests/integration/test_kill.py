"""Runs, and what users change, killed at named fault points and runs at random moments, then continued by the same
command.

After each, `check` finds nothing, and the store equals an undisturbed one. By default a few points are killed, with
--full all of them.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import RequestError, UsageError
from pipeline.store.files.faults import FAULT_POINTS
from pipeline.store.local import LocalStore
from tests.cli.report import facepipe
from tests.forking import Child, Forker
from tests.integration.conftest import write_photos
from tests.integration.snapshot import assert_whole, snapshot
from tests.people.changes import CHANGES, Contents, contents, held, make, prepare, same_each_time
from tests.store.store_samples import at_fault_points

# An undisturbed first run does not export, note what it read again or what is labelled anew, have enough people for an
# index segment, commit a request or a correction, fold, migrate an older store or set a picture aside. The tests of the
# store, and of changes, kill those.
UNMET = (
    "note_scan.",
    "note_labels.",
    "export.",
    "segment.",
    "change.",
    "fold.",
    "migrate.",
    "reindex_",
    "set_aside",
)
POINTS = [name for name in FAULT_POINTS if not name.startswith(UNMET)]
EVERY_NTH = 5  # of the points by default; steps come in groups of 3 and 4, so this meets each kind of step


@dataclass
class Undisturbed:
    """The forking process, the photos, and the result of a run over them."""

    forker: Forker
    photos: Path
    points: dict[str, int]
    rows: dict[str, list[tuple[Any, ...]]]
    seconds: float
    moved_from: str = ""

    def start(self, store: Path, **fault: Any) -> Child:
        return self.forker.start(source=str(self.photos), store=str(store), moved_from=self.moved_from, **fault)

    def assert_continues(self, store: Path) -> None:
        """The same command again, and everything is as if nothing had happened."""
        assert self.start(store).wait().status == 0
        assert_whole(store)
        assert snapshot(store) == self.rows


@pytest.fixture(scope="module")
def undisturbed(
    tmp_path_factory: pytest.TempPathFactory, hopper_path: Path, astronaut_path: Path
) -> Iterator[Undisturbed]:
    folder = tmp_path_factory.mktemp("kill")
    write_photos(folder / "photos", hopper_path, astronaut_path)
    with Forker("tests.integration.forked_run") as forker:
        run = Undisturbed(forker, folder / "photos", {}, {}, 0.0)
        assert run.start(folder / "first").wait().status == 0  # reads the files of libraries into memory
        start = time.monotonic()
        ended = run.start(folder / "store").wait()
        run.seconds = time.monotonic() - start
        assert ended.status == 0
        run.points, run.rows = ended.points, snapshot(folder / "store")
        yield run


@pytest.fixture(scope="module")
def second_night(
    tmp_path_factory: pytest.TempPathFactory, undisturbed: Undisturbed, hopper_path: Path, astronaut_path: Path
) -> tuple[Undisturbed, Path]:
    """A run over photos that are in another folder now, of which one was moved, one went, one changed and one came; and
    the store before it."""
    folder = tmp_path_factory.mktemp("night")
    write_photos(folder / "photos", hopper_path, astronaut_path)
    night = Undisturbed(undisturbed.forker, folder / "photos", {}, {}, 0.0)
    assert night.start(folder / "before").wait().status == 0
    night.moved_from = str(night.photos)
    night.photos = photos = night.photos.rename(folder / "elsewhere")
    (photos / "a1.jpg").rename(photos / "z.jpg")
    (photos / "b1.jpg").unlink()
    (photos / "h1.bmp").rename(photos / "g1.webp")
    shutil.copy(photos / "b2.jpg", photos / "new.jpg")
    ended = night.start(shutil.copytree(folder / "before", folder / "after")).wait()
    assert ended.status == 0
    night.points, night.rows = ended.points, snapshot(folder / "after")
    return night, folder / "before"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    full = metafunc.config.getoption("full")
    if "point" in metafunc.fixturenames:
        metafunc.parametrize("point", POINTS if full else POINTS[::EVERY_NTH])
    if "change" in metafunc.fixturenames:
        metafunc.parametrize("change", CHANGES)
    if "seed" in metafunc.fixturenames:
        metafunc.parametrize("seed", range(20 if full else 3))


@pytest.mark.slow
def test_a_run_meets_every_fault_point(undisturbed: Undisturbed) -> None:
    assert set(undisturbed.points) == set(POINTS)


@pytest.mark.slow
def test_killed_at_a_fault_point(undisturbed: Undisturbed, point: str, tmp_path: Path) -> None:
    # The first time, and the last: an empty store and a filled one.
    for nth in sorted({1, undisturbed.points[point]}):
        store = tmp_path / f"store-{nth}"
        assert undisturbed.start(store, fault=point, nth=nth).wait().status == -signal.SIGKILL
        undisturbed.assert_continues(store)


@pytest.mark.slow
@pytest.mark.parametrize("step", [n for n in FAULT_POINTS if n.startswith(("plan_run.", "commit_shard."))])
def test_killed_in_a_second_night(second_night: tuple[Undisturbed, Path], step: str, tmp_path: Path) -> None:
    night, before = second_night
    assert [row[0] for row in night.rows["media"] if row[-1]] == [
        str(night.photos / name) for name in ("b1.jpg", "h1.bmp")
    ]
    assert [row[0] for row in night.rows["media"] if row[8] == "replaced"] == [None]
    assert str(night.photos / "z.jpg") in {row[0] for row in night.rows["media"]}
    store = shutil.copytree(before, tmp_path / "store")
    assert night.start(store, fault=step, nth=1).wait().status == -signal.SIGKILL
    assert (snapshot(store)["media"] == snapshot(before)["media"]) == (step in ("plan_run.begin", "plan_run.commit"))
    night.assert_continues(store)


@pytest.mark.slow
def test_killed_at_a_random_moment(undisturbed: Undisturbed, seed: int, tmp_path: Path) -> None:
    run = undisturbed.start(tmp_path / "store")
    time.sleep(random.Random(seed).uniform(0.0, 1.0) * undisturbed.seconds)
    os.kill(run.pid, signal.SIGKILL)  # harmless where the run is over: it is a zombie until the wait
    run.wait()
    undisturbed.assert_continues(tmp_path / "store")


# What users and nights change


@dataclass(frozen=True)
class Changed:
    """A store, what it holds, and for each change what it holds afterwards and the fault points met, in order."""

    store: Path
    before: Contents
    after: dict[str, Contents]
    met: dict[str, Sequence[str]]
    held: dict[str, set[bytes | str]]  # what the files have of people afterwards

    def kills(self, change: str, *, every: bool) -> list[int]:
        """Where to kill the change: numbers of points met. By default each change is killed, and at each point one; but
        not those of a fold, which the tests of the store kill."""
        if every:
            return list(range(len(self.met[change])))
        chosen: dict[str, list[str]] = {name: [] for name in self.met}
        for point in sorted({point for met in self.met.values() for point in met}):
            if point.startswith(("fold.", "embeddings.", "segment.")):
                continue
            chosen[min((n for n in self.met if point in self.met[n]), key=lambda n: len(chosen[n]))].append(point)
        return [self.met[change].index(point) for point in chosen[change] or self.met[change][:1]]

    def assert_continues(self, change: str, store: Path, *, is_in: bool) -> None:
        """The change is in as a whole, or not at all; made again, or for the first time, it gives what it should."""
        with same_each_time(), LocalStore.open(store, command="test") as opened:
            opened.fold()
            assert contents(opened) == (self.after[change] if is_in else self.before)
            if CHANGES[change].again or not is_in:
                with suppress(RequestError, UsageError):
                    make(opened, change)
                assert contents(opened) == self.after[change]


@pytest.fixture(scope="module")
def changed(tmp_path_factory: pytest.TempPathFactory) -> Changed:
    folder = tmp_path_factory.mktemp("changed")
    store = prepare(folder)
    with LocalStore.open(store, command="test") as opened:
        before = contents(opened)
    made = Changed(store, before, {}, {}, {})
    for change in CHANGES:
        met: list[str] = []
        copy = shutil.copytree(store, folder / change)
        with same_each_time(), LocalStore.open(copy, command="test") as opened:
            with at_fault_points(met.append):
                make(opened, change)
            made.after[change] = contents(opened)
        made.met[change] = met
        made.held[change] = held(copy)
    return made


@pytest.mark.slow
def test_killed_while_something_is_changed(
    undisturbed: Undisturbed, changed: Changed, change: str, tmp_path: Path, full: bool
) -> None:
    met = changed.met[change]
    committing = next(number for number, point in enumerate(met) if point.endswith(".commit"))
    assert changed.after[change] != changed.before
    for number in changed.kills(change, every=full):
        store = shutil.copytree(changed.store, tmp_path / str(number))
        nth = met[: number + 1].count(met[number])
        killed = undisturbed.forker.start(store=str(store), change=change, fault=met[number], nth=nth)
        assert killed.wait().status == -signal.SIGKILL, met[number]
        changed.assert_continues(change, store, is_in=number > committing)
    if not CHANGES[change].like:
        assert_whole(store)  # and with it all whose rows and files are the same


@pytest.mark.slow
@pytest.mark.parametrize("erasing", ["forget", "forget of a posted one", "forget of photos"])
def test_what_a_killed_command_was_erasing_the_next_one_erases(
    undisturbed: Undisturbed, changed: Changed, erasing: str, tmp_path: Path, full: bool
) -> None:
    """Killed at each point after its COMMIT, a fold's as well; then any command."""
    met = changed.met[erasing]
    committed = 1 + next(number for number, point in enumerate(met) if point.endswith(".commit"))
    erased = held(changed.store) - changed.held[erasing]
    assert {type(item) for item in erased} == {bytes, str}
    left = 0
    for number in range(committed, len(met)) if full else range(committed, len(met), 5):
        store = shutil.copytree(changed.store, tmp_path / str(number))
        nth = met[: number + 1].count(met[number])
        killed = undisturbed.forker.start(store=str(store), change=erasing, fault=met[number], nth=nth)
        assert killed.wait().status == -signal.SIGKILL, met[number]
        left += bool(held(store) & erased)
        assert facepipe("people", "list", "--store", store).exit_code == 0
        assert held(store) & erased == set(), met[number]
    assert left
    assert_whole(store)
