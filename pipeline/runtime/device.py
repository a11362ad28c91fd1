"""The device that the networks and the search run on: finding it by name, describing it, and staying within its memory.

A device is a string: "cpu", or "cuda:0" as torch calls it. torch, which takes two seconds to load, is asked only about
CUDA.
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
# One on its way to the device, one being processed there, one on its way back and into files.
CUDA_BATCHES: Final = 3
_FEW_SHAPES = {CUDA}
# What torch and Triton raise, as a RuntimeError, where a library, a launch or the allocator of pinned memory finds no
# room.
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
_streams: dict[str, list[torch.cuda.Stream]] = {}  # not in use
_streams_lock = threading.Lock()


def resolve_device(name: str) -> str:
    """The device called `name`: `auto` (the first CUDA device if it can be used, else the CPU), `cpu`, `cuda` or
    `cuda:N`.

    A CUDA device always comes back with its index. From the first one on convolutions are in full float32, until
    `set_tf32` says otherwise. Raises DeviceMissing.
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
    """Whether this is a CUDA device, with or without its number."""
    return device.startswith(CUDA)


def _has_cuda() -> bool:
    return has_cuda_driver() and cuda_problem(0) is None


@functools.cache
def has_cuda_driver() -> bool:
    """Whether there is NVIDIA's driver, or AMD's, which torch calls CUDA as well. Without one torch finds no device."""
    try:
        ctypes.CDLL(_DRIVER)
    except OSError:
        return Path("/dev/kfd").exists()
    return True


@functools.cache
def cuda_problem(index: int) -> str | None:
    """Why the CUDA device of this number cannot be used; None where it can."""
    problem = why_no_cuda()
    if problem is not None:
        return problem
    import torch

    count = torch.cuda.device_count()
    if index >= count:
        return f"this machine has {count} (cuda:0 to cuda:{count - 1})"
    try:
        capability = torch.cuda.get_device_capability(index)
    except RuntimeError as exc:  # the device is another process's alone, or broken
        return f"it cannot be used ({_first_line(exc)})"
    architectures = torch.cuda.get_arch_list()
    if _has_code_for(capability, architectures):
        return None
    name = f"{torch.cuda.get_device_name(index)}, of compute capability {'.'.join(map(str, capability))}"
    made = f"torch {torch.__version__} was made for {', '.join(architectures)}"
    return f"{made}, and not for this GPU ({name}): install a torch that was (https://pytorch.org)"


@functools.cache
def why_no_cuda() -> str | None:
    """Why there is no CUDA device; None where there is one. Asked once: torch says what is wrong with the driver the
    first time only."""
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
    """Whether torch has code for a device: machine code ("sm_86") of its major version and at most its minor one, or
    code that the driver compiles ("compute_90") of at most its version. True where there is no telling."""
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
    """Once, so that a later look at the device leaves what `set_tf32` set. cuDNN's default, TF32, has 10 bits of
    mantissa: embeddings would differ from the CPU's in the third digit."""
    import torch

    torch.backends.cudnn.allow_tf32 = False


def describe(device: str) -> str:
    """What reports call the device: "cuda:0 (NVIDIA H100, 80 GB)" or "cpu (2 threads)"."""
    if not is_cuda(device):
        return f"{device} ({threads_here()} threads)"
    import torch

    properties = torch.cuda.get_device_properties(device)
    return f"{device} ({properties.name}, {properties.total_memory / 1e9:.0f} GB)"


def driver_uuid(device: str) -> str | None:
    """What the driver calls a CUDA device: "GPU-5b0a..."; None for the CPU, and where torch does not say.

    The driver numbers devices differently: it counts those that CUDA_VISIBLE_DEVICES hides, too.
    """
    if not is_cuda(device):
        return None
    import torch

    uuid = getattr(torch.cuda.get_device_properties(device), "uuid", None)
    return None if uuid is None else f"GPU-{uuid}"


def on_cuda(settings: RunSettings) -> bool:
    """Whether the settings mean a CUDA device, whether or not there is one."""
    return settings.device != HOST and (settings.device != AUTO or _has_cuda())


def batch_workers(settings: RunSettings) -> int:
    """How many batches are worked on at the same time: one per thread on the CPU, CUDA_BATCHES on CUDA."""
    return CUDA_BATCHES if on_cuda(settings) else thread_count(settings.threads)


def batch_threads(settings: RunSettings) -> int:
    """How many CPU cores a batch uses: one on a CPU, where other batches use the others; on CUDA all."""
    return thread_count(settings.threads) if on_cuda(settings) else 1


def prefers_few_shapes(device_type: str) -> bool:
    """Whether each new shape costs the device: in each thread, cuDNN has to find out how to do each convolution."""
    return device_type in _FEW_SHAPES


def padded(items: torch.Tensor, sizes: Sequence[int] = ()) -> torch.Tensor:
    """[n, ...] -> [m, ...], padded with zeros where the device prefers few shapes. m is the smallest of `sizes` that is
    large enough; without them, n rounded up by at most a quarter to one of a few numbers."""
    if not prefers_few_shapes(items.device.type) or not len(items):
        return items
    import torch

    step = max(1, (1 << (len(items) - 1).bit_length()) // 8)
    rounded = len(items) + -len(items) % step
    more = min((size for size in sizes if size >= len(items)), default=rounded) - len(items)
    return torch.cat([items, items.new_zeros((more, *items.shape[1:]))]) if more else items


def synchronize(device: str) -> None:
    """Waits until the device has finished its work."""
    if is_cuda(device):
        import torch

        torch.cuda.synchronize(device)


def finish(device: str) -> None:
    """Waits until the device has finished the work in this thread's stream (`own_stream`). Raises DeviceFailed."""
    if is_cuda(device):
        import torch

        try:
            torch.cuda.current_stream(device).synchronize()
        except RuntimeError as exc:
            raise_if_failed(exc)
            raise


@contextmanager
def own_stream(device: str) -> Iterator[None]:
    """Inside, a CUDA device does this thread's work concurrently with that of other threads, not after it.

    Nothing waits for the work of other threads, so any of their results that this thread uses must be finished. A few
    streams are reused, because torch keeps freed memory for the stream that used it.
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
    """What says that the device, or the host's pinned memory, had no room. Raises DeviceFailed for an error after which
    nothing works on the device, DeviceMissing where torch has no code for it, and any other error itself."""
    if is_lack_of_memory(error):
        return _first_line(error)
    raise_if_failed(error)
    raise error


def is_lack_of_memory(error: Exception) -> bool:
    """Whether the device, or the host's pinned memory, had no room."""
    if not isinstance(error, RuntimeError):  # torch's and Triton's
        return False
    import torch

    return isinstance(error, torch.OutOfMemoryError) or bool(_NO_MEMORY.search(_first_line(error)))


def raise_if_failed(error: Exception) -> None:
    """Raises DeviceFailed for an error after which nothing works on the device, DeviceMissing where torch has no code
    for it."""
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
    """Raises DeviceOutOfMemory, DeviceFailed or DeviceMissing for what torch raises where the device is why."""
    try:
        yield
    except RuntimeError as exc:
        raise DeviceOutOfMemory(device="The device", detail=lack_of_memory(exc)) from exc


def _first_line(error: Exception) -> str:
    return str(error).split("\n", 1)[0]


class FittingBatches(Generic[Item]):
    """Works on batches in parts that the device has memory for, and remembers for a while what was too much. Threads
    may share it."""

    def __init__(self, size: Callable[[Item], int]) -> None:
        """`size`: of an item, in any unit: what a batch takes grows with the sum."""
        self._size = size
        self._too_much = math.inf  # the smallest sum that did not fit
        self._spared = 0  # batches that were not tried since

    def __call__(self, batch_fn: Callable[[Sequence[Item]], Iterable[Result]], items: Sequence[Item]) -> list[Result]:
        """`batch_fn(items)`, which gives one result per item; where the device runs out of memory, or did at such a
        size before, each half by itself.

        The halves run in order and may be halved again, so the results are those of the whole batch. Raises
        DeviceOutOfMemory if a single item is too much, and DeviceFailed for errors after which nothing works.
        """
        size, detail = sum(map(self._size, items)), ""
        if len(items) <= 1 or size < self._too_much or self._is_worth_trying():
            try:
                return list(batch_fn(items))
            except RuntimeError as exc:
                detail = lack_of_memory(exc)
            # Not in the except block: while the exception exists, its traceback keeps the failed batch's tensors.
            if len(items) <= 1:
                raise DeviceOutOfMemory(device="The device", detail=detail)
            self._too_much, self._spared = min(self._too_much, size), 0
            import torch

            if torch.cuda.is_available():
                torch.cuda.empty_cache()
        middle = len(items) // 2
        return self(batch_fn, items[:middle]) + self(batch_fn, items[middle:])

    def _is_worth_trying(self) -> bool:
        """Once in a while: what took the memory may be gone."""
        self._spared += 1
        if self._spared < _TRY_AGAIN:
            return False
        self._too_much = math.inf
        return True
