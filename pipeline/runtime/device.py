"""The device that the networks run on: found by name, described, and worked within its memory."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Final, TypeVar

import torch

from pipeline.config import AUTO, RunSettings
from pipeline.errors import DeviceMissing, DeviceOutOfMemory

Item = TypeVar("Item")
Result = TypeVar("Result")

# One on its way to the device, one worked on there, one on its way back and into files.
CUDA_BATCHES: Final = 3
_FEW_SHAPES = {"cuda"}
_NAME = re.compile(r"cpu|cuda(:\d+)?")
_streams: dict[torch.device, list[torch.cuda.Stream]] = {}  # in use by nobody
_streams_lock = threading.Lock()


def resolve_device(name: str) -> torch.device:
    """The device called `name`: `auto` (the first CUDA device, else the CPU), `cpu`, `cuda` or `cuda:N`.

    A CUDA device always comes back with its index, and convolutions in full float32 from then on. Raises
    DeviceMissing.
    """
    if name == AUTO:
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if not _NAME.fullmatch(name):
        raise DeviceMissing(device=name, detail="a device is called auto, cpu, cuda or cuda:N")
    device = torch.device(name)
    if device.type == "cpu":
        return device
    return _cuda(name, device.index or 0)


def _cuda(name: str, index: int) -> torch.device:
    if not torch.cuda.is_available():
        reason = "finds no usable GPU or driver" if torch.version.cuda else "was built without CUDA"
        raise DeviceMissing(device=name, detail=f"torch {torch.__version__} {reason}")
    count = torch.cuda.device_count()
    if index >= count:
        raise DeviceMissing(device=name, detail=f"this machine has {count} (cuda:0 to cuda:{count - 1})")
    # cuDNN's default, TF32, has 10 bits of mantissa: embeddings would differ from the CPU's in the third digit.
    torch.backends.cudnn.allow_tf32 = False
    return torch.device("cuda", index)


def describe(device: torch.device) -> str:
    """What reports call the device: "cuda:0 (NVIDIA H100, 80 GB)" or "cpu (2 threads)"."""
    if device.type != "cuda":
        return f"{device.type} ({torch.get_num_threads()} threads)"
    properties = torch.cuda.get_device_properties(device)
    return f"{device} ({properties.name}, {properties.total_memory / 1e9:.0f} GB)"


def driver_uuid(device: torch.device) -> str | None:
    """What the driver calls a CUDA device: "GPU-5b0a..."; None for the CPU, and where torch does not say.

    The driver's own numbers are not torch's: they count the devices that CUDA_VISIBLE_DEVICES hides, too.
    """
    if device.type != "cuda":
        return None
    uuid = getattr(torch.cuda.get_device_properties(device), "uuid", None)
    return None if uuid is None else f"GPU-{uuid}"


def set_threads(threads: int) -> int:
    """Sets how many threads the CPU networks use (0: one per core this process may run on), and returns it."""
    wanted = thread_count(threads)
    own_threads(wanted)
    return wanted


def own_threads(threads: int) -> None:
    """Sets how many threads torch's operations on this thread use, whatever other threads set later.

    torch gives a thread the number that was set last by any, when the thread first needs it: asked for before, it
    cannot replace this one.
    """
    torch.get_num_threads()
    torch.set_num_threads(threads)


def on_cuda(settings: RunSettings) -> bool:
    """Whether the settings mean a CUDA device, be there one or not."""
    return settings.device != "cpu" and (settings.device != AUTO or torch.cuda.is_available())


def batch_workers(settings: RunSettings) -> int:
    """How many batches are worked on at the same time: one per thread on the CPU, CUDA_BATCHES on CUDA."""
    return CUDA_BATCHES if on_cuda(settings) else thread_count(settings.threads)


def batch_threads(settings: RunSettings) -> int:
    """How many cores a batch uses of the CPU's: one, since others have the others; on CUDA all, for what is left."""
    return thread_count(settings.threads) if on_cuda(settings) else 1


def padded(items: torch.Tensor) -> torch.Tensor:
    """[n, ...] -> [m, ...], zeros behind. On CUDA m is n, rounded up by at most a quarter to one of a few numbers: for
    every shape that a thread meets, cuDNN looks up anew how to do each convolution. Elsewhere m is n."""
    if items.device.type not in _FEW_SHAPES or not len(items):
        return items
    step = max(1, (1 << (len(items) - 1).bit_length()) // 8)
    more = -len(items) % step
    return torch.cat([items, items.new_zeros((more, *items.shape[1:]))]) if more else items


def synchronize(device: torch.device) -> None:
    """Waits until the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def finish(device: torch.device) -> None:
    """Waits until the device has done what it was given in the stream that this thread is in (`own_stream`)."""
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()


@contextmanager
def own_stream(device: torch.device) -> Iterator[None]:
    """Inside, a CUDA device takes this thread's work beside that of other threads, not after it.

    Nothing waits for what others have on the device: what this thread uses of theirs must be finished. The same few
    streams are used again and again, because torch keeps freed memory for the stream that used it.
    """
    if device.type != "cuda":
        yield
        return
    with _streams_lock:
        free = _streams.setdefault(device, [])
        stream = free.pop() if free else torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    try:
        with torch.cuda.stream(stream):
            yield
    finally:
        with _streams_lock:
            free.append(stream)


def thread_count(threads: int) -> int:
    """What the setting `run.threads` means: 0 is one per core this process may run on."""
    return threads or usable_cores()


def usable_cores() -> int:
    """The cores this process may run on: fewer than the machine's under taskset or a container's CPU set."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def halving(batch_fn: Callable[[Sequence[Item]], Iterable[Result]], items: Sequence[Item]) -> list[Result]:
    """`batch_fn(items)`, which gives one result per item; where the device runs out of memory, by halves.

    The halves are done in order and may halve again, so the results are those of the whole batch. Raises
    DeviceOutOfMemory when a single item is too much.
    """
    detail = ""
    try:
        return list(batch_fn(items))
    except torch.OutOfMemoryError as exc:
        detail = str(exc).split("\n", 1)[0]
    # Out of the except block: while the exception lives, its traceback keeps the failed batch's tensors in memory.
    if len(items) <= 1:
        raise DeviceOutOfMemory(device="The device", detail=detail)
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    middle = len(items) // 2
    return halving(batch_fn, items[:middle]) + halving(batch_fn, items[middle:])


def torch_problem() -> str | None:
    """What is wrong with the installed torch and torchvision, and the cure; None when they fit.

    The known trap: a CPU-only torch beside the package index's torchvision, whose operators link CUDA.
    """
    try:
        import_module("torchvision")
    except (ImportError, RuntimeError, OSError) as exc:
        return mismatch(torch.__version__, str(exc))
    return None


def mismatch(torch_version: str, error: str) -> str:
    """The message of `torch_problem` for a torchvision that cannot be imported because of `error`."""
    cure = 'pip install --force-reinstall "torch>=2.6" "torchvision>=0.21"'
    if "torchvision::nms does not exist" in error or "libcudart" in error or "libtorch_cuda" in error:
        cause = "torchvision was built for another torch (often: a CPU-only torch beside a torchvision with CUDA)"
    else:
        cause = "torchvision cannot be loaded"
    return f"torch {torch_version}: {cause}: {error}. Install both from one place: {cure}"
