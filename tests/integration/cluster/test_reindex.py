"""Another index of a store, built on a cluster of two nodes: the same as on this machine."""

from __future__ import annotations

import dataclasses
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from pipeline.config import Settings, load_settings
from pipeline.errors import Interrupted
from pipeline.jobs.reindex import reindex
from pipeline.people.types import PostRequest
from pipeline.store.local import LocalStore
from tests.integration.cluster.conftest import FLAGS
from tests.integration.cluster.nodes import assert_no_worker
from tests.integration.conftest import RecordedProgress
from tests.serve.served import serving

pytestmark = [pytest.mark.filterwarnings("ignore::ResourceWarning"), pytest.mark.slow]


def build(store: Path, settings: Settings, stop: threading.Event | None = None) -> dict[str, Any]:
    narrow = dataclasses.replace(settings, align=dataclasses.replace(settings.align, margin_px=16))
    return reindex(store, narrow, ["align.margin_px"], RecordedProgress(), stop or threading.Event(), missing_too=True)


def measured(store: Path) -> list[Any]:
    """The faces as the new index has them."""
    with LocalStore.open(store, command="test") as client:
        assert client.check().problems == []
        rows = client.read("SELECT * FROM core.detections WHERE generation = 2 ORDER BY face_id").to_pylist()
        vectors = client.after_switch().face_vectors([row["face_id"] for row in rows])
    return [*rows, *((face_id, vectors[face_id].embedding.tobytes()) for face_id in sorted(vectors))]


def test_a_build_on_a_cluster_is_as_on_this_machine(
    archive: Path, settings: Settings, tmp_path: Path, hopper_path: Path
) -> None:
    """Also of a face that was posted, and after a build that was stopped."""
    local = shutil.copytree(archive / "local", tmp_path / "local")
    with serving(local) as served:
        account = served.service.directories._client.account_id("default")
        Image.open(hopper_path).resize((420, 500)).save(tmp_path / "post.jpg")
        answer = served.service.post(account, "main", (tmp_path / "post.jpg").read_bytes(), PostRequest(insert=False))
        assert answer.account_updated
    ray = shutil.copytree(local, tmp_path / "ray")
    expected = build(local, load_settings(environ={}, flags=FLAGS))
    stop = threading.Event()
    stop.set()
    with pytest.raises(Interrupted):
        build(ray, settings, stop)
    assert_no_worker()
    assert not [*ray.glob("runs/reindex-*")]
    found = build(ray, settings)
    assert not [*ray.glob("runs/reindex-*")]
    numbers = ("faces", "vectors", "left", "from_photos", "from_pictures", "stand_ins")
    assert {name: found[name] for name in numbers} == {name: expected[name] for name in numbers}
    assert found["from_pictures"] == 1
    assert measured(ray) == measured(local)
