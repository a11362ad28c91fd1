"""R- and O-Net in compiled loops against facenet-pytorch's own modules."""

from __future__ import annotations

import fcntl
from pathlib import Path

import numpy as np
import pytest
import torch
from facenet_pytorch.models.mtcnn import ONet, RNet
from PIL import Image
from torch import nn

from pipeline.extraction.detection.canvases import normalise
from pipeline.extraction.detection.torch_networks import TorchNetworks
from pipeline.jobs.models import load_host_networks
from pipeline.models.weights import detector_arrays
from pipeline.runtime.stage_times import ONET, RNET
from pipeline.runtime.threads import using_threads

# The first process of a test run that imports this compiles the loops, which takes long; the others wait for its files.
with Path(__file__).open() as file:
    fcntl.flock(file, fcntl.LOCK_EX)
    LOOPS = load_host_networks()
pytestmark = pytest.mark.skipif(LOOPS is None, reason="numba is not installed")

SIZES = {"rnet": 24, "onet": 48}
STAGES = {"rnet": RNET, "onet": ONET}
Weights = dict[str, dict[str, np.ndarray]]


def random_weights(name: str) -> nn.Module:
    """Slopes of both signs, which training does not produce."""
    torch.manual_seed(3)
    network: nn.Module = {"rnet": RNet, "onet": ONet}[name](pretrained=False).eval().requires_grad_(False)
    for module in network.modules():
        if isinstance(module, nn.PReLU):
            module.weight.uniform_(-1.0, 1.0)
    return network


@pytest.fixture(scope="module")
def weights(weights_cache: Path) -> Weights:
    return detector_arrays(weights_cache)


@pytest.fixture(scope="module")
def crops(astronaut_path: Path) -> dict[str, np.ndarray]:
    """70 crops of a photograph for each network: on the face, beside it, and far too small or large."""
    picture = np.array(Image.open(astronaut_path).convert("RGB"))
    rng = np.random.default_rng(0)
    sides = rng.integers(5, 300, 70)
    low = np.stack([rng.integers(0, 512 - sides), rng.integers(0, 512 - sides)], axis=1)
    boxes = np.concatenate([low, low + sides[:, None]], axis=1)
    batch, image = LOOPS.HostBatch([picture]), np.zeros(70, np.int64)
    return {name: batch.area_crops(image, boxes, size) for name, size in SIZES.items()}


@pytest.mark.parametrize("trained", [True, False])
@pytest.mark.parametrize("name", SIZES)
def test_compiled_networks_equal_torchs(
    name: str, trained: bool, cpu_networks: TorchNetworks, weights: Weights, crops: dict[str, np.ndarray]
) -> None:
    network = getattr(cpu_networks, name) if trained else random_weights(name)
    parameters = {key: value.numpy() for key, value in network.state_dict().items()}
    compiled = LOOPS.HostNetworks({**weights, name: parameters})
    for count in (1, 15, 16, 17, 33, 70):
        pixels = crops[name][:count]
        with torch.inference_mode():
            expected = network(normalise(torch.from_numpy(pixels)))
        found = compiled.run(STAGES[name], pixels)
        assert len(found) == len(expected)
        for ours, theirs in zip(found, expected, strict=True):
            np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", SIZES)
def test_no_crops_give_no_outputs(name: str, weights: Weights, crops: dict[str, np.ndarray]) -> None:
    outputs = LOOPS.HostNetworks(weights).run(STAGES[name], crops[name][:0])
    assert outputs[-1].shape == (0, 2)


@pytest.mark.parametrize("name", SIZES)
def test_threads_and_neighbours_do_not_matter(name: str, weights: Weights, crops: dict[str, np.ndarray]) -> None:
    compiled = LOOPS.HostNetworks(weights)
    alone = np.concatenate([compiled.run(STAGES[name], crop[None])[-1] for crop in crops[name]])
    for count in (1, 3):
        with using_threads(count):
            np.testing.assert_allclose(compiled.run(STAGES[name], crops[name])[-1], alone, rtol=0, atol=1e-5)
