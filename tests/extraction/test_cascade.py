"""The detector: shapes, batching, calls, waits. test_detect_parity.py compares it with the reference."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from pipeline.config import AlignSettings, DetectSettings
from pipeline.extraction.align import cut_crops
from pipeline.extraction.detection import cascade, torch_networks, torch_nms
from pipeline.extraction.detection.cascade import MtcnnDetector, MtcnnNetworks
from pipeline.extraction.detection.torch_networks import CANVASES_PER_CALL, TorchNetworks, load_networks
from pipeline.extraction.images import torch_batch
from pipeline.extraction.images.torch_batch import TorchBatch
from pipeline.models.weights import detector_files
from pipeline.runtime.arrays import on_host
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


def detected(detector: MtcnnDetector, images: Sequence[np.ndarray]) -> Detections:
    """The faces in NumPy's arrays."""
    with detector.networks.computing():
        found = detector(detector.networks.batch(images))
    return Detections(*(on_host(array) for array in vars(found).values()))


def boxes_of(detections: Detections, image: int) -> np.ndarray:
    return detections.boxes[detections.image_index == image]


def test_shapes_and_order(any_networks: MtcnnNetworks, images: list[np.ndarray]) -> None:
    found = detected(MtcnnDetector(any_networks, DetectSettings()), images)
    assert found.image_index.tolist() == sorted(found.image_index.tolist())
    assert {0, 1, 2, 3, 4} == set(found.image_index.tolist())
    assert len(boxes_of(found, 2)) == 2
    area = (found.boxes[:, 2:] - found.boxes[:, :2]).prod(axis=1)
    assert np.diff(area[found.image_index == 2]) <= 0
    n = len(found)
    assert (found.boxes.shape, found.landmarks.shape, found.scores.shape) == ((n, 4), (n, 5, 2), (n,))
    assert found.boxes.dtype == found.landmarks.dtype == found.scores.dtype == np.float32
    assert ((found.scores >= 0.95) & (found.scores <= 1)).all()
    inside = (found.landmarks >= found.boxes[:, None, :2]) & (found.landmarks <= found.boxes[:, None, 2:])
    assert inside.all()


@pytest.mark.slow
def test_batch_equals_single_in_any_order(any_networks: MtcnnNetworks, images: list[np.ndarray], full: bool) -> None:
    detector = MtcnnDetector(any_networks, DetectSettings(min_confidence=0.7))
    single = [detected(detector, [image]).boxes for image in images]
    for seed in range(3 if full else 1):
        order = np.random.default_rng(seed).permutation(len(images))
        found = detected(detector, [images[i] for i in order])
        for place, i in enumerate(order):
            together = boxes_of(found, place)
            assert together.shape == single[i].shape
            assert np.abs(together - single[i]).max(initial=0) <= 0.5


def test_compiled_loops_and_torch_find_the_same(
    host_networks: MtcnnNetworks, networks: TorchNetworks, images: list[np.ndarray], device: str
) -> None:
    """On an H100 the box of the largest face, 180 px, was 0.045 px from the CPU's."""
    settings = DetectSettings(min_confidence=0.7)
    found, expected = (detected(MtcnnDetector(each, settings), images) for each in (host_networks, networks))
    assert np.array_equal(found.image_index, expected.image_index)
    for ours, theirs in ((found.boxes, expected.boxes), (found.landmarks, expected.landmarks)):
        assert np.abs(ours - theirs).max() <= (0.01 if device == "cpu" else 0.1)
    assert np.abs(found.scores - expected.scores).max() <= 1e-4


@pytest.mark.slow
def test_suppression_across_levels_is_left_out_where_it_drops_nothing(
    any_networks: MtcnnNetworks, images: list[np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    detector = MtcnnDetector(any_networks, DetectSettings())
    without = detected(detector, images)
    candidates = detector.counts[RNET].inputs
    monkeypatch.setattr(cascade, "most_overlap", lambda *_: 1.0)
    for ours, theirs in zip(vars(detected(detector, images)).values(), vars(without).values(), strict=True):
        assert np.array_equal(ours, theirs)
    assert detector.counts[RNET].inputs == 2 * candidates > 0
    monkeypatch.setattr(cascade, "_ACROSS_LEVELS", 0.3)
    detected(detector, images)
    assert detector.counts[RNET].inputs < 3 * candidates


@pytest.mark.slow
@pytest.mark.parametrize("setting", ["onet_threshold", "min_confidence"])
def test_a_higher_threshold_leaves_out_the_less_confident_faces(
    any_networks: MtcnnNetworks, images: list[np.ndarray], setting: str
) -> None:
    every = detected(MtcnnDetector(any_networks, DetectSettings(min_confidence=0)), images)
    limit = float(np.sort(every.scores)[len(every) // 2 - 1 :][:2].mean())
    assert every.scores.min() < limit < every.scores.max()
    found = detected(MtcnnDetector(any_networks, DetectSettings(**{"min_confidence": 0, setting: limit})), images)
    confident = every.scores > limit
    assert np.array_equal(found.image_index, every.image_index[confident])
    np.testing.assert_allclose(found.boxes, every.boxes[confident], rtol=0, atol=0.01)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_no_face_in_any_image(any_networks: MtcnnNetworks, count: int) -> None:
    grey = [np.full((90 + 7 * k, 120, 3), 128, dtype=np.uint8) for k in range(count)]
    pictures = any_networks.batch(grey)
    found = MtcnnDetector(any_networks, DetectSettings())(pictures)
    assert len(found) == 0
    assert cut_crops(pictures, found, AlignSettings(), 160).pixels.shape == (0, 3, 160, 160)


@pytest.mark.slow
def test_calls_depend_on_pixels_and_crops_only(networks: TorchNetworks, images: list[np.ndarray], device: str) -> None:
    detector = MtcnnDetector(networks, DetectSettings())
    detected(detector, [images[3]] * 3)
    assert detector.counts[PNET].calls == 1  # three pyramids of ten levels or so in one canvas
    detector = MtcnnDetector(networks, DetectSettings())
    detected(detector, images * 3)
    counts = detector.counts
    assert counts[PNET].calls <= 3 * len(images) // CANVASES_PER_CALL[device] + 1  # fewer canvases than images
    assert counts[RNET].calls <= counts[RNET].inputs // networks.crops_per_call + 1
    assert counts[ONET].calls <= counts[ONET].inputs // networks.crops_per_call + 1


@pytest.mark.slow
def test_where_few_shapes_are_preferred_the_networks_see_few_and_find_the_same(
    networks: TorchNetworks, images: list[np.ndarray], device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = [images, images[:1], images[3:5] * 2]
    monkeypatch.setattr("pipeline.runtime.device._FEW_SHAPES", set())
    expected = [MtcnnDetector(networks, DetectSettings())(TorchBatch(batch, device)) for batch in batches]
    monkeypatch.setattr("pipeline.runtime.device._FEW_SHAPES", {"cpu", "cuda"})
    shapes: dict[torch.nn.Module, set[torch.Size]] = {}
    hooks = [
        network.register_forward_pre_hook(lambda module, inputs: shapes.setdefault(module, set()).add(inputs[0].shape))
        for network in (networks.pnet, networks.rnet, networks.onet)
    ]
    found = [MtcnnDetector(networks, DetectSettings())(TorchBatch(batch, device)) for batch in batches]
    for hook in hooks:
        hook.remove()
    assert len(shapes[networks.pnet]) == 1
    assert all({shape[0] for shape in shapes[net]} <= {128, 512, 2048} for net in (networks.rnet, networks.onet))
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.equal(ours.image_index, theirs.image_index)
        torch.testing.assert_close(ours.boxes, theirs.boxes, rtol=0, atol=0.01)
        torch.testing.assert_close(ours.scores, theirs.scores, rtol=0, atol=1e-4)


@pytest.mark.slow
@pytest.mark.usefixtures("triton_kernels")
def test_operations_and_waits_of_the_device_path(
    networks: TorchNetworks, images: list[np.ndarray], device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The path of CUDA on any device: it waits for P-Net's cells, before R-Net, before O-Net and in the end; operations
    grow with the canvases only. The faces are those of resampling by torch and suppression on the host."""
    kernel = pytest.importorskip("pipeline.extraction.detection.suppression_kernel", exc_type=ImportError)
    images = [images[3], *images[6:]]  # the interpreter is slow
    monkeypatch.setattr("pipeline.runtime.device._FEW_SHAPES", {"cpu", "cuda"})
    detector = MtcnnDetector(networks, DetectSettings())
    with pytest.MonkeyPatch.context() as patch:
        for module, load in (
            (torch_nms, "load_kernel"),
            (torch_batch, "load_triton"),
            (torch_networks, "load_painter"),
        ):
            patch.setattr(module, load, lambda _: None)
        expected = detector(TorchBatch(images, networks.device))
    monkeypatch.setattr(torch_nms, "load_kernel", lambda _: kernel)
    counted = []
    for copies in (1, 2):
        pictures = TorchBatch(images * copies, networks.device)
        interpreter = interpreted(kernel) if device == "cpu" else nullcontext()
        with networks.computing(), interpreter, DispatchCounts() as counts:
            found = detector(pictures)
        counted.append(counts)
        torch.testing.assert_close(found.boxes[: len(expected)], expected.boxes, rtol=0, atol=0.01)
        assert len(found) == copies * len(expected)
    one, many = counted
    assert one.operations <= 350
    # Of a call's canvases and a few padded crops; most of it are the networks' layers.
    assert one.bytes <= 113e6 * CANVASES_PER_CALL[device]
    assert +one.waits == +many.waits == {"nonzero": 4}
    assert many.operations < 2 * one.operations


@needs_cuda
def test_waits_do_not_grow_with_the_batch(images: list[np.ndarray]) -> None:
    detector = MtcnnDetector(load_networks(detector_files(), "cuda"), DetectSettings())
    one, many = (count_waits(partial(detector, TorchBatch(images * n, "cuda"))) for n in (1, 6))
    assert many <= one
