"""What several tests of extraction use: encoded pictures, and how often work waits for CUDA."""

from __future__ import annotations

import contextlib
import importlib
import io
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

_WAITING = {"_local_scalar_dense", "equal", "is_nonzero", "masked_select", "nonzero", "unique_consecutive"}

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")


def encode(image: Image.Image, turn: int | None = None, **options: Any) -> bytes:
    """`image` as a file, a JPEG unless the options of Pillow's `save` say otherwise; `turn` is its EXIF orientation."""
    if turn is not None:
        exif = Image.Exif()
        exif[0x0112] = turn
        options["exif"] = exif.tobytes()
    file = io.BytesIO()
    image.save(file, **(options if "format" in options else {"format": "JPEG", "quality": 92, **options}))
    return file.getvalue()


def pillow_as_library(_: object, files: Sequence[bytes], device: torch.device) -> list[torch.Tensor | None]:
    """In place of `JpegLibrary.__call__`, for tests of what is done with its answers, which need no library."""
    made: list[torch.Tensor | None] = []
    for data in files:
        try:
            with Image.open(io.BytesIO(data)) as image:
                made.append(torch.from_numpy(np.array(image)).to(device))
        except OSError:
            made.append(None)
    return made


def count_waits(work: Callable[[], object]) -> int:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")  # which warns, once in a process, that it is a prototype
        try:
            work()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return sum("called a synchronizing" in str(w.message) for w in caught)


class DispatchCounts(TorchDispatchMode):
    """Counts operations, the bytes of their results, and those of them that would wait for a device: their result's
    shape or value is needed on the host. Copies to the host are not among them, as on the CPU there are none."""

    def __init__(self) -> None:
        super().__init__()
        self.operations = 0
        self.bytes = 0
        self.waits: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        by_mask = name == "index" and any(index is not None and index.dtype == torch.bool for index in args[1])
        self.operations += 1
        self.waits[name] += by_mask or name in _WAITING
        results = func(*args, **(kwargs or {}))
        if not func.is_view:
            tensors = [results] if isinstance(results, torch.Tensor) else results if isinstance(results, tuple) else []
            self.bytes += sum(one.nbytes for one in tensors if isinstance(one, torch.Tensor))
        return results


def _uncounted(run: Callable[..., None]) -> Callable[..., None]:
    """`run`, whose operations are hidden from `DispatchCounts` and count as one."""

    def launch(*arguments: Any, **options: Any) -> None:
        with _disable_current_modes() as modes:
            run(*arguments, **options)
        for mode in modes:
            mode.operations += 1

    return launch


@contextlib.contextmanager
def interpreted(*modules: ModuleType) -> Iterator[None]:
    """Inside, the modules' Triton kernels run in Triton's interpreter, on the CPU; there they may divide by 0.
    `DispatchCounts` sees a launch as one operation."""
    import triton.language as tl
    from triton.runtime.interpreter import InterpretedFunction
    from triton.runtime.jit import JITFunction

    with contextlib.suppress(ImportError):  # which the interpreter does later, and finds functions that are none
        importlib.import_module("triton.experimental.gluon")
    places = (tl, tl.core, tl.math, tl.standard, tl.tensor, tl.core.tensor_descriptor_base)
    places += (InterpretedFunction, *modules)
    before = [dict(vars(place)) for place in places]
    for place in (tl, tl.standard, *modules):
        for name, function in list(vars(place).items()):
            if isinstance(function, JITFunction):
                setattr(place, name, InterpretedFunction(function.fn))
    InterpretedFunction.run = _uncounted(InterpretedFunction.run)
    try:
        with np.errstate(divide="ignore", invalid="ignore"):
            yield
    finally:  # after the interpreter, too, which leaves its own functions behind
        for place, members in zip(places, before, strict=True):
            for name, member in members.items():
                if vars(place)[name] is not member:
                    setattr(place, name, member)


def with_scans(progressive: bytes, count: int) -> bytes:
    """The progressive JPEG file with its last scan repeated until it has `count` scans."""
    scan, end = progressive.rindex(b"\xff\xda"), progressive.rindex(b"\xff\xd9")
    more = count - progressive.count(b"\xff\xda")
    return progressive[:end] + progressive[scan:end] * more + progressive[end:]
