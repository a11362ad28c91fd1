"""The detector's networks, loaded once, and a small picture."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from PIL import Image

from pipeline.extraction.detection import torch_networks
from pipeline.extraction.detection.cascade import MtcnnNetworks
from pipeline.extraction.detection.torch_networks import TorchNetworks, load_networks
from pipeline.extraction.images import torch_batch
from pipeline.jobs.models import load_host_networks
from pipeline.models.weights import detector_arrays, detector_files
from tests.extraction.helpers import interpreted


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "capability" in metafunc.fixturenames:  # of the GPUs that a kernel is compiled for
        metafunc.parametrize("capability", [75, 80, 90, 100] if metafunc.config.getoption("full") else [75, 100])


@pytest.fixture(scope="session")
def networks(device: str) -> TorchNetworks:
    return load_networks(detector_files(), device)


@pytest.fixture(scope="session")
def cpu_networks() -> TorchNetworks:
    return load_networks(detector_files(), "cpu")


@pytest.fixture(scope="session")
def host_networks(weights_cache: Path) -> MtcnnNetworks:
    """Compiled loops."""
    loops = load_host_networks()
    if loops is None:
        pytest.skip("numba is not installed")
    networks: MtcnnNetworks = loops.HostNetworks(detector_arrays(weights_cache))
    return networks


@pytest.fixture(scope="session", params=["host", "torch"])
def any_networks(request: pytest.FixtureRequest, device: str) -> MtcnnNetworks:
    """Compiled loops on the CPU, and torch on the device."""
    networks: MtcnnNetworks = request.getfixturevalue("host_networks" if request.param == "host" else "networks")
    return networks


@pytest.fixture(scope="session")
def picture(astronaut_path: Path) -> Image.Image:
    """101 x 75 RGB, sides that no block size divides, with a face in it."""
    with Image.open(astronaut_path) as image:
        return image.convert("RGB").crop((130, 10, 332, 160)).resize((101, 75), Image.Resampling.BOX)


@pytest.fixture
def triton_kernels(device: str, request: pytest.FixtureRequest) -> list[ModuleType]:
    """The Triton kernels of images and of detection: compiled on CUDA, by Triton's interpreter on CPU tensors."""
    return _kernels() if device != "cpu" else request.getfixturevalue("interpreted_kernels")


def _kernels() -> list[ModuleType]:
    pytest.importorskip("triton")
    from pipeline.extraction.detection import canvas_kernel
    from pipeline.extraction.images import triton_kernels

    return [triton_kernels, canvas_kernel]


@pytest.fixture
def interpreted_kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[ModuleType]]:
    """Those kernels in use on CPU tensors."""
    kernels = triton_kernels, canvas_kernel = _kernels()
    monkeypatch.setattr(torch_batch, "load_triton", lambda _: triton_kernels)
    monkeypatch.setattr(torch_networks, "load_painter", lambda _: canvas_kernel)
    for module in kernels:
        monkeypatch.setattr(module, "PIXELS", 1024)  # the interpreter takes hardly longer than for one
    with interpreted(*kernels):
        yield kernels
