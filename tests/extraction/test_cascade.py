"""The detector: shapes, batching, calls, waits. test_detect_parity.py compares it with the reference."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from pipeline.config import AlignSettings, DetectSettings
from pipeline.extraction.align import cut_crops
from pipeline.extraction.detection import cascade, nms, proposals
from pipeline.extraction.detection.cascade import CROPS_PER_CALL, MtcnnDetector, load_kernels
from pipeline.extraction.detection.networks import MtcnnNetworks
from pipeline.extraction.detection.proposals import CANVASES_PER_CALL
from pipeline.extraction.images import batch
from pipeline.extraction.images.batch import ImageBatch
from pipeline.runtime.stage_times import ONET, PNET, RNET
from pipeline.types import Detections
from tests.extraction.helpers import DispatchCounts, count_waits, interpreted, needs_cuda


@pytest.fixture(scope="module")
def images(hopper_path: Path, astronaut_path: Path) -> list[np.ndarray]:
    """Portraits at several sizes, a collage, and pictures without a face, down to a single pixel."""
    hopper, astronaut = (Image.open(p).convert("RGB") for p in (hopper_path, astronaut_path))
    collage = Image.new("RGB", (700, 420), "grey")
    collage.paste(hopper.resize((350, 410)), (0, 5))
    collage.paste(astronaut.resize((330, 330)), (360, 40))
    rng = np.random.default_rng(0)
    pictures = [hopper, astronaut.resize((250, 251)), collage, hopper.resize((101, 119)), astronaut.resize((250, 251))]
    noise = [rng.integers(0, 256, (h, w, 3), dtype=np.uint8) for h, w in ((130, 70), (1, 1), (19, 400), (12, 12))]
    return [*(np.array(p) for p in pictures), *noise]


@pytest.fixture(params=["compiled", "torch"])
def path(request: pytest.FixtureRequest, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Detection by numba's loops, on the CPU, and without them."""
    if request.param == "torch":
        use_torch(monkeypatch)
    elif load_kernels(device) is None:
        pytest.skip("no compiled loops: numba is not installed, or the device is CUDA")


def use_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (cascade, batch):
        monkeypatch.setattr(module, "load_kernels", lambda _: None)


def boxes_of(detections: Detections, image: int) -> np.ndarray:
    return detections.boxes[detections.image_index == image].cpu().numpy()


@pytest.mark.usefixtures("path")
def test_shapes_and_order(networks: MtcnnNetworks, images: list[np.ndarray], device: str) -> None:
    found = MtcnnDetector(networks, DetectSettings())(ImageBatch(images, device))
    assert found.image_index.tolist() == sorted(found.image_index.tolist())
    assert {0, 1, 2, 3, 4} == set(found.image_index.tolist())
    assert len(boxes_of(found, 2)) == 2
    area = (found.boxes[:, 2:] - found.boxes[:, :2]).prod(1)
    assert area[found.image_index == 2].diff().item() <= 0
    n = len(found)
    assert (found.boxes.shape, found.landmarks.shape, found.scores.shape) == ((n, 4), (n, 5, 2), (n,))
    assert found.boxes.dtype == found.landmarks.dtype == found.scores.dtype == torch.float32
    assert ((found.scores >= 0.95) & (found.scores <= 1)).all()
    inside = (found.landmarks >= found.boxes[:, None, :2]) & (found.landmarks <= found.boxes[:, None, 2:])
    assert inside.all()


@pytest.mark.usefixtures("path")
def test_batch_equals_single_in_any_order(
    networks: MtcnnNetworks, images: list[np.ndarray], device: str, full: bool
) -> None:
    detector = MtcnnDetector(networks, DetectSettings(min_confidence=0.7))
    single = [detector(ImageBatch([image], device)).boxes.cpu().numpy() for image in images]
    for seed in range(3 if full else 1):
        order = np.random.default_rng(seed).permutation(len(images))
        found = detector(ImageBatch([images[i] for i in order], device))
        for place, i in enumerate(order):
            together = boxes_of(found, place)
            assert together.shape == single[i].shape
            assert np.abs(together - single[i]).max(initial=0) <= 0.5


def test_compiled_loops_and_torch_find_the_same(networks: MtcnnNetworks, images: list[np.ndarray], device: str) -> None:
    found = MtcnnDetector(networks, DetectSettings(min_confidence=0.7))(ImageBatch(images, device))
    with pytest.MonkeyPatch.context() as patch:
        use_torch(patch)
        expected = MtcnnDetector(networks, DetectSettings(min_confidence=0.7))(ImageBatch(images, device))
    assert torch.equal(found.image_index, expected.image_index)
    for ours, theirs in ((found.boxes, expected.boxes), (found.landmarks, expected.landmarks)):
        assert (ours - theirs).abs().max() <= 0.01
    assert (found.scores - expected.scores).abs().max() <= 1e-4


def test_suppression_across_levels_is_left_out_where_it_drops_nothing(
    networks: MtcnnNetworks, images: list[np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    detector, pictures = MtcnnDetector(networks, DetectSettings()), ImageBatch(images, networks.device)
    without = detector(pictures)
    candidates = detector.counts[RNET].inputs
    monkeypatch.setattr(cascade, "most_overlap", lambda *_: 1.0)
    for ours, theirs in zip(vars(detector(pictures)).values(), vars(without).values(), strict=True):
        assert torch.equal(ours, theirs)
    assert detector.counts[RNET].inputs == 2 * candidates > 0
    monkeypatch.setattr(cascade, "_ACROSS_LEVELS", 0.3)
    detector(pictures)
    assert detector.counts[RNET].inputs < 3 * candidates


@pytest.mark.parametrize("setting", ["onet_threshold", "min_confidence"])
def test_a_higher_threshold_leaves_out_the_less_confident_faces(
    networks: MtcnnNetworks, images: list[np.ndarray], device: str, setting: str
) -> None:
    pictures = ImageBatch(images, device)
    every = MtcnnDetector(networks, DetectSettings(min_confidence=0))(pictures)
    limit = every.scores.sort().values[len(every) // 2 - 1 :][:2].mean().item()
    assert every.scores.min() < limit < every.scores.max()
    found = MtcnnDetector(networks, DetectSettings(**{"min_confidence": 0, setting: limit}))(pictures)
    confident = every.scores > limit
    assert torch.equal(found.image_index, every.image_index[confident])
    torch.testing.assert_close(found.boxes, every.boxes[confident], rtol=0, atol=0.01)


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("count", [0, 1, 3])
def test_no_face_in_any_image(networks: MtcnnNetworks, device: str, count: int) -> None:
    grey = [np.full((90 + 7 * k, 120, 3), 128, dtype=np.uint8) for k in range(count)]
    pictures = ImageBatch(grey, device)
    found = MtcnnDetector(networks, DetectSettings())(pictures)
    assert len(found) == 0
    assert cut_crops(pictures, found, AlignSettings(), 160).pixels.shape == (0, 3, 160, 160)


@pytest.mark.usefixtures("path")
def test_calls_depend_on_pixels_and_crops_only(networks: MtcnnNetworks, images: list[np.ndarray], device: str) -> None:
    detector = MtcnnDetector(networks, DetectSettings())
    small = [images[3]] * 3
    detector(ImageBatch(small, device))
    assert detector.counts[PNET].calls == 1  # three pyramids of ten levels or so in one canvas
    detector = MtcnnDetector(networks, DetectSettings())
    detector(ImageBatch(images * 3, device))
    counts = detector.counts
    assert counts[PNET].calls <= 3 * len(images) // CANVASES_PER_CALL[device] + 1  # fewer canvases than images
    assert counts[RNET].calls <= counts[RNET].inputs // CROPS_PER_CALL[device] + 1
    assert counts[ONET].calls <= counts[ONET].inputs // CROPS_PER_CALL[device] + 1


def test_where_few_shapes_are_preferred_the_networks_see_few_and_find_the_same(
    networks: MtcnnNetworks, images: list[np.ndarray], device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_torch(monkeypatch)
    batches = [images, images[:1], images[3:5] * 2]
    monkeypatch.setattr("pipeline.runtime.device._FEW_SHAPES", set())
    expected = [MtcnnDetector(networks, DetectSettings())(ImageBatch(batch, device)) for batch in batches]
    monkeypatch.setattr("pipeline.runtime.device._FEW_SHAPES", {"cpu", "cuda"})
    shapes: dict[torch.nn.Module, set[torch.Size]] = {}
    hooks = [
        network.register_forward_pre_hook(lambda module, inputs: shapes.setdefault(module, set()).add(inputs[0].shape))
        for network in (networks.pnet, networks.rnet, networks.onet)
    ]
    found = [MtcnnDetector(networks, DetectSettings())(ImageBatch(batch, device)) for batch in batches]
    for hook in hooks:
        hook.remove()
    assert len(shapes[networks.pnet]) == 1
    assert all({shape[0] for shape in shapes[net]} <= {128, 512, 2048} for net in (networks.rnet, networks.onet))
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.equal(ours.image_index, theirs.image_index)
        torch.testing.assert_close(ours.boxes, theirs.boxes, rtol=0, atol=0.01)
        torch.testing.assert_close(ours.scores, theirs.scores, rtol=0, atol=1e-4)


@pytest.mark.usefixtures("triton_kernels")
def test_operations_and_waits_of_the_device_path(
    networks: MtcnnNetworks, images: list[np.ndarray], device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The path of CUDA on any device: it waits for P-Net's cells, before R-Net, before O-Net and in the end; operations
    grow with the canvases only. The faces are those of resampling by torch and suppression on the host."""
    kernel = pytest.importorskip("pipeline.extraction.detection.suppression_kernel", exc_type=ImportError)
    images = [images[3], *images[6:]]  # the interpreter is slow
    use_torch(monkeypatch)
    monkeypatch.setattr("pipeline.runtime.device._FEW_SHAPES", {"cpu", "cuda"})
    detector = MtcnnDetector(networks, DetectSettings())
    with pytest.MonkeyPatch.context() as patch:
        for module, load in ((nms, "load_kernel"), (batch, "load_triton"), (proposals, "load_painter")):
            patch.setattr(module, load, lambda _: None)
        expected = detector(ImageBatch(images, networks.device))
    monkeypatch.setattr(nms, "load_kernel", lambda _: kernel)
    counted = []
    for copies in (1, 2):
        pictures = ImageBatch(images * copies, networks.device)
        with interpreted(kernel) if device == "cpu" else nullcontext(), DispatchCounts() as counts:
            found = detector(pictures)
        counted.append(counts)
        torch.testing.assert_close(found.boxes[: len(expected)], expected.boxes, rtol=0, atol=0.01)
        assert len(found) == copies * len(expected)
    one, many = counted
    assert one.operations <= 350
    assert one.bytes <= 450e6  # of four canvases and a few padded crops; most of it are the networks' layers
    assert +one.waits == +many.waits == {"nonzero": 4}
    assert many.operations < 2 * one.operations


@pytest.mark.usefixtures("path")
@needs_cuda
def test_waits_do_not_grow_with_the_batch(networks: MtcnnNetworks, images: list[np.ndarray]) -> None:
    detector = MtcnnDetector(networks, DetectSettings())
    one, many = (count_waits(partial(detector, ImageBatch(images * n, "cuda"))) for n in (1, 6))
    assert many <= one
