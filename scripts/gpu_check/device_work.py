"""What a piece of work asks of a CUDA device: where it waits, what it launches, how long both sides take."""

from __future__ import annotations

import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from pipeline.evaluation.bench.harness import timed
from pipeline.extraction.detection import torch_networks, torch_nms
from pipeline.extraction.images import torch_batch
from pipeline.jobs import models

_TOP_KERNELS = 20
# Where a device gets its modules of Triton kernels, None where torch does the same.
_LOADERS = ((torch_batch, "load_triton"), (torch_networks, "load_painter"), (torch_nms, "load_kernel"))


def take_cuda_branches() -> None:
    """From now on this process takes on the CPU the branches that CUDA takes. So a dry run tries their code."""
    models.load_host_networks = lambda: None


def triton_kernels(device: str) -> dict[str, bool]:
    """Which modules of kernels the device uses, by the name of what loads them."""
    return {name: getattr(module, name)(torch.device(device)) is not None for module, name in _LOADERS}


def leave_triton() -> None:
    """From now on torch does what Triton's kernels do, in this process."""
    for module, name in _LOADERS:
        setattr(module, name, lambda _: None)


def interpret_triton() -> None:
    """From now on Triton's interpreter runs the kernels on CPU tensors, in this process, which must have begun with
    TRITON_INTERPRET=1."""
    from pipeline.extraction.detection import canvas_kernel, suppression_kernel
    from pipeline.extraction.images import triton_kernels

    triton_kernels.PIXELS = canvas_kernel.PIXELS = 1024  # the interpreter takes hardly longer than for one
    kernels = (triton_kernels, canvas_kernel, suppression_kernel)
    for (module, name), kernel in zip(_LOADERS, kernels, strict=True):
        setattr(module, name, lambda _, kernel=kernel: kernel)


def waits(work: Callable[[], object]) -> Counter[str]:
    """How often `work` waits for the device, by the file and line of facepipe's code."""
    places: Counter[str] = Counter()

    def note(message: Warning | str, *_: Any, **__: Any) -> None:
        if "synchroniz" in str(message):
            own = [frame for frame in traceback.extract_stack() if "/pipeline/" in frame.filename]
            places[f"{Path(own[-1].filename).name}:{own[-1].lineno}" if own else "elsewhere"] += 1

    with _synchronisation_warnings():
        warnings.showwarning = note
        work()
    return places


@contextmanager
def _synchronisation_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode("default")


def launches(work: Callable[[], object], images: int) -> dict[str, Any]:
    """What torch's profiler counts while `work` runs over so many images."""
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiled:
        wall_s = timed(work, "cuda")
    calls: Counter[str] = Counter()
    kernel_calls: Counter[str] = Counter()
    kernel_us: Counter[str] = Counter()
    spans = []
    for event in profiled.events():
        if str(event.device_type).endswith("CUDA"):
            kernel_calls[event.name] += 1
            kernel_us[event.name] += event.time_range.elapsed_us()
            spans.append((event.time_range.start, event.time_range.end))
        elif event.name.startswith("cu"):
            calls[event.name] += 1
    launched = sum(count for name, count in calls.items() if "Launch" in name)
    top = [[name[:90], kernel_calls[name], round(us / 1e3, 3)] for name, us in kernel_us.most_common(_TOP_KERNELS)]
    return {
        "launches_per_image": round(launched / images, 2),
        "wall_ms_profiled": round(wall_s * 1e3, 2),
        "device_busy_ms": round(_covered(spans) / 1e3, 2),
        "runtime_calls": dict(calls.most_common()),
        "kernels: calls, ms": top,
    }


def _covered(spans: list[tuple[float, float]]) -> float:
    """The length of the union of the spans."""
    covered, end = 0.0, float("-inf")
    for begin, stop in sorted(spans):
        covered += max(0.0, stop - max(begin, end))
        end = max(end, stop)
    return covered
