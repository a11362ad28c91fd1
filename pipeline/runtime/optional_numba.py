"""Compiled loops where numba is installed, which is optional."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def if_compiled(load: Callable[[], ModuleType]) -> Callable[[torch.device], ModuleType | None]:
    """Makes of `load`, which imports compiled loops, a function that gives a device its loops.

    They are None on CUDA, and without a numba that works with this Python and NumPy: torch then does the same. The
    first call compiles them, up to half a minute, and logs that before it begins, or loads what an earlier process
    compiled.
    """

    @functools.cache
    def loops() -> ModuleType | None:
        try:
            from pipeline.runtime.compiled import logging_compilation

            with logging_compilation():
                return load()
        except (ImportError, OSError):  # OSError: numba's own library is missing
            return None

    return lambda device: loops() if device.type == "cpu" else None
