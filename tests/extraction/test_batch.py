"""Resampling against torch and Pillow, in compiled loops and in torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn.functional import interpolate

from pipeline.extraction.images.batch import ImageBatch, PixelMemory
from pipeline.extraction.images.torch_batch import TorchBatch, as_pillow, pinned_memory
from pipeline.jobs.models import load_host_networks


@pytest.fixture(scope="module")
def images() -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.integers(0, 256, (h, w, 3), dtype=np.uint8) for h, w in ((40, 50), (31, 17), (40, 50), (90, 200))]


def _planes(image: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(image).permute(2, 0, 1)[None].float()


def test_arrays_and_tensors_make_the_same_batch(images: list[np.ndarray], device: str) -> None:
    """Arrays and tensors mixed, tensors alone, and nothing at all."""
    expected = TorchBatch(images, device)
    mixed = [torch.from_numpy(image).to(device) if k % 2 else image for k, image in enumerate(images)]
    tensors = [torch.from_numpy(image).to(device) for image in images]
    for pictures in (mixed, tensors):
        batch = TorchBatch(pictures, device)
        assert batch.host_sizes == expected.host_sizes
        assert torch.equal(batch.pixels, expected.pixels)
        assert torch.equal(batch.sizes, expected.sizes)
    assert len(TorchBatch([], device).pixels) == 0


def test_batches_share_memory_one_after_the_other(images: list[np.ndarray], device: str) -> None:
    memory = PixelMemory(sum(image.size for image in images) // 3, partial(pinned_memory, device=device))
    expected = TorchBatch(images, device).pixels
    used = set()
    for _ in range(3):
        with memory.taken(100) as first, memory.taken(len(expected)) as second:
            used |= {first.ctypes.data, second.ctypes.data}
            TorchBatch(images[:1], device, first)
            assert torch.equal(TorchBatch(images, device, second).pixels, expected)
    assert len(used) == 2
    with memory.taken(len(expected) + 1) as larger:
        assert len(larger) == len(expected) + 1
    with pytest.raises(ValueError, match="planted"), memory.taken(1) as lost:
        raise ValueError("planted")
    with memory.taken(1) as one, memory.taken(1) as other, memory.taken(1) as third:
        assert lost.ctypes.data not in {one.ctypes.data, other.ctypes.data, third.ctypes.data}


def test_area_crops_equal_torchs_area_resampling(images: list[np.ndarray], device: str) -> None:
    batch = TorchBatch(images, device)
    index = torch.tensor([0, 1, 2, 3, 3, 1, 3], device=device)
    boxes = [[0, 0, 50, 40], [3, 4, 16, 31], [10, 10, 11, 11], [5, 6, 190, 88], [100, 3, 103, 80], [0, 0, 1, 31]]
    boxes = torch.tensor([*boxes, [150, 20, 200, 90]], device=device)  # to the last pixel of all
    crops = batch.area_crops(index, boxes, 24).cpu()
    for crop, image, (x0, y0, x1, y1) in zip(crops, index.tolist(), boxes.tolist(), strict=True):
        expected = interpolate(_planes(images[image])[:, :, y0:y1, x0:x1], size=(24, 24), mode="area")[0]
        assert torch.allclose(crop, expected, atol=1e-3)


HostBatch = Callable[[Sequence[np.ndarray]], ImageBatch]


@pytest.fixture(scope="module")
def host_batch() -> HostBatch:
    """Makes the batch that compiled loops resample."""
    loops = load_host_networks()
    if loops is None:
        pytest.skip("numba is not installed")
    made: HostBatch = loops.HostBatch
    return made


def test_area_crops_of_compiled_loops_are_torchs_bits(host_batch: HostBatch) -> None:
    rng = np.random.default_rng(1)
    images = [rng.integers(0, 256, (h, w, 3), dtype=np.uint8) for h, w in ((400, 333), (90, 200), (90, 200), (7, 5))]
    ours, theirs = host_batch(images), TorchBatch(images)
    index, corners = rng.integers(0, 4, 300), rng.random((300, 2, 2))
    sizes = ours.sizes[index][:, ::-1]
    low = (corners.min(axis=1) * (sizes - 1)).astype(np.int64)
    boxes = np.concatenate([low, np.maximum((corners.max(axis=1) * sizes).astype(np.int64), low + 1)], axis=1)
    where = torch.from_numpy(index), torch.from_numpy(boxes)
    for size in (24, 48):
        assert np.array_equal(ours.area_crops(index, boxes, size), theirs.area_crops(*where, size))
    assert ours.area_crops(index[:0], boxes[:0], 24).shape == (0, 3, 24, 24)


def test_smooth_crops_of_compiled_loops_equal_torchs(host_batch: HostBatch) -> None:
    """Shrinking and enlarging, whole and broken scales, up to rectangles of one pixel."""
    rng = np.random.default_rng(2)
    images = [rng.integers(0, 256, (h, w, 3), dtype=np.uint8) for h, w in ((200, 333), (90, 64))]
    ours, theirs = host_batch(images), TorchBatch(images)
    sides = (1, 2, 31, 32, 33, 63, 64, 90)
    boxes = [[w % 3, h % 2, w % 3 + w, h % 2 + h] for h in sides for w in sides[:-1] if w % 3 + w <= 64 and h < 90]
    index, corners = np.tile([0, 1], len(boxes)), np.repeat(boxes, 2, axis=0)
    where = torch.from_numpy(index), torch.from_numpy(corners)
    for size in (32, 160):
        assert np.abs(ours.smooth_crops(index, corners, size) - theirs.smooth_crops(*where, size).numpy()).max() <= 2e-4
    assert ours.smooth_crops(index[:0], corners[:0], 32).shape == (0, 3, 32, 32)


def test_samples_of_compiled_loops_are_torchs_bits(host_batch: HostBatch) -> None:
    """Inside, across each edge and corner, on pixel centres, far outside, at infinity and at no number."""
    rng = np.random.default_rng(4)
    images = [rng.integers(0, 256, (h, w, 3), dtype=np.uint8) for h, w in ((40, 33), (5, 9), (1, 1))]
    ours, theirs = host_batch(images), TorchBatch(images)
    points = rng.uniform(-3, 44, (60, 50, 2)).astype(np.float32)
    points[::3] = points[::3].round()
    strange = [np.nan, np.inf, -np.inf, 1e30, -1e30, -0.0]
    points[0, : len(strange) ** 2] = [(x, y) for x in strange for y in strange]
    index = np.arange(60) % 3
    expected = theirs.sample(torch.from_numpy(index), torch.from_numpy(points))
    assert np.array_equal(ours.sample(index, points), expected, equal_nan=True)
    assert ours.sample(index[:0], points[:0]).shape == (0, 50, 3)


def test_pillow_crops_on_the_host_are_the_same(host_batch: HostBatch, images: list[np.ndarray]) -> None:
    index, boxes = np.array([0, 3, 3]), np.array([[0, 0, 50, 40], [5, 6, 190, 88], [199, 89, 200, 90]])
    expected = TorchBatch(images).pillow_crops(torch.from_numpy(index), torch.from_numpy(boxes), 32)
    assert np.array_equal(host_batch(images).pillow_crops(index, boxes, 32), expected)
    assert host_batch(images).pillow_crops(index[:0], boxes[:0], 32).shape == (0, 3, 32, 32)


def test_pillow_crops_equal_pillows(device: str) -> None:
    """Shrinking and enlarging, to the edge and inside, one pixel and one row."""
    rng = np.random.default_rng(3)
    images = [rng.integers(0, 256, (h, w, 3), dtype=np.uint8) for h, w in ((200, 333), (90, 64))]
    images.append(np.repeat(np.repeat(images[1][::9, ::8], 40, axis=0), 40, axis=1))
    batch = TorchBatch(images, device)
    boxes = [(0, 0, 333, 200), (5, 7, 205, 190), (300, 100, 333, 140), (0, 0, 64, 90), (63, 89, 64, 90), (3, 4, 60, 5)]
    boxes += [(10, 20, 300, 390), (0, 0, 160, 160), (1, 1, 33, 33)]
    index = [0, 0, 0, 1, 1, 1, 2, 2, 2]
    where = (torch.tensor(index, device=device), torch.tensor(boxes, device=device))
    for size in (32, 160):
        resized = [
            np.asarray(Image.fromarray(images[i]).crop(box).resize((size, size), Image.Resampling.BILINEAR), np.float32)
            for i, box in zip(index, boxes, strict=True)
        ]
        expected = torch.from_numpy(np.stack(resized)).permute(0, 3, 1, 2)
        crops, products = (
            batch.pillow_crops(*where, size),
            batch._one_by_one(partial(as_pillow, size=size), *where, size),
        )
        assert crops.dtype == torch.float32
        assert crops.is_contiguous()
        assert (crops.cpu() - expected).abs().max() <= (0 if device == "cpu" else 1)
        assert (products.cpu() - expected).abs().max() <= 1
    assert batch.pillow_crops(where[0][:0], where[1][:0], 32).shape == (0, 3, 32, 32)


@pytest.mark.parametrize("box", [(0, 0, 50, 40), (3, 4, 16, 17), (49, 39, 50, 40), (2, 3, 9, 40)])
def test_smooth_crops_enlarge_as_pillow_does(images: list[np.ndarray], device: str, box: tuple[int, ...]) -> None:
    crop = TorchBatch(images, device).smooth_crops(
        torch.tensor([2], device=device), torch.tensor([box], device=device), 64
    )
    expected = np.asarray(Image.fromarray(images[2]).crop(box).resize((64, 64), Image.Resampling.BILINEAR), np.float32)
    assert np.abs(crop[0].permute(1, 2, 0).cpu().numpy() - expected).max() <= 1.0  # Pillow rounds, twice


def test_smooth_crops_shrink_by_exact_area(images: list[np.ndarray], device: str) -> None:
    box = torch.tensor([[10, 5, 190, 85]], device=device)
    crop = TorchBatch(images, device).smooth_crops(torch.tensor([3], device=device), box, 20)
    expected = interpolate(_planes(images[3])[:, :, 5:85, 10:190], size=(20, 20), mode="area")
    assert torch.allclose(crop.cpu(), expected, atol=1e-2)  # 180 / 20 and 80 / 20 are whole


def test_smooth_crops_do_not_depend_on_their_neighbours(images: list[np.ndarray], device: str) -> None:
    batch = TorchBatch(images, device)
    index = torch.tensor([3, 1, 0, 2], device=device)
    boxes = torch.tensor([[0, 0, 200, 90], [1, 1, 5, 30], [0, 0, 50, 40], [7, 7, 8, 8]], device=device)
    together = batch.smooth_crops(index, boxes, 32)
    for k in range(4):
        assert torch.allclose(batch.smooth_crops(index[k : k + 1], boxes[k : k + 1], 32)[0], together[k], atol=1e-3)


def test_large_sums_are_exact(device: str) -> None:
    image = np.full((3000, 3000, 3), 255, dtype=np.uint8)  # all together 2.3e9: over 2^31
    batch = TorchBatch([image], device)
    where = torch.tensor([0], device=device), torch.tensor([[1, 1, 3000, 3000]], device=device)
    for crops in (batch.area_crops(*where, 24), batch.area_crops_by_torch(*where, 24)):
        assert torch.equal(crops, torch.full_like(crops, 255.0))


def test_no_images(device: str) -> None:
    batch = TorchBatch([], device)
    assert len(batch) == 0
    assert batch.sizes.shape == (0, 2)
