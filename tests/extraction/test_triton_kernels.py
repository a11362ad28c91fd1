"""The Triton kernels that resample, against torch and the compiled loops: on CUDA, and on CPU tensors by Triton's
interpreter."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from pipeline.extraction.detection import torch_networks
from pipeline.extraction.detection.canvases import Packing, Tile, TileTable, pack, paint_by_torch
from pipeline.extraction.detection.cascade import MtcnnDetector
from pipeline.extraction.detection.pyramid import Level
from pipeline.extraction.detection.torch_networks import TorchNetworks
from pipeline.extraction.extractor import BatchExtractor
from pipeline.extraction.images import torch_batch
from pipeline.extraction.images.batch import HostBatch
from pipeline.extraction.images.torch_batch import TorchBatch
from pipeline.types import DecodedImage
from tests.extraction.helpers import needs_cuda

CPU = torch.device("cpu")
Kernels = list[ModuleType]


def noise(*sides: tuple[int, int]) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.integers(0, 256, (*side, 3), dtype=np.uint8) for side in sides]


def boxes_in(images: TorchBatch, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The images [n] and corners [n, 4] of boxes: whole images, single pixels in their corners, and any others."""
    rng = np.random.default_rng(1)
    corners = []
    for image, (h, w) in enumerate(images.host_sizes):
        corners += [(image, 0, 0, w, h), (image, w - 1, h - 1, w, h), (image, 0, 0, 1, 1), (image, w - 1, 0, w, h)]
    for image in rng.integers(0, len(images), count):
        h, w = images.host_sizes[image]
        (x0, x1), (y0, y1) = (np.sort(rng.integers(0, side + 1, 2)) for side in (w, h))
        corners.append((image, min(x0, w - 1), min(y0, h - 1), max(x1, x0 + 1), max(y1, y0 + 1)))
    found = torch.tensor(np.array(corners))
    found[:, 3:] = torch.minimum(found[:, 3:], images.sizes[found[:, 0]].flip(1))
    return found[:, 0], found[:, 1:]


@pytest.mark.slow
def test_crops_equal_torchs_and_the_compiled_loops(triton_kernels: Kernels, device: str, full: bool) -> None:
    """Enlarged and shrunk; single pixels, rows and columns, and at every edge; images of any mix of sizes."""
    pictures = noise((90, 201), (7, 5), (1, 1), (333, 64))
    loops, ours, theirs = HostBatch(pictures), TorchBatch(pictures, device), TorchBatch(pictures)
    where = boxes_in(theirs, 40 if full else 10)
    there, on_host = [column.to(device) for column in where], [column.numpy() for column in where]
    for size in (24, 48):
        crops = triton_kernels[0].crops(ours, *there, size, smooth=False).cpu()
        assert torch.equal(crops, theirs.area_crops_by_torch(*where, size))
        assert np.array_equal(crops, loops.area_crops(*on_host, size))
    smooth = triton_kernels[0].crops(ours, *there, 40, smooth=True).cpu()
    assert (smooth - theirs.smooth_crops_by_torch(*where, 40)).abs().max() <= 2e-4
    assert np.abs(smooth.numpy() - loops.smooth_crops(*on_host, 40)).max() <= 2e-4
    assert triton_kernels[0].crops(ours, there[0][:0], there[1][:0], 24, smooth=False).shape == (0, 3, 24, 24)


@pytest.mark.usefixtures("triton_kernels")
def test_boxes_need_not_lie_in_one_piece(device: str) -> None:
    pictures = noise((90, 201), (33, 64))
    image, boxes = boxes_in(TorchBatch(pictures), 6)
    expected, ours = TorchBatch(pictures).area_crops_by_torch(image, boxes, 24), TorchBatch(pictures, device)
    image, boxes = image.to(device), boxes.to(device)
    assert torch.equal(ours.area_crops(image[1::2], boxes[1::2], 24).cpu(), expected[1::2])
    assert torch.equal(ours.area_crops(image, boxes.T.contiguous().T, 24).cpu(), expected)


def test_pixels_beyond_two_to_the_31_bytes(triton_kernels: Kernels, device: str) -> None:
    """The last image of a batch whose first ones are never touched, so that on the host they take no memory."""
    (picture,), before = noise((40, 50)), 2**31 // 3 + 1000
    expected, far = TorchBatch([picture]), TorchBatch([picture], device)
    far.pixels = torch.empty((before + 2000, 3), dtype=torch.uint8, device=device)
    far.pixels[before:] = expected.pixels.to(device)
    far.bases += before
    where = torch.tensor([0, 0]), torch.tensor([[0, 0, 50, 40], [49, 39, 50, 40]])
    crops = far.area_crops(*(column.to(device) for column in where), 24)
    assert torch.equal(crops.cpu(), expected.area_crops_by_torch(*where, 24))
    packing = pack([[Level(0.7, 29, 35)]], 64)
    painted = triton_kernels[1].paint(far, TileTable(packing, far.device), 0, 1)
    assert torch.equal(painted.pixels.cpu(), paint_by_torch(expected, packing, 1).pixels)


@pytest.mark.slow
@pytest.mark.parametrize("side", [64, 512])
def test_canvases_equal_torchs(side: int, triton_kernels: Kernels, device: str) -> None:
    """In parts and with an empty one at the end; levels shrunk, enlarged, in tiles, of odd sides, of one colour."""
    pictures = [*noise((90, 201), (33, 20), (1, 1)), np.full((50, 40, 3), 7, np.uint8)]
    levels = [
        [Level(0.6, 55, 121), Level(0.4, 37, 81), Level(0.2, 13, 29)],
        [Level(1.0, 33, 20), Level(4.1, 137, 83)],
        [Level(20.0, 21, 22)],
        [Level(0.5, 26, 21)],
    ]
    packing = pack(levels, side)
    images, count = TorchBatch(pictures, device), packing.canvases + 1
    tiles, expected = TileTable(packing, images.device), paint_by_torch(TorchBatch(pictures), packing, count)
    for first, end in {(0, 1), (1, count), (count - 1, count)}:
        ours, theirs = triton_kernels[1].paint(images, tiles, first, end), expected[first:end]
        for name, tensor in vars(ours).items():
            assert tensor.dtype == getattr(theirs, name).dtype
            assert torch.equal(tensor.cpu(), getattr(theirs, name)), name


def test_a_level_millions_of_pixels_wide(triton_kernels: Kernels, device: str) -> None:
    """Its last columns: what they average is found in 32 bits."""
    width, level_width, x = 6_000_000, 5_800_001, 5_799_489
    image = np.random.default_rng(2).integers(0, 256, (1, width, 3), dtype=np.uint8)
    packing = Packing([[Level(1.0, 12, level_width)]], [Tile(0, 0, 0, x, 12, 512, 0, 0, 0)], 512, 1)
    batch = TorchBatch([image], device)
    canvas = triton_kernels[1].paint(batch, TileTable(packing, batch.device), 0, 1).pixels[0].cpu()
    starts = [column * width // level_width for column in range(x, level_width)]
    ends = [-(-(column + 1) * width // level_width) for column in range(x, level_width)]
    means = np.array([image[0, start:end].mean(axis=0) for start, end in zip(starts, ends, strict=True)])
    torch.testing.assert_close(canvas[:, 5].T, torch.from_numpy((means - 127.5) / 128).float(), rtol=0, atol=1e-5)


@pytest.mark.slow
def test_the_extractor_finds_and_embeds_the_same(
    extractor: BatchExtractor,
    cpu_networks: TorchNetworks,
    hopper_path: Path,
    astronaut_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    """In two portraits, beside the compiled loops."""
    pictures = [Image.open(path).convert("RGB").resize((140, 159)) for path in (hopper_path, astronaut_path)]
    images = [DecodedImage(np.array(picture), "png") for picture in pictures]
    expected = extractor.extract(images)
    request.getfixturevalue("interpreted_kernels")
    detector = MtcnnDetector(cpu_networks, extractor.settings.detect)
    found = BatchExtractor(detector, extractor.embedder, extractor.settings).extract(images)
    for ours, theirs in zip(found, expected, strict=True):
        assert len(ours) == len(theirs) == 1
        for column in ("x1", "y1", "x2", "y2", "landmarks", "confidence", "sharpness_quality", "embedding"):
            numbers = (np.array(table[column].to_pylist(), np.float32) for table in (ours, theirs))
            np.testing.assert_allclose(*numbers, rtol=0, atol=1e-5 if column == "embedding" else 2e-3)


def checked(kernels: Kernels, part: int, device: torch.device) -> str | None:
    resampling, painting = kernels
    problem: str | None = painting.self_check(device) if part else resampling.self_check(device, TorchBatch)
    return problem


@pytest.mark.slow
@pytest.mark.parametrize("part", [0, 1])
def test_kernels_that_are_right_pass_their_check(part: int, triton_kernels: Kernels, device: str) -> None:
    assert checked(triton_kernels, part, torch.device(device)) is None


@pytest.mark.parametrize(
    ("part", "name", "problem"),
    [
        (0, "area_edges", "averaged crops differ by up to"),
        (0, "window_edges", "smoothed crops differ by up to"),
        (1, "area_edges", "of the canvases' pixels differ"),
    ],
)
def test_a_wrong_kernel_is_found(part: int, name: str, problem: str, triton_kernels: Kernels, device: str) -> None:
    """Its windows are as they should be, without their last part."""
    if device != "cpu":
        pytest.skip("a compiled kernel is not read anew")
    edges = getattr(triton_kernels[part], name)

    def too_few(*arguments: Any) -> Any:
        start, end = edges(*arguments)
        return start, triton_kernels[0].tl.maximum(start + 1, end - 1)

    with pytest.MonkeyPatch.context() as patch:  # undone before the interpreter is
        patch.setattr(triton_kernels[part], name, too_few)
        assert problem in (checked(triton_kernels, part, CPU) or "")


def test_what_is_not_a_number_is_wrong(triton_kernels: Kernels, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_kernels[0], "crops", lambda *_, **__: torch.full((1,), torch.nan))
    assert checked(triton_kernels, 0, torch.device(device)) == "averaged crops differ by up to nan grey levels"


@pytest.mark.slow
def test_they_compile_for_gpus(capability: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From Turing to Blackwell, without a GPU; by default the oldest and the newest. No product and sum become one
    instruction there, and divisions are IEEE's: their bits are torch's."""
    pytest.importorskip("triton")
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from triton.compiler import compile as compiled

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    from pipeline.extraction.detection import canvas_kernel
    from pipeline.extraction.images import triton_kernels

    types = {"pixels": "*u8", "out": "*fp32", "inside": "*i1", "pool": "*i1"}
    types |= dict.fromkeys(("size", "side", "begin", "first"), "i32")
    sizes = {"PIXELS": triton_kernels.PIXELS, "TAPS": triton_kernels.TAPS}
    for kernel, constants in (
        (triton_kernels._cut, {"SMOOTH": False, **sizes}),
        (triton_kernels._cut, {"SMOOTH": True, **sizes}),
        (canvas_kernel._paint, sizes),
    ):
        signature = {name: types.get(name, "constexpr" if name in constants else "*i64") for name in kernel.arg_names}
        source = ASTSource(fn=kernel, signature=signature, constexprs=constants)
        made = compiled(source, target=GPUTarget("cuda", capability, 32), options=triton_kernels.EXACT).asm
        assert made["cubin"]
        assert "div.rn.f32" in made["ptx"]
        assert "fma." not in made["ptx"]


@needs_cuda
def test_cuda_uses_them() -> None:
    """So they passed their check on it."""
    assert torch_batch.load_triton(torch.device("cuda", 0)) is not None
    assert torch_networks.load_painter(torch.device("cuda", 0)) is not None
