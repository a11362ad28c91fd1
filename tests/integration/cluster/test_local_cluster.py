"""Runs that start Ray on this machine for themselves; from a bucket into a bucket that fails."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from pipeline.config import Settings, load_settings
from pipeline.errors import BucketFailed, ClusterFailed, UsageError
from pipeline.jobs.cluster import connection
from pipeline.run.run import RunRequest, run
from tests.integration.buckets.conftest import bucket, client, proxy, s3_server  # noqa: F401  fixtures
from tests.integration.buckets.faulty import DENIED, FaultyProxy, failing
from tests.integration.buckets.test_runs import contents, upload
from tests.integration.cluster.conftest import FLAGS, PHOTOS, SHARDS, changed
from tests.integration.cluster.nodes import assert_no_worker
from tests.integration.conftest import RecordedProgress
from tests.integration.snapshot import assert_whole, pictures

pytestmark = [pytest.mark.filterwarnings("ignore::ResourceWarning"), pytest.mark.slow]


@pytest.fixture
def settings() -> Settings:
    """Of a run that starts Ray; two workers of one core."""
    if find_spec("ray") is None or find_spec("obstore") is None:
        pytest.skip("the extra `ray` is not installed")
    return load_settings(environ={}, flags={**FLAGS, "run.engine": "ray", "ray.cpus": 1, "ray.actors": 2})


@pytest.mark.usefixtures("proxy")
def test_from_a_bucket_into_a_bucket_that_fails(
    tmp_path: Path,
    settings: Settings,
    archive: Path,
    client: Any,  # noqa: F811
    bucket: str,  # noqa: F811
    proxy: FaultyProxy,  # noqa: F811
) -> None:
    assert upload(client, archive / "photos", f"{bucket}/photos") == PHOTOS
    far = changed(RunRequest(f"{bucket}/photos", tmp_path / "far", settings), "run", shard_folder=f"{bucket}/shards")
    proxy.choose = failing(0.05, seed=2)
    run(far)
    # As the prefix has them, not as the folder does: a-0.8.png comes before a.jpg in both.
    assert contents(far.store, f"{bucket}/photos") == contents(archive / "local", str(archive / "photos"))
    assert pictures(far.store) == pictures(archive / "local")
    assert_whole(far.store)
    asked, failed = proxy.asked.total(), proxy.failed.total()
    each = f"{asked / PHOTOS:.2f} requests per photo {dict(proxy.asked)}"
    print(f"{PHOTOS} photos in {SHARDS} shards: {each}; failed: {failed}")
    assert failed
    # Those of a local run, and of each shard: its driver's sign, writing, reading and removing it.
    assert PHOTOS < asked <= 3 * PHOTOS + 4 * SHARDS + 20 + failed
    assert not [*client.list_objects_v2(Bucket=bucket[5:], Prefix="shards").get("Contents", [])]
    assert_no_worker()


@pytest.mark.usefixtures("proxy")
def test_a_bucket_for_shards_that_denies_access_ends_the_run(
    tmp_path: Path,
    settings: Settings,
    archive: Path,
    bucket: str,  # noqa: F811
    proxy: FaultyProxy,  # noqa: F811
) -> None:
    proxy.choose = lambda *_: DENIED
    request = RunRequest(archive / "photos", tmp_path / "store", settings)
    with pytest.raises(BucketFailed, match=f"{bucket}/shards/"):
        run(changed(request, "run", shard_folder=f"{bucket}/shards"))


def test_workers_without_memory_end_the_run_with_the_reason(
    tmp_path: Path, settings: Settings, archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_memory_usage_threshold", "0.001")  # as if the machine were full
    monkeypatch.setenv("RAY_memory_monitor_refresh_ms", "100")
    request = RunRequest(archive / "photos", tmp_path / "store", settings)
    with pytest.raises(ClusterFailed, match=r"3 workers ended .* memory"):
        run(changed(request, "ray", actors=1))
    assert_whole(tmp_path / "store")


def test_without_ray_the_extra_is_named_before_anything_is_made(
    tmp_path: Path, settings: Settings, archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "find_spec", lambda _: None)
    with pytest.raises(UsageError, match=r"pip install -e '\.\[ray\]'"):
        run(RunRequest(archive / "photos", tmp_path / "store", settings), RecordedProgress())
    assert not (tmp_path / "store").exists()
