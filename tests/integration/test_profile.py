"""`facepipe run --profile` and `extract --profile`, over real photos."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.config import RunSettings
from pipeline.jobs.profile import STAGES, Profiler
from pipeline.runtime.stage_times import ENCODE, JPEGS, SECOND_MODEL
from pipeline.store.local import LocalStore
from tests.cli.report import answer, facepipe

ON_CPU = [stage for stage in STAGES if stage not in (JPEGS, SECOND_MODEL)]
IN_RUN = [stage for stage in ON_CPU if stage != ENCODE]  # it encodes new references only, in `decide`


def check(profile: dict[str, Any], stages: set[str]) -> None:
    """What holds of every profile."""
    assert profile["stages"].keys() == stages
    assert all(stage["calls"] > 0 and stage["seconds"] >= 0 for stage in profile["stages"].values())
    assert sum(stage["share"] for stage in profile["stages"].values()) == pytest.approx(1)
    assert 0 < sum(profile["wall_shares"].values()) <= 1 + 1e-9
    assert 0 < profile["cpu_busy_share"] <= 1.05
    assert profile["device_busy_share"] is None
    assert profile["workers_waited_for"].keys() == {"images", "models"}
    assert all(seconds >= 0 for seconds in profile["workers_waited_for"].values())
    assert profile["workers_waited_s"] >= profile["workers_waited_for"]["models"] > 0
    assert profile["decoding_held_back_s"] >= 0
    for queue in (profile["images_waiting"], profile["batches_waiting"]):
        assert 0 <= queue["mean"] <= queue["most"]


def run_json(store: Path, run_id: str) -> dict[str, Any]:
    written = json.loads(next(store.rglob(f"*{run_id}*/run.json")).read_text("utf-8"))
    assert isinstance(written, dict)
    return written


@pytest.mark.slow
def test_the_profile_of_a_run(photos: Path, tmp_path: Path, weights_cache: Path) -> None:
    store = tmp_path / "store"
    words = ("run", photos, "--store", store, "--device", "cpu", "--threads", 2, "--set", "run.shard_rows=3")
    report = answer(*words, "--profile", cache=weights_cache)
    profile = report["profile"]
    check(profile, set(IN_RUN))
    assert profile["workers"] == 2
    calls = {name: stage["calls"] for name, stage in profile["stages"].items()}
    assert calls["read"] == calls["hash"] == calls["decode"] == report["decoded"]
    assert calls["write"] == calls["decide"] == 4
    assert calls["scan"] == calls["load"] == 1
    assert calls["pnet"] == calls["embed"] == calls["quality"]
    assert 1 <= profile["images_waiting"]["most"] <= report["decoded"]
    written = run_json(store, report["run_id"])
    assert written["profile"]["stages"]["embed"] == profile["stages"]["embed"]
    check(written["profile"], set(IN_RUN))

    again = facepipe(*words, "--profile", cache=weights_cache).stdout
    assert "wall        the scan: hashing 100%" in again
    (photos / "new.jpg").write_bytes((photos / "b1.jpg").read_bytes() + b"\0")
    plain = answer(*words, cache=weights_cache)
    assert "profile" not in plain
    assert "profile" not in run_json(store, plain["run_id"])


@pytest.mark.slow
def test_the_profile_of_extraction_alone(photos: Path, tmp_path: Path, weights_cache: Path) -> None:
    store = tmp_path / "store"
    answer("scan", photos, "--store", store, cache=weights_cache)
    profile = answer("extract", "--store", store, "--device", "cpu", "--profile", cache=weights_cache)["profile"]
    check(profile, set(ON_CPU) - {"scan", "decide"})
    assert profile["stages"]["encode"]["calls"] == 8  # of each face on the photos but the copied one
    with LocalStore.open(store, command="test") as client:
        assert client.read("SELECT count(*) AS n FROM core.faces")["n"][0].as_py() == 0


@pytest.mark.slow
def test_the_lines_of_a_profile(photos: Path, tmp_path: Path, weights_cache: Path) -> None:
    words = ("run", photos, "--store", tmp_path / "store", "--device", "cpu", "--profile")
    lines = facepipe(*words, cache=weights_cache).stdout.splitlines()
    subjects = [line[:12].strip() for line in lines]
    at = subjects.index("wall")
    assert [line.split()[0] for line in lines[at + 1 : at + 1 + len(IN_RUN)]] == IN_RUN
    assert subjects[at + 1 + len(IN_RUN) :] == ["busy", "queues", "waited", "report"]


def test_a_cluster_that_was_not_needed_leaves_the_profile_to_this_machine() -> None:
    """All shards of a command that goes on may have been there: no worker was started."""
    with closing(Profiler(True, RunSettings(threads=2))) as profiler:
        profiler.elsewhere.append(SimpleNamespace(cores=0, cpu_s=0.0))
        profile = profiler.profile()
    assert profile is not None
    assert profile.workers == 2
