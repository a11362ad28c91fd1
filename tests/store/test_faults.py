"""A crash at any point loses nothing and stores nothing twice."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.store.commits.commit import write_pictures
from pipeline.store.files import faults
from pipeline.store.files.faults import FAULT_POINTS
from pipeline.store.local import LocalStore
from tests.store import store_samples, test_reindex
from tests.store.store_samples import assert_goes_on, at_fault_points, copied_at_points, of_version


@pytest.mark.slow
def test_every_declared_point_is_met(tmp_path: Path) -> None:
    seen: set[str] = set()
    with at_fault_points(seen.add):
        store_samples.play(tmp_path / "store", posts=True)
        with LocalStore.open(tmp_path / "store", command="test") as client:
            write_pictures(client.folder, [("ab" * 16, b"of a post that is never committed", "image/jpeg")], None)
        LocalStore.open(of_version(1, tmp_path), command="migrate").close()
        test_reindex.reindex(tmp_path / "store")
    assert seen == set(FAULT_POINTS)


def test_an_undeclared_point_is_refused() -> None:
    with at_fault_points(lambda _: None), pytest.raises(KeyError, match="nowhere"):
        faults.point("nowhere")


@pytest.mark.slow
def test_killed_at_each_point_and_continued_the_store_is_the_same(tmp_path: Path, journeys: bool, full: bool) -> None:
    """Continued from what a SIGKILL leaves at the first call of some points; with --full killed at the first and the
    last call of each, in a process of its own, because it forks."""
    needed = [name for name in FAULT_POINTS if not name.startswith(("migrate.", "set_aside", "reindex_"))]
    if full:
        command = [sys.executable, "-W", "error", "-m", store_samples.__name__, str(tmp_path), "--kill", "ends"]
        root = Path(__file__).parents[2]
        done = subprocess.run(command, capture_output=True, text=True, timeout=850, check=False, cwd=root)
        assert done.returncode == 0, done.stderr[-3000:]
        assert int(done.stdout.split()[0]) >= len(needed)
        return
    whole = tmp_path / "whole" / "store"  # it is exported to its folder
    whole.parent.mkdir()
    copies = copied_at_points(whole.parent, tmp_path, lambda: store_samples.play(whole, posts=True))
    expected = store_samples.contents(whole)
    assert not expected["problems"]
    assert len(copies) >= len(needed)
    for copy in [*copies.values()][:: 4 if journeys else 12]:
        assert_goes_on(copy / "store", expected)
