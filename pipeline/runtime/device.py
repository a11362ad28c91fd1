"""Finds and describes the device of the networks and the search, and keeps within its memory.

A device is a string: "cpu", or "cuda:0" as in torch, which takes two seconds to import and is only used for CUDA.
"""

from __future__ import annotations

import ctypes
import functools
import math
import re
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from pipeline.config import AUTO, RunSettings
from pipeline.errors import DeviceFailed, DeviceMissing, DeviceOutOfMemory
from pipeline.runtime.threads import thread_count, threads_here

if TYPE_CHECKING:
    import torch

Item = TypeVar("Item")
Result = TypeVar("Result")

HOST: Final = "cpu"
CUDA: Final = "cuda"
_DRIVER: Final = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
# One being uploaded, one processed, one downloaded and written.
CUDA_BATCHES: Final = 3
_FEW_SHAPES = {CUDA}
# Lack of memory in a library, a launch or for pinned memory, as torch and Triton report it.
_NO_MEMORY = re.compile(
    r"CUBLAS_STATUS_(ALLOC_FAILED|NOT_INITIALIZED)|CUDNN_STATUS_(ALLOC_FAILED|INTERNAL_ERROR_\w*ALLOCATION_FAILED)"
    r"|[Uu]nable to find (a valid cuDNN algorithm|an engine to execute)"
    r"|(CUDA( driver)? error|Triton Error \[CUDA\]): out of memory"
)
_FAILED = re.compile(r"(CUDA|cuDNN|CUBLAS|cuBLAS)( driver)? error|Triton Error \[CUDA\]|CUBLAS_STATUS|CUDNN_STATUS")
_NO_CODE = re.compile(r"no kernel image is available|device kernel image is invalid")
_TRY_AGAIN: Final = 64  # batches after one that did not fit
_NAME = re.compile(r"cpu|cuda(:\d+)?")
_ARCHITECTURE = re.compile(r"(?P<kind>sm|compute)_(?P<major>\d+)(?P<minor>\d)(?P<only>[af]?)")
_streams: dict[str, list[torch.cuda.Stream]] = {}  # idle ones
_streams_lock = threading.Lock()


def resolve_device(name: str) -> str:
    """Resolves `auto` (the first usable CUDA device, else the CPU), `cpu`, `cuda` or `cuda:N`.

    CUDA devices get their index; the first call for one sets convolutions to full float32 until `set_tf32`. Raises
    DeviceMissing.
    """
    if name == AUTO:
        name = CUDA if _has_cuda() else HOST
    if not _NAME.fullmatch(name):
        raise DeviceMissing(device=name, detail="a device is called auto, cpu, cuda or cuda:N")
    if name == HOST:
        return name
    index = int(name.partition(":")[2] or 0)
    problem = cuda_problem(index)
    if problem is not None:
        raise DeviceMissing(device=name, detail=problem)
    _leave_tf32()
    return f"{CUDA}:{index}"


def is_cuda(device: str) -> bool:
    """Whether this is a CUDA device, indexed or not."""
    return device.startswith(CUDA)


def _has_cuda() -> bool:
    return has_cuda_driver() and cuda_problem(0) is None


@functools.cache
def has_cuda_driver() -> bool:
    """Whether there is a driver of NVIDIA, or of AMD, which torch also calls CUDA."""
    try:
        ctypes.CDLL(_DRIVER)
    except OSError:
        return Path("/dev/kfd").exists()
    return True


@functools.cache
def cuda_problem(index: int) -> str | None:
    """Why this CUDA device cannot be used, or None."""
    problem = why_no_cuda()
    if problem is not None:
        return problem
    import torch

    count = torch.cuda.device_count()
    if index >= count:
        return f"this machine has {count} (cuda:0 to cuda:{count - 1})"
    try:
        capability = torch.cuda.get_device_capability(index)
    except RuntimeError as exc:  # used exclusively by another process, or broken
        return f"it cannot be used ({_first_line(exc)})"
    architectures = torch.cuda.get_arch_list()
    if _has_code_for(capability, architectures):
        return None
    name = f"{torch.cuda.get_device_name(index)}, of compute capability {'.'.join(map(str, capability))}"
    made = f"torch {torch.__version__} was made for {', '.join(architectures)}"
    return f"{made}, and not for this GPU ({name}): install a torch that was (https://pytorch.org)"


@functools.cache
def why_no_cuda() -> str | None:
    """Why there is no CUDA device, or None. Cached, because torch reports a driver problem only once."""
    import torch

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if torch.cuda.is_available():
            return None
    if torch.version.cuda is None:
        return f"torch {torch.__version__} was built without CUDA"
    says = "; ".join(str(one.message).strip().rstrip(".") for one in caught)
    if "driver" in says and "too old" in says:
        needed = f"an NVIDIA driver for CUDA {torch.version.cuda.partition('.')[0]} or newer"
        return (
            f"torch {torch.__version__} needs {needed}, and this machine's is too old: update it (torch says: {says})"
        )
    return f"torch {torch.__version__} finds no usable GPU or driver{says and f' (torch says: {says})'}"


def _has_code_for(capability: tuple[int, int], architectures: Sequence[str]) -> bool:
    """Whether torch has machine code ("sm_86") for the same major and at most this minor version, or code for the
    driver to compile ("compute_90") for at most this version. True if unknown."""
    known = [_ARCHITECTURE.fullmatch(name) for name in architectures]
    if not known or None in known:
        return True
    made = [(one["kind"], (int(one["major"]), int(one["minor"])), bool(one["only"])) for one in known if one]
    return any(
        version == capability
        or (not only and version < capability and (kind == "compute" or version[0] == capability[0]))
        for kind, version, only in made
    )


@functools.cache
def _leave_tf32() -> None:
    """Disables cuDNN's default, TF32, once, so that `set_tf32` stays in force. Its 10-bit mantissa changes the third
    digit of embeddings."""
    import torch

    torch.backends.cudnn.allow_tf32 = False


def describe(device: str) -> str:
    """For reports: "cuda:0 (NVIDIA H100, 80 GB)" or "cpu (2 threads)"."""
    if not is_cuda(device):
        return f"{device} ({threads_here()} threads)"
    import torch

    properties = torch.cuda.get_device_properties(device)
    return f"{device} ({properties.name}, {properties.total_memory / 1e9:.0f} GB)"


def driver_uuid(device: str) -> str | None:
    """The driver's name of a CUDA device ("GPU-5b0a..."), or None.

    The driver's indices differ: they include devices hidden by CUDA_VISIBLE_DEVICES.
    """
    if not is_cuda(device):
        return None
    import torch

    uuid = getattr(torch.cuda.get_device_properties(device), "uuid", None)
    return None if uuid is None else f"GPU-{uuid}"


def on_cuda(settings: RunSettings) -> bool:
    """Whether the settings select a CUDA device, even a missing one."""
    return settings.device != HOST and (settings.device != AUTO or _has_cuda())


def batch_workers(settings: RunSettings) -> int:
    """Concurrent batches: one per thread on the CPU, CUDA_BATCHES on CUDA."""
    return CUDA_BATCHES if on_cuda(settings) else thread_count(settings.threads)


def batch_threads(settings: RunSettings) -> int:
    """CPU cores per batch: one on a CPU, all on CUDA."""
    return thread_count(settings.threads) if on_cuda(settings) else 1


def prefers_few_shapes(device_type: str) -> bool:
    """Whether new shapes are expensive: cuDNN selects algorithms for each, in each thread."""
    return device_type in _FEW_SHAPES


def padded(items: torch.Tensor, sizes: Sequence[int] = ()) -> torch.Tensor:
    """[n, ...] -> [m, ...], zero-padded if the device prefers few shapes: m is the smallest of `sizes` >= n, or else n
    rounded up by at most a quarter."""
    if not prefers_few_shapes(items.device.type) or not len(items):
        return items
    import torch

    step = max(1, (1 << (len(items) - 1).bit_length()) // 8)
    rounded = len(items) + -len(items) % step
    more = min((size for size in sizes if size >= len(items)), default=rounded) - len(items)
    return torch.cat([items, items.new_zeros((more, *items.shape[1:]))]) if more else items


def synchronize(device: str) -> None:
    """Waits until the device is idle."""
    if is_cuda(device):
        import torch

        torch.cuda.synchronize(device)


def finish(device: str) -> None:
    """Waits for this thread's stream (`own_stream`). Raises DeviceFailed."""
    if is_cuda(device):
        import torch

        try:
            torch.cuda.current_stream(device).synchronize()
        except RuntimeError as exc:
            raise_if_failed(exc)
            raise


@contextmanager
def own_stream(device: str) -> Iterator[None]:
    """Runs this thread's CUDA work concurrently with other threads'.

    It does not wait for them: their results that it uses must be finished. Streams are reused, because torch caches
    freed memory per stream.
    """
    if not is_cuda(device):
        yield
        return
    import torch

    with _streams_lock:
        free = _streams.setdefault(device, [])
        stream = free.pop() if free else torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    try:
        with torch.cuda.stream(stream):
            yield
    finally:
        with _streams_lock:
            free.append(stream)


def lack_of_memory(error: RuntimeError) -> str:
    """The message, if device or pinned memory ran out. Otherwise raises as `raise_if_failed`, or else `error`
    itself."""
    if is_lack_of_memory(error):
        return _first_line(error)
    raise_if_failed(error)
    raise error


def is_lack_of_memory(error: Exception) -> bool:
    """Whether device or pinned memory ran out."""
    if not isinstance(error, RuntimeError):  # torch's and Triton's
        return False
    import torch

    return isinstance(error, torch.OutOfMemoryError) or bool(_NO_MEMORY.search(_first_line(error)))


def raise_if_failed(error: Exception) -> None:
    """Raises DeviceFailed if the device is unusable after the error, DeviceMissing if torch has no code for it."""
    detail = _first_line(error)
    if not isinstance(error, RuntimeError) or not _FAILED.search(detail) or is_lack_of_memory(error):
        return
    if _NO_CODE.search(detail):
        import torch

        problem = f"this torch, {torch.__version__}, was not made for the GPU ({detail}): install one that was"
        raise DeviceMissing(device="cuda", detail=problem) from error
    raise DeviceFailed(detail=detail) from error


@contextmanager
def device_errors() -> Iterator[None]:
    """Turns torch's device errors into DeviceOutOfMemory, DeviceFailed or DeviceMissing."""
    try:
        yield
    except RuntimeError as exc:
        raise DeviceOutOfMemory(device="The device", detail=lack_of_memory(exc)) from exc


def _first_line(error: Exception) -> str:
    return str(error).split("\n", 1)[0]


class FittingBatches(Generic[Item]):
    """Splits batches that exceed the device's memory, and remembers their size for a while. Thread-safe."""

    def __init__(self, size: Callable[[Item], int]) -> None:
        """`size` of an item in any unit; memory must grow with the sum."""
        self._size = size
        self._too_much = math.inf  # the smallest sum that did not fit
        self._spared = 0  # batches that were not tried since

    def __call__(self, batch_fn: Callable[[Sequence[Item]], Iterable[Result]], items: Sequence[Item]) -> list[Result]:
        """`batch_fn(items)`, one result per item. If the device runs out of memory, or did at this size, runs halves
        recursively, in order.

        Raises DeviceOutOfMemory if a single item does not fit, and as `raise_if_failed`.
        """
        size, detail = sum(map(self._size, items)), ""
        if len(items) <= 1 or size < self._too_much or self._is_worth_trying():
            try:
                return list(batch_fn(items))
            except RuntimeError as exc:
                detail = lack_of_memory(exc)
            # Not in the except block: the traceback keeps the batch's tensors alive.
            if len(items) <= 1:
                raise DeviceOutOfMemory(device="The device", detail=detail)
            self._too_much, self._spared = min(self._too_much, size), 0
            import torch

            if torch.cuda.is_available():
                torch.cuda.empty_cache()
        middle = len(items) // 2
        return self(batch_fn, items[:middle]) + self(batch_fn, items[middle:])

    def _is_worth_trying(self) -> bool:
        """Once in a while: more memory may be free."""
        self._spared += 1
        if self._spared < _TRY_AGAIN:
            return False
        self._too_much = math.inf
        return True
