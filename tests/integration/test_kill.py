"""Runs killed at named fault points and at random moments, then continued by the same command.

After each, `check` finds nothing, and the store equals that of an undisturbed run. By default a few points are killed,
with --full all of them.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pipeline.store.files.faults import FAULT_POINTS
from tests.forking import Child, Forker
from tests.integration.conftest import write_photos
from tests.integration.snapshot import assert_whole, snapshot

# An undisturbed first run does not export, note what it read again, write a reference matrix again instead of appending
# to it, commit a request or a correction, fold, migrate an older store or set a picture aside. The tests of the store
# kill those.
UNMET = (
    "note_scan.",
    "export.",
    "matrix.rename",
    "matrix.fsync_folder",
    "directory_commit.",
    "correction.",
    "fold.",
    "migrate.",
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

    def start(self, store: Path, **fault: Any) -> Child:
        return self.forker.start(source=str(self.photos), store=str(store), **fault)

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
    """A run over photos of which one was moved, one went, one changed and one came; and the store before it."""
    folder = tmp_path_factory.mktemp("night")
    write_photos(folder / "photos", hopper_path, astronaut_path)
    night = Undisturbed(undisturbed.forker, folder / "photos", {}, {}, 0.0)
    assert night.start(folder / "before").wait().status == 0
    photos = folder / "photos"
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
    if "seed" in metafunc.fixturenames:
        metafunc.parametrize("seed", range(20 if full else 3))


def test_a_run_meets_every_fault_point(undisturbed: Undisturbed) -> None:
    assert set(undisturbed.points) == set(POINTS)


def test_killed_at_a_fault_point(undisturbed: Undisturbed, point: str, tmp_path: Path) -> None:
    # The first time, and the last: an empty store and a filled one.
    for nth in sorted({1, undisturbed.points[point]}):
        store = tmp_path / f"store-{nth}"
        assert undisturbed.start(store, fault=point, nth=nth).wait().status == -signal.SIGKILL
        undisturbed.assert_continues(store)


@pytest.mark.parametrize("step", [name for name in FAULT_POINTS if name.startswith("note_scan.")])
def test_killed_while_a_scan_is_noted(second_night: tuple[Undisturbed, Path], step: str, tmp_path: Path) -> None:
    night, before = second_night
    assert [row[0] for row in night.rows["media"] if row[-1]] == [
        str(night.photos / name) for name in ("b1.jpg", "h1.bmp")
    ]
    assert str(night.photos / "z.jpg") in {row[0] for row in night.rows["media"]}
    store = shutil.copytree(before, tmp_path / "store")
    assert night.start(store, fault=step, nth=1).wait().status == -signal.SIGKILL
    assert (snapshot(store)["media"] != snapshot(before)["media"]) == (step == "note_scan.committed")
    night.assert_continues(store)


def test_killed_at_a_random_moment(undisturbed: Undisturbed, seed: int, tmp_path: Path) -> None:
    run = undisturbed.start(tmp_path / "store")
    time.sleep(random.Random(seed).uniform(0.0, 1.0) * undisturbed.seconds)
    os.kill(run.pid, signal.SIGKILL)  # harmless where the run is over: it is a zombie until the wait
    run.wait()
    undisturbed.assert_continues(tmp_path / "store")
