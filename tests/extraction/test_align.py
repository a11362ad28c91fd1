"""The embedder's crops: boxes against facenet-pytorch's `extract_face`, five-point crops against torch's sampling."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from facenet_pytorch.models.utils.detect_face import extract_face
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torch.nn.functional import grid_sample, interpolate
from torch.utils._python_dispatch import TorchDispatchMode

from pipeline.config import AlignSettings
from pipeline.extraction.align import FIVE_POINT_SIZE, FIVE_POINT_TEMPLATE, PIXEL_CENTRE, cut_crops, warp_crops
from pipeline.extraction.detection.cascade import MtcnnNetworks
from pipeline.extraction.images.torch_batch import TorchBatch
from pipeline.types import ByteArray, Detections
from tests.extraction.helpers import count_waits, needs_cuda

TEMPLATE = torch.tensor(FIVE_POINT_TEMPLATE)


def detections(boxes: list[list[float]], image: list[int], device: str) -> Detections:
    n = len(boxes)
    values = torch.tensor(boxes, device=device)
    points = torch.zeros((n, 5, 2), device=device)
    return Detections(torch.tensor(image, device=device), values, points, torch.ones(n, device=device))


@pytest.mark.parametrize("resampling", ["area", "pillow"])
@pytest.mark.parametrize("margin", [0, 14, 32])
def test_equals_the_reference_crop(hopper_path: Path, device: str, margin: int, resampling: str) -> None:
    """Enlarged and shrunk, inside the image and clipped at its edges."""
    photo, settings = Image.open(hopper_path).convert("RGB"), AlignSettings(margin_px=margin, resampling=resampling)
    boxes = [[80.3, 40.7, 170.2, 160.9], [-20.5, -10.0, 90.0, 80.0], [400.0, 250.0, 580.0, 730.0], [60.5, 9, 480, 420]]
    crops = cut_crops(TorchBatch([np.array(photo)], device), detections(boxes, [0] * 4, device), settings, 160)
    for box, crop, (x0, y0, x1, y1) in zip(boxes, crops.pixels.cpu(), crops.frames.tolist(), strict=True):
        assert 0 <= x0 < x1 <= 512
        assert 0 <= y0 < y1 <= 600
        apart = (crop - extract_face(photo, np.array(box, np.float32), 160, margin)).abs()
        if resampling == "pillow":
            assert apart.max() <= (0 if device == "cpu" else 1)
        elif max(x1 - x0, y1 - y0) <= 160:
            assert apart.max() <= 1.5
        else:  # a box filter against Pillow's triangle: the means agree, edges differ
            assert apart.mean() < 3


def test_a_box_outside_the_image_still_gives_a_crop(device: str) -> None:
    batch = TorchBatch([np.zeros((30, 40, 3), np.uint8)], device)
    crops = cut_crops(batch, detections([[100.0, 100.0, 120.0, 120.0]], [0], device), AlignSettings(), 160)
    assert crops.pixels.shape == (1, 3, 160, 160)
    assert torch.isfinite(crops.pixels).all()


def faces(landmarks: torch.Tensor, image: list[int], device: str = "cpu") -> Detections:
    """`landmarks` [n, 5, 2] counted from pixel centres."""
    n = len(landmarks)
    index = torch.tensor(image, device=device)
    return Detections(
        index, torch.zeros((n, 4), device=device), (landmarks + PIXEL_CENTRE).to(device), torch.ones(n, device=device)
    )


def placed(scale: float, degrees: float, x: float, y: float) -> torch.Tensor:
    """[5, 2]: the template turned and scaled about its origin, then moved."""
    c, s = scale * math.cos(math.radians(degrees)), scale * math.sin(math.radians(degrees))
    return TEMPLATE @ torch.tensor([[c, s], [-s, c]]) + torch.tensor([x, y])


def smooth_picture(height: int, width: int) -> ByteArray:
    """Slow waves: interpolation and averaging give nearly the function's own values."""
    y, x = np.mgrid[:height, :width]
    return np.stack([waves(x, y, phase) for phase in range(3)], axis=2).round().astype(np.uint8)


def waves(x: np.ndarray, y: np.ndarray, phase: int) -> np.ndarray:
    return 128 + 60 * np.sin(x / 40 + phase) + 60 * np.cos(y / 33 - phase)


@given(st.floats(0.3, 5.0), st.floats(-180, 180), st.floats(-50, 400), st.floats(-50, 400))
def test_each_pixel_of_a_crop_shows_its_place_in_the_picture(scale: float, degrees: float, x: float, y: float) -> None:
    picture = smooth_picture(400, 500)
    crop = warp_crops(TorchBatch([picture]), faces(placed(scale, degrees, x, y)[None], [0]))[0].permute(1, 2, 0).numpy()
    c, s = scale * math.cos(math.radians(degrees)), scale * math.sin(math.radians(degrees))
    v, u = np.mgrid[:FIVE_POINT_SIZE, :FIVE_POINT_SIZE]
    px, py = c * u - s * v + x, s * u + c * v + y
    # Samples beyond the edge are black.
    reach = 2 * scale + 2
    inside = (px > reach) & (px < 499 - reach) & (py > reach) & (py < 399 - reach)
    outside = (px < -reach) | (px > 499 + reach) | (py < -reach) | (py > 399 + reach)
    for channel in range(3):
        assert np.abs(crop[:, :, channel] - waves(px, py, channel))[inside].max(initial=0) < 3
    assert np.abs(crop[outside]).max(initial=0) == 0


def test_equals_torchs_grid_sample(device: str) -> None:
    rng = np.random.default_rng(0)
    picture = rng.integers(0, 256, (90, 130, 3), dtype=np.uint8)
    landmarks = torch.stack([placed(0.6, 25, 30, -10), placed(1.2, -170, 120, 100)])
    found = warp_crops(TorchBatch([picture], device), faces(landmarks, [0, 0], device)).cpu()
    for crop, (scale, degrees, x, y) in zip(found, [(0.6, 25, 30, -10), (1.2, -170, 120, 100)], strict=True):
        c, s = scale * math.cos(math.radians(degrees)), scale * math.sin(math.radians(degrees))
        v, u = torch.meshgrid(torch.arange(112.0), torch.arange(112.0), indexing="ij")
        grid = torch.stack([(c * u - s * v + x) * 2 / 129 - 1, (s * u + c * v + y) * 2 / 89 - 1], dim=2)
        planes = torch.from_numpy(picture).permute(2, 0, 1)[None].float()
        expected = grid_sample(planes, grid[None], mode="bilinear", padding_mode="zeros", align_corners=True)[0]
        assert (crop - expected).abs().max() < 0.1


def test_a_batch_of_mixed_sizes_equals_one_by_one(device: str) -> None:
    pictures = [smooth_picture(200, 300), smooth_picture(130, 90), smooth_picture(200, 300), smooth_picture(7, 5)]
    index = [0, 0, 1, 2, 3]
    landmarks = torch.stack([placed(s, 40 * s, 12 * s, 5) for s in (1.0, 3.0, 0.5, 1.4, 0.05)])
    together = warp_crops(TorchBatch(pictures, device), faces(landmarks, index, device))
    assert together.shape == (5, 3, 112, 112)
    assert together.device.type == device
    assert together.dtype == torch.float32
    for k, i in enumerate(index):
        alone = warp_crops(TorchBatch([pictures[i]], device), faces(landmarks[k : k + 1], [0], device))
        torch.testing.assert_close(together[k : k + 1], alone, atol=1e-3, rtol=0)


class _Operations(TorchDispatchMode):
    """Counts torch's operations."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


def many_faces(n: int, device: str) -> tuple[TorchBatch, Detections]:
    """n faces of two sizes."""
    landmarks = torch.stack([placed(1 + k % 2, k, k, 5) for k in range(n)])
    return TorchBatch([smooth_picture(200, 300)], device), faces(landmarks, [0] * n, device)


def test_the_work_is_done_for_all_faces_at_once(device: str) -> None:
    counts = []
    for n in (4, 20):
        batch, found = many_faces(n, device)
        with _Operations() as operations:
            warp_crops(batch, found)
        counts.append(operations.count)
    assert counts[0] == counts[1] > 0


@needs_cuda
@pytest.mark.parametrize("n", [2, 20])
def test_waits_once_for_the_device(n: int) -> None:
    batch, found = many_faces(n, "cuda")
    warp_crops(batch, found)  # libraries that load at the first call may wait
    assert count_waits(lambda: warp_crops(batch, found)) == 1


def test_no_faces_are_no_crops(device: str) -> None:
    found = faces(torch.empty(0, 5, 2), [], device)
    assert warp_crops(TorchBatch([smooth_picture(9, 9)], device), found).shape == (0, 3, 112, 112)
    empty = Detections(found.image_index.long(), found.boxes, found.landmarks, found.scores)
    assert warp_crops(TorchBatch([], device), empty).shape == (0, 3, 112, 112)


def test_the_template_scales_with_the_crop() -> None:
    """A crop of 224 is one of 112 at twice the resolution: pairs of its pixels average to the smaller one's."""
    batch, found = TorchBatch([smooth_picture(400, 500)]), faces(placed(2.0, 10, 60, 40)[None], [0])
    halved = interpolate(warp_crops(batch, found, 224), size=(112, 112), mode="area")
    assert (halved - warp_crops(batch, found)).abs().max() < 1


@pytest.mark.parametrize("scale", [2, 4, 8])
def test_a_large_face_is_averaged_and_not_thinned_out(scale: int) -> None:
    """A smaller crop of stripes one pixel wide shows their mean; every `scale`-th pixel would show one of them."""
    stripes = np.zeros((130 * scale, 130 * scale, 3), np.uint8)
    stripes[:, ::2] = 255
    crop = warp_crops(TorchBatch([stripes]), faces(placed(scale, 0, scale, scale)[None], [0]))
    assert (crop - 127.5).abs().max() < 1


@pytest.mark.parametrize(
    "points",
    [torch.full((5, 2), 20.0), TEMPLATE * torch.tensor([-1.0, 1.0]) + 120, TEMPLATE * 1e-9, TEMPLATE * 1e7],
    ids=["one point", "mirrored", "tiny", "huge"],
)
def test_landmarks_that_are_no_face_still_give_a_crop(points: torch.Tensor, device: str) -> None:
    crop = warp_crops(TorchBatch([smooth_picture(50, 60)], device), faces(points[None], [0], device))
    assert crop.shape == (1, 3, 112, 112)
    assert ((crop >= 0) & (crop <= 255.01)).all()


@pytest.mark.parametrize("resampling", ["area", "pillow"])
def test_the_host_cuts_what_torch_cuts(host_networks: MtcnnNetworks, resampling: str) -> None:
    """Boxes and landmarks inside pictures, across their edges and outside, at every scale, and none at all."""
    pictures = [smooth_picture(200, 300), smooth_picture(130, 90)]
    boxes = [[10.3, 20.7, 90.2, 110.9], [-20.5, -10.0, 90.0, 80.0], [400.0, 250.0, 480.0, 330.0], [3, 3, 80, 126]]
    points = torch.stack([placed(s, 40 * s, 12 * s, 5) for s in (1.0, 3.0, 0.5, 1.4)])
    there = Detections(torch.tensor([0, 0, 1, 1]), torch.tensor(boxes), points, torch.ones(4))
    settings = AlignSettings(resampling=resampling)
    for count in (4, 0):
        found = Detections(*(array[:count] for array in vars(there).values()))
        ours = Detections(*(array.numpy() for array in vars(found).values()))
        host, torchs = host_networks.batch(pictures), TorchBatch(pictures)
        crops, expected = cut_crops(host, ours, settings, 160), cut_crops(torchs, found, settings, 160)
        assert np.array_equal(crops.frames, expected.frames)
        np.testing.assert_allclose(crops.pixels, expected.pixels, rtol=0, atol=2e-4)
        np.testing.assert_allclose(warp_crops(host, ours), warp_crops(torchs, found), rtol=0, atol=1e-2)
