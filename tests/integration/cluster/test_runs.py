"""Runs on a cluster of two nodes: the same as on this machine, whatever is killed meanwhile."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pytest
from bench_cluster import digest

from pipeline.config import Settings, load_settings
from pipeline.errors import ClusterFailed, Interrupted, NodeMismatch, ShardFailed, UsageError
from pipeline.jobs.cluster import scheduling
from pipeline.jobs.cluster.left_shards import shard_folder, shard_metadata
from pipeline.run.run import RunRequest, abandon, extract, group, run, scan
from pipeline.store.files.shard_folder import ShardFolder
from pipeline.store.files.shards import run_shard_file
from pipeline.store.local import LocalStore
from tests.integration.cluster.conftest import DECODED, FLAGS, PHOTOS, SHARDS, changed
from tests.integration.cluster.nodes import LIMIT_S, Cluster, assert_no_worker, kill, worker_processes
from tests.integration.conftest import RecordedProgress
from tests.integration.snapshot import assert_whole, pictures, snapshot
from tests.waiting import until

pytestmark = [pytest.mark.filterwarnings("ignore::ResourceWarning"), pytest.mark.slow]


class _AtFirstShard(RecordedProgress):
    """Acts once, when the first shard is done."""

    def __init__(self, act: Callable[[], object]) -> None:
        super().__init__()
        self._act: Callable[[], object] | None = act

    def advance(self, count: int = 1) -> None:
        super().advance(count)
        if self.phases[-1] in ("run", "extract") and self._act is not None:
            act, self._act = self._act, None
            act()


@pytest.fixture
def request_of(archive: Path, tmp_path: Path, settings: Settings) -> RunRequest:
    return RunRequest(source=archive / "photos", store=tmp_path / "store", settings=settings)


def started(request: RunRequest, *words: str, **streams: int) -> subprocess.Popen[str]:
    """The request's command in a process of its own, whose streams are thrown away but for those named."""
    ray, command = request.settings.ray, [sys.executable, "-m", "pipeline", "run", str(request.source)]
    command += ["--store", str(request.store), "--engine", "ray", "--address", str(ray.address), *words]
    command += ["--device", "cpu", "--weights", "casia-webface"]
    command += ["--set", "run.shard_rows=3", "--set", "run.threads=1", "--set", f"ray.cpus={ray.cpus}"]
    kept = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL} | streams
    return subprocess.Popen(command, text=True, **kept)


def await_file(driver: subprocess.Popen[str], store: Path, pattern: str) -> None:
    """Waits until the command has written such a file."""

    def written() -> bool:
        assert driver.poll() is None, "the command ended before"
        return any(store.glob(pattern))

    until(written, f"no {pattern} is written", LIMIT_S)


def assert_as_local(archive: Path, store: Path) -> None:
    """The store has what a local run made, to the last bit, and nothing else lies in it."""
    assert snapshot(store) == snapshot(archive / "local")
    assert pictures(store) == pictures(archive / "local")
    assert_whole(store)
    assert not [*store.glob("runs/*/shards/*")]


@pytest.mark.short
def test_as_a_local_run(archive: Path, request_of: RunRequest) -> None:
    progress = RecordedProgress()
    report = run(dataclasses.replace(request_of, profile=True), progress)
    assert_as_local(archive, request_of.store)
    assert digest(request_of.store) == digest(archive / "local")
    assert report.work.device == "Ray (2 x cpu (1 threads))"
    assert (report.work.decoded, report.work.profile is not None) == (DECODED, True)
    assert report.work.profile is not None
    assert {"read", "decode", "pnet", "embed", "write"} <= set(report.work.profile.stages)
    assert report.work.profile.stages["decode"].calls == DECODED
    assert "starting the workers" in progress.phases
    assert_no_worker()
    assert run(request_of).already_in == PHOTOS
    catalog = str(request_of.store / (request_of.store / "CURRENT").read_text().strip())
    with duckdb.connect(catalog) as con:
        con.execute("UPDATE core.detections SET x1 = x1 + 0.001 WHERE face_id = (SELECT min(face_id) FROM core.faces)")
    assert digest(request_of.store) != digest(archive / "local")


@pytest.mark.parametrize("what", ["a worker", "all workers", "a node"])
def test_killed_midway(archive: Path, request_of: RunRequest, cluster: Cluster, what: str) -> None:
    killed: list[int] = []

    def end() -> None:
        if what == "a node":
            cluster.kill_second()
        else:
            killed.extend(worker_processes()[: 1 if what == "a worker" else None])
            for pid in killed:
                kill(pid)

    report = run(request_of, _AtFirstShard(end))
    assert report.images == PHOTOS
    assert len(killed) == {"a worker": 1, "all workers": 2, "a node": 0}[what]
    assert_as_local(archive, request_of.store)


@pytest.mark.parametrize("ends", ["by another", "by its own replacement"])
def test_a_worker_that_hangs_holds_nobody_up(
    archive: Path, request_of: RunRequest, monkeypatch: pytest.MonkeyPatch, ends: str, full: bool
) -> None:
    """Its shards are given to another worker that has nothing else to do; where all hang, to new ones."""
    if ends == "by its own replacement" and not full:
        pytest.skip("takes 40 seconds: only with --full")
    hung: list[int] = []

    def hang() -> None:
        hung.extend(worker_processes()[: 1 if ends == "by another" else None])
        for pid in hung:
            os.kill(pid, signal.SIGSTOP)

    if ends == "by another":
        monkeypatch.setattr(scheduling, "_STRAGGLES_S", 1.0)
    else:
        request_of = changed(request_of, "ray", shard_timeout_s=4.0)
    run(request_of, _AtFirstShard(hang))
    assert hung
    assert_as_local(archive, request_of.store)
    assert_no_worker()


@pytest.mark.parametrize("ends_on", ["ray", "local", "ray with another folder"])
def test_a_killed_driver_s_command_goes_on(
    archive: Path, request_of: RunRequest, cluster: Cluster, ends_on: str, tmp_path: Path, full: bool
) -> None:
    if ends_on == "ray with another folder" and not full:
        pytest.skip("takes 20 seconds: only with --full")
    driver = started(request_of)
    await_file(driver, request_of.store, "embeddings/*/*.parquet")  # the first shard is in
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    again = request_of
    if ends_on == "local":
        again = dataclasses.replace(request_of, settings=load_settings(environ={}, flags=FLAGS))
    elif ends_on == "ray with another folder":
        again = changed(request_of, "run", shard_folder=str(tmp_path / "f"))
    run(again)
    assert_as_local(archive, request_of.store)


def test_sigterm_finishes_the_shard_in_hand(archive: Path, request_of: RunRequest, cluster: Cluster) -> None:
    """Ray puts a handler of its own in place of the command's, which would end it at once."""
    driver = started(request_of, stderr=subprocess.PIPE)
    await_file(driver, request_of.store, "embeddings/*/*.parquet")
    driver.send_signal(signal.SIGTERM)
    _, said = driver.communicate(timeout=LIMIT_S)
    assert driver.returncode == Interrupted.exit_code, said
    run(request_of)
    assert_as_local(archive, request_of.store)


@pytest.mark.usefixtures("cluster")
def test_a_worker_is_silent_while_answers_are_awaited() -> None:
    """Also where others finished its shards meanwhile; a worker without calls is never silent."""
    from pipeline.jobs.cluster.engine import _Worker

    worker = object.__new__(_Worker)
    worker.calls, worker._heard = {"first": 0, "second": 1}, time.monotonic() - 50
    assert worker.silent_for() >= 50
    assert worker.finished("first") == 0
    assert worker.silent_for() < 1
    worker._heard -= 50
    assert worker.finished("second") == 1
    worker._heard -= 50
    assert worker.silent_for() == 0


def test_shards_that_workers_left_are_taken_without_ray(archive: Path, request_of: RunRequest) -> None:
    local = dataclasses.replace(request_of, settings=load_settings(environ={}, flags=FLAGS))
    scan(local)
    extract(local)
    with LocalStore.open(local.store, command="test") as store:
        unfinished = store.unfinished_run(None, None)
        assert unfinished is not None
        folder = shard_folder(store, unfinished.run_id, None)
        for number in sorted(store.extracted_shards(unfinished.run_id))[:9]:
            table = store.read_run_shard(unfinished.run_id, number)
            folder.put(number, table, {**shard_metadata(store.identity), "run_id": unfinished.run_id})
            store.folder.unlink(run_shard_file(unfinished.run_id, number))
    assert run(local).work.decoded == 0
    assert_as_local(archive, local.store)


def test_ctrl_c_ends_the_workers_and_the_command_goes_on(archive: Path, request_of: RunRequest) -> None:
    stop = threading.Event()
    with pytest.raises(Interrupted, match=f"of {SHARDS} shards are in"):
        run(request_of, _AtFirstShard(stop.set), stop)
    assert_no_worker()
    run(request_of)
    assert_as_local(archive, request_of.store)


def test_shards_that_were_changed_on_the_way_are_made_again(
    archive: Path, request_of: RunRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, spoiled = ShardFolder.read, set()

    def spoil(folder: ShardFolder, shard: int, metadata: dict[str, Any]) -> Any:
        path = Path(folder._address(folder._name(shard)).removeprefix("file://"))
        if shard in (0, 5, 12) and shard not in spoiled:
            spoiled.add(shard)
            path.write_bytes(path.read_bytes()[:-1])
        return read(folder, shard, metadata)

    monkeypatch.setattr(ShardFolder, "read", spoil)
    run(request_of)
    assert spoiled == {0, 5, 12}
    assert_as_local(archive, request_of.store)


def test_a_shard_that_is_never_usable_ends_the_run_by_its_number(
    request_of: RunRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.jobs.cluster.left_shards._is_here", lambda _: True)  # as if only workers miss it
    photos = request_of.store.parent / "photos"
    photos.mkdir()
    for number, file in enumerate(sorted(Path(str(request_of.source)).iterdir())[:6]):
        (photos / f"{number}{file.suffix}").write_bytes(file.read_bytes())
    request = dataclasses.replace(request_of, source=photos)
    scan(request)
    next(photos.glob("4.*")).unlink()
    with pytest.raises(ShardFailed, match=r"Shard 1 .* 3 times .*a worker does not see .*/4\."):
        extract(request)
    assert_no_worker()


def test_the_stages_alone_with_a_folder_for_the_shards(archive: Path, request_of: RunRequest, tmp_path: Path) -> None:
    request = changed(request_of, "run", shard_folder=str(tmp_path / "shards"))
    scan(request)
    assert extract(request).work.decoded == DECODED
    assert not [*(tmp_path / "shards").iterdir()]
    assert len([*request.store.glob("runs/*/shards/*.parquet")]) == SHARDS
    (of_run,) = request.store.glob("runs/*/shards")
    for name in ("00012-0123456789abcdef.sealed", "0123.sign"):  # of a command that was killed when all was done
        (of_run / name).write_bytes(b"")
    group(request_of)
    assert_as_local(archive, request_of.store)


def test_an_encrypted_store(archive: Path, request_of: RunRequest, tmp_path: Path) -> None:
    request = changed(request_of, "security", encrypt=True, master_key_file=str(tmp_path / "master.key"))
    seen: list[bytes] = []

    def look() -> None:
        seen.extend(file.read_bytes() for file in request.store.glob("runs/*/shards/*"))

    run(request, _AtFirstShard(look))
    assert seen
    assert not any(b"PAR1" in data or b"\xff\xd8\xff\xe0" in data for data in seen)
    assert {k: v for k, v in snapshot(request.store).items() if k != "objects"} == {
        k: v for k, v in snapshot(archive / "local").items() if k != "objects"
    }
    assert_whole(request.store)


def test_a_node_of_another_version_is_refused(request_of: RunRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    from pipeline.jobs.cluster import engine

    own = engine.versions()
    monkeypatch.setattr(engine, "versions", lambda: {**own, "facepipe": "9.9 (other)"})
    with pytest.raises(NodeMismatch, match=r"has facepipe 0\.\S+ \(\w{12}\), and this machine facepipe 9.9"):
        run(request_of)
    assert_no_worker()


def test_a_worker_that_does_not_see_the_folder_is_named(
    request_of: RunRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ShardFolder, "leave_sign", lambda _: "elsewhere.sign")
    with pytest.raises(ClusterFailed, match=r"does not see file://.*--shard-folder"):
        run(request_of)


def test_a_worker_without_the_weights_ends_the_run(request_of: RunRequest, tmp_path: Path) -> None:
    from pipeline.errors import WeightsMissing
    from pipeline.jobs.cluster import worker

    order = worker.Order

    def without(settings: Settings, *others: Any) -> Any:
        model = dataclasses.replace(settings.model, weights_file=str(tmp_path / "none"))
        return order(dataclasses.replace(settings, model=model), *others)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker, "Order", without)
        with pytest.raises(WeightsMissing):
            run(request_of)


def test_a_cluster_without_room_ends_the_run(request_of: RunRequest) -> None:
    with pytest.raises(ClusterFailed, match="no node has 1 GPUs"):
        run(changed(request_of, "ray", gpus=1.0))


def test_a_cluster_that_is_busy_ends_the_run_in_time(request_of: RunRequest, cluster: Cluster) -> None:
    import ray

    ray.init(address=cluster.address, log_to_driver=False)
    try:
        hogs = [ray.remote(num_cpus=1)(lambda: time.sleep(60)).remote() for _ in range(2)]
        with pytest.raises(ClusterFailed, match=r"no worker started within 3 s"):
            run(changed(request_of, "ray", start_timeout_s=3.0))
        assert hogs
    finally:
        ray.shutdown()


def test_nothing_answers_at_the_address(request_of: RunRequest) -> None:
    for address, error in (("127.0.0.1:9", ClusterFailed), ("nowhere", UsageError)):
        begun = time.monotonic()
        with pytest.raises(error, match=address):
            run(changed(request_of, "ray", address=address))
        assert time.monotonic() - begun < 60


def test_an_abandoned_run_leaves_no_shards(archive: Path, request_of: RunRequest) -> None:
    def fail() -> None:
        raise RuntimeError("the driver has a fault")

    with pytest.raises(RuntimeError, match="fault"):
        run(request_of, _AtFirstShard(fail))
    abandon(request_of.store)
    assert_whole(request_of.store)
    assert not [*request_of.store.glob("runs/*/shards/*")]


def test_json_is_alone_on_standard_output_also_where_a_worker_dies(
    archive: Path, request_of: RunRequest, cluster: Cluster
) -> None:
    driver = started(request_of, "--json", stdout=subprocess.PIPE)
    await_file(driver, request_of.store, "runs/*/shards/*.parquet")
    for pid in worker_processes():
        kill(pid)
    output, _ = driver.communicate(timeout=LIMIT_S)
    assert driver.returncode == 0
    assert json.loads(output)["images"] == PHOTOS
    assert_whole(request_of.store)
