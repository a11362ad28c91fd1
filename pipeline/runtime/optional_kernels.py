"""Optional kernels: numba's on the CPU, if installed; Triton's on CUDA, if installed and equal to torch."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    import torch

_log: Final = logging.getLogger(__name__)
# How kernels differ from torch on a device, or None. May raise whatever Triton raises.
SelfCheck: TypeAlias = "Callable[[torch.device], str | None]"
# By device and loading module: why Triton is not used, or None.
_outcomes: Final[dict[torch.device, dict[str, str | None]]] = {}


def if_compiled(load: Callable[[], ModuleType]) -> Callable[[], ModuleType | None]:
    """Makes a function that returns the loops that `load` imports.

    Without a usable numba it returns None, and torch does the same. The first call compiles (up to half a minute,
    logged before) or loads from the cache.
    """

    @functools.cache
    def loops() -> ModuleType | None:
        try:
            from pipeline.runtime.compiled import logging_compilation

            with logging_compilation():
                return load()
        except (ImportError, OSError):  # numba's library is missing
            return None

    return loops


def if_checked(load: Callable[[], tuple[ModuleType, SelfCheck]]) -> Callable[[torch.device], ModuleType | None]:
    """Makes a function from a device to the Triton kernels of `load`, which also returns their check.

    It returns None on a CPU. The first call for a CUDA device compares the kernels with torch; without Triton or if
    they differ it logs that and returns None, and torch does the same more slowly. Raises DeviceFailed.
    """
    return functools.cache(lambda device: _checked(load, device) if device.type == "cuda" else None)


def outcomes(device: torch.device) -> dict[str, str | None]:
    """By loading module, for kernels requested so far: why they are not used on the device, or None."""
    return dict(_outcomes.get(device, {}))


def _checked(load: Callable[[], tuple[ModuleType, SelfCheck]], device: torch.device) -> ModuleType | None:
    from pipeline.runtime.device import is_lack_of_memory, raise_if_failed

    try:
        module, self_check = load()
        problem = self_check(device)
    except Exception as exc:  # no Triton, no host compiler, an unknown device
        if is_lack_of_memory(exc):
            raise  # later there may be room
        if not str(exc).startswith("Triton Error"):  # Triton's own failure; torch reports lost devices
            raise_if_failed(exc)
        problem = f"{type(exc).__name__}: {exc}".split("\n", 1)[0]
    _outcomes.setdefault(device, {})[load.__module__.rpartition(".")[2]] = problem
    if problem is None:
        return module
    _log.warning("%s does without Triton, more slowly: %s", device, problem)
    return None
