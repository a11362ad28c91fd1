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

from pipeline.extraction.detection.cascade import load_kernels
from pipeline.extraction.detection.networks import CropNetwork, MtcnnNetworks, crop_network, normalise
from pipeline.extraction.images.batch import ImageBatch
from pipeline.runtime.threads import using_threads

# The first process of a test run that imports this compiles the loops, which takes long; the others wait for its files.
with Path(__file__).open() as file:
    fcntl.flock(file, fcntl.LOCK_EX)
    KERNELS = load_kernels("cpu")
pytestmark = pytest.mark.skipif(KERNELS is None, reason="numba is not installed")

SIZES = {"rnet": 24, "onet": 48}


def random_weights(name: str) -> nn.Module:
    """Slopes of both signs, which training does not produce."""
    torch.manual_seed(3)
    network: nn.Module = {"rnet": RNet, "onet": ONet}[name](pretrained=False).eval().requires_grad_(False)
    for module in network.modules():
        if isinstance(module, nn.PReLU):
            module.weight.uniform_(-1.0, 1.0)
    return network


@pytest.fixture(scope="module")
def crops(astronaut_path: Path) -> dict[str, torch.Tensor]:
    """70 crops of a photograph for each network: on the face, beside it, and far too small or large."""
    picture = np.array(Image.open(astronaut_path).convert("RGB"))
    rng = np.random.default_rng(0)
    sides = rng.integers(5, 300, 70)
    low = np.stack([rng.integers(0, 512 - sides), rng.integers(0, 512 - sides)], axis=1)
    boxes = torch.from_numpy(np.concatenate([low, low + sides[:, None]], axis=1))
    batch, image = ImageBatch([picture]), torch.zeros(70, dtype=torch.int64)
    return {name: batch.area_crops(image, boxes, size) for name, size in SIZES.items()}


def assert_equal(compiled: CropNetwork, network: nn.Module, pixels: torch.Tensor) -> None:
    with torch.inference_mode():
        ours, theirs = compiled(pixels), network(normalise(pixels))
    assert len(ours) == len(theirs)
    for got, expected in zip(ours, theirs, strict=True):
        assert got.shape == expected.shape
        assert torch.allclose(got, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("trained", [True, False])
@pytest.mark.parametrize("name", SIZES)
def test_compiled_networks_equal_torchs(
    name: str, trained: bool, cpu_networks: MtcnnNetworks, crops: dict[str, torch.Tensor]
) -> None:
    network = getattr(cpu_networks, name) if trained else random_weights(name)
    compiled = crop_network(network, KERNELS)
    for count in (1, 15, 16, 17, 33, 70):
        assert_equal(compiled, network, crops[name][:count])


@pytest.mark.parametrize("name", SIZES)
def test_no_crops_give_no_outputs(name: str, cpu_networks: MtcnnNetworks, crops: dict[str, torch.Tensor]) -> None:
    with torch.inference_mode():
        outputs = crop_network(getattr(cpu_networks, name), KERNELS)(crops[name][:0])
    assert outputs[-1].shape == (0, 2)


@pytest.mark.parametrize("name", SIZES)
def test_threads_and_neighbours_do_not_matter(
    name: str, cpu_networks: MtcnnNetworks, crops: dict[str, torch.Tensor]
) -> None:
    compiled = crop_network(getattr(cpu_networks, name), KERNELS)
    with torch.inference_mode():
        alone = torch.cat([compiled(crop[None])[-1] for crop in crops[name]])
        for count in (1, 3):
            with using_threads(count):
                assert torch.allclose(compiled(crops[name])[-1], alone, atol=1e-5)


def test_other_modules_are_used_as_they_are() -> None:
    flat = nn.Sequential(nn.Flatten(), nn.Linear(12, 2))
    pixels = torch.rand(3, 3, 2, 2) * 255
    with torch.inference_mode():
        assert torch.equal(torch.as_tensor(crop_network(flat, KERNELS)(pixels)), flat(normalise(pixels)))
