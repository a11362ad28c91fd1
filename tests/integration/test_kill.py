"""Runs killed at every named fault point and at random moments, continued by the same command.

After each, `check` finds nothing, and the store equals the one of a run that nobody disturbed.
"""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pipeline.store.checks.check import check_store
from pipeline.store.client import StoreClient
from pipeline.store.files.faults import FAULT_POINTS
from tests.integration.conftest import write_photos
from tests.integration.snapshot import snapshot

# What an undisturbed run does not do: export, make a reference matrix anew instead of appending to it, commit a
# request, fold, bring up an older store. The tests of the store kill those.
NOT_BY_A_RUN = ("export.", "matrix.rename", "matrix.fsync_folder", "directory_commit.", "fold.", "migrate.")
RANDOM_KILLS = 20


@dataclass
class Undisturbed:
    """The forking process, the photos, and what a run over them gives."""

    process: subprocess.Popen[str]
    photos: Path
    points: dict[str, int]
    rows: dict[str, list[tuple[Any, ...]]]
    seconds: float
    folder: Path

    def order(self, store: Path, **how: Any) -> int:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        order = {"source": str(self.photos), "store": str(store), "points": str(self.folder / "points.json"), **how}
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        return int(json.loads(self.process.stdout.readline())["status"])

    def continued(self, store: Path) -> None:
        """The same command again, and everything is as if nothing had happened."""
        assert self.order(store) == 0
        with StoreClient.open(store, command="test") as client:
            assert check_store(client).problems == []
        assert snapshot(store) == self.rows


@pytest.fixture(scope="module")
def undisturbed(
    tmp_path_factory: pytest.TempPathFactory, hopper_path: Path, astronaut_path: Path
) -> Iterator[Undisturbed]:
    folder = tmp_path_factory.mktemp("kill")
    write_photos(folder / "photos", hopper_path, astronaut_path)
    command = [sys.executable, "-W", "ignore", "-m", "tests.integration.forker"]
    root = Path(__file__).parents[2]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=root) as process:
        made = Undisturbed(process, folder / "photos", {}, {}, 0.0, folder)
        assert made.order(folder / "first") == 0  # warms the models up
        begun = time.monotonic()
        assert made.order(folder / "store") == 0
        made.seconds = time.monotonic() - begun
        made.points = json.loads((folder / "points.json").read_text())
        made.rows = snapshot(folder / "store")
        yield made
        assert process.stdin is not None
        process.stdin.close()


def test_a_run_meets_every_fault_point(undisturbed: Undisturbed) -> None:
    expected = {name for name in FAULT_POINTS if not name.startswith(NOT_BY_A_RUN)}
    assert set(undisturbed.points) == expected


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in FAULT_POINTS if not name.startswith(NOT_BY_A_RUN)])
def test_killed_at_a_fault_point(undisturbed: Undisturbed, name: str, tmp_path: Path) -> None:
    # The first time, and the last: an empty store and a filled one.
    for nth in sorted({1, undisturbed.points[name]}):
        store = tmp_path / f"store-{nth}"
        assert undisturbed.order(store, fault=name, nth=nth) == -signal.SIGKILL
        undisturbed.continued(store)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(RANDOM_KILLS))
def test_killed_at_a_random_moment(undisturbed: Undisturbed, seed: int, tmp_path: Path) -> None:
    after = random.Random(seed).uniform(0.0, 1.0) * undisturbed.seconds
    undisturbed.order(tmp_path / "store", after_s=after)
    undisturbed.continued(tmp_path / "store")
