"""Single operations whose cost on a GPU decides something in the code.

What a new thread or shape costs decides whether `padded` is worth its arithmetic; P-Net's and the embedder's variants,
what a redesign would gain (graphs, half precision, another layout); copies, whether the device waits for the bus.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable

import torch
from torch import nn

from gpu_check.device_work import call_ms
from gpu_check.findings import Findings
from gpu_check.options import WEIGHTS, Options
from pipeline.evaluation.bench.harness import timed
from pipeline.extraction.detection.torch_networks import CANVAS_SIDE, CANVASES_PER_CALL, CanvasPNet, load_networks
from pipeline.extraction.embed import BATCH_CROPS
from pipeline.models.load import load_torch_network
from pipeline.models.weights import detector_files, resolve
from pipeline.runtime.device import resolve_device
from pipeline.runtime.precision import set_tf32

_CROP_PX = 160
_COPIED_BYTES = 100_000_000
Work = Callable[[], object]


@torch.inference_mode()
def micro(options: Options, found: Findings) -> None:
    device = torch.device(resolve_device(options.device))
    canvases = 1 if options.quick else CANVASES_PER_CALL[device.type]
    crops = 2 if options.quick else BATCH_CROPS[device.type]
    pnet = load_networks(detector_files(), device).pnet
    network = load_torch_network(resolve(WEIGHTS, None, options.cache())).to(device)
    variants = {"P-Net": pnet_variants(pnet, canvases), "embedder": network_variants(network, noise(crops, device))}
    for name, works in variants.items():
        for label, make in works.items():
            with found.part(f"{name} {label}"):
                found.put(f"{name}, {label}", call_ms(make(), device))
    found.headline = f"P-Net on {canvases} canvases, the embedder on {crops} crops"
    if device.type == "cpu":
        found.headline += " (graphs, half precision and copies on CUDA only)"
        return
    set_tf32(str(device), False)
    torch.backends.cudnn.benchmark = False
    with found.part("a new thread or shape"):
        found.put("embedder, first and second call, ms", new_threads_and_shapes(network, device))
    with found.part("copies"):
        found.put("copies, GB/s", copies(device))


def noise(crops: int, device: torch.device) -> torch.Tensor:
    return torch.randn(crops, 3, _CROP_PX, _CROP_PX, device=device)


def pnet_variants(pnet: CanvasPNet, count: int) -> dict[str, Callable[[], Work]]:
    side, device = CANVAS_SIDE, pnet.net.conv1.weight.device
    canvases = torch.rand(count, 3, side, side, device=device) * 2 - 1
    inside = torch.ones(count, 1, side - 2, side - 2, dtype=torch.bool, device=device)
    pooled = torch.ones(count, 1, side // 2 - 1, side // 2 - 1, dtype=torch.bool, device=device)
    return network_variants(pnet, canvases, inside, pooled)


def network_variants(network: nn.Module, inputs: torch.Tensor, *more: torch.Tensor) -> dict[str, Callable[[], Work]]:
    """Makers of one call of the network, by what is different about it. Each sets torch's switches as it needs them."""
    last = torch.channels_last

    def plain(tf32: bool = False, tuned: bool = False) -> Work:
        set_tf32(str(inputs.device), tf32)
        torch.backends.cudnn.benchmark = tuned
        return lambda: network(inputs, *more)

    def converted(dtype: torch.dtype) -> Work:
        plain()
        other = copy.deepcopy(network).to(dtype=dtype, memory_format=last)  # type: ignore[call-overload]
        pixels = inputs.to(dtype, memory_format=last)
        return lambda: other(pixels, *more)

    def graph(work: Work) -> Work:
        stream = torch.cuda.Stream(inputs.device)
        stream.wait_stream(torch.cuda.current_stream(inputs.device))
        with torch.cuda.stream(stream):  # cuDNN chooses before the capture
            work()
        torch.cuda.current_stream(inputs.device).wait_stream(stream)
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured):
            work()
        return captured.replay

    made: dict[str, Callable[[], Work]] = {"float32": plain, "channels_last": lambda: converted(torch.float32)}
    if inputs.is_cuda:
        made["TF32"] = lambda: plain(tf32=True)
        made["tuned"] = lambda: plain(tuned=True)
        made["float16"] = lambda: converted(torch.float16)
        made["float32, graph"] = lambda: graph(plain())
        made["float16, graph"] = lambda: graph(converted(torch.float16))
    return made


def new_threads_and_shapes(network: nn.Module, device: torch.device) -> dict[str, list[float]]:
    """Milliseconds of the first and the second call: cuDNN's plans are kept per thread and shape."""
    took: dict[str, list[float]] = {}

    def call_twice(label: str, count: int) -> None:
        with torch.inference_mode():
            crops = noise(count, device)
            took[label] = [round(1e3 * timed(lambda: network(crops), device), 2) for _ in range(2)]

    call_twice("first shape of all", 96)
    call_twice("known shape", 96)
    call_twice("new shape", 80)
    for label in ("new thread", "another new thread"):
        thread = threading.Thread(target=call_twice, args=(label, 96))
        thread.start()
        thread.join()
    return took


def copies(device: torch.device) -> dict[str, float]:
    there = torch.ones(_COPIED_BYTES, dtype=torch.uint8, device=device)
    pageable = torch.ones(_COPIED_BYTES, dtype=torch.uint8)
    pinned = pageable.pin_memory()
    works: dict[str, Work] = {
        "up": lambda: there.copy_(pageable),
        "up, pinned": lambda: there.copy_(pinned, non_blocking=True),
        "down": there.cpu,
        "down, pinned": lambda: pinned.copy_(there, non_blocking=True),
    }
    return {name: round(_COPIED_BYTES / 1e6 / call_ms(work, device)["ms"], 2) for name, work in works.items()}
