"""A Ray cluster of two nodes on this machine, and an archive with what a local run makes of it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
from PIL import Image, ImageEnhance

from pipeline.config import RaySettings, Settings, load_settings
from pipeline.jobs.cluster.connection import set_environment
from pipeline.run.run import RunRequest, run
from tests.integration.cluster.nodes import Cluster
from tests.integration.conftest import write_photos

PHOTOS, DECODED, SHARDS = 37, 33, 13  # of the archive
FLAGS = {"run.shard_rows": 3, "run.threads": 1, "run.device": "cpu", "model.weights": "casia-webface"}


def changed(request: RunRequest, section: str, **values: object) -> RunRequest:
    """The request with other values in a section of its settings."""
    settings = request.settings
    own = replace(getattr(settings, section), **values)
    return replace(request, settings=replace(settings, **{section: own}))


# Of the package: its idle processes would take a tenth of a core from the tests after it.
@pytest.fixture(scope="package")
def two_nodes() -> Iterator[Cluster]:
    if find_spec("ray") is None or find_spec("obstore") is None:
        pytest.skip("the extra `ray` is not installed")
    set_environment(RaySettings())  # its token is for the nodes as well
    # Ray's workers run at niceness 15: beside another test on the same cores they would get a thirtieth of the time.
    os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112  as Ray spells it
    cluster = Cluster()
    yield cluster
    cluster.end()


@pytest.fixture
def cluster(two_nodes: Cluster) -> Cluster:
    two_nodes.restore()
    return two_nodes


@pytest.fixture
def settings(cluster: Cluster) -> Settings:
    """Of a run on the cluster; its workers compute in the same batches as a local run of one thread."""
    return load_settings(
        environ={}, flags={**FLAGS, "run.engine": "ray", "ray.address": cluster.address, "ray.cpus": 1}
    )


@pytest.fixture(scope="session")
def archive(tmp_path_factory: pytest.TempPathFactory, hopper_path: Path, astronaut_path: Path) -> Path:
    """A folder of photos, and the store that a local run made of them. No test changes either."""
    folder = tmp_path_factory.mktemp("cluster")
    photos = folder / "photos"
    write_photos(photos, hopper_path, astronaut_path)
    for file in sorted(photos.iterdir()):
        if file.name != "f-broken.jpg":
            picture = Image.open(file)
            for factor in (0.8, 0.9, 1.1):
                ImageEnhance.Brightness(picture).enhance(factor).save(photos / f"{file.stem}-{factor}.png")
    local = load_settings(environ={}, flags=FLAGS)
    run(RunRequest(source=photos, store=folder / "warm", settings=local))  # converts and compiles, where it must
    run(RunRequest(source=photos, store=folder / "local", settings=local))
    return folder
