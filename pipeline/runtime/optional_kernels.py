"""Kernels where they can be used: on the CPU loops that numba compiles, if it is installed; on CUDA Triton's, if it is
installed and they give what torch gives."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    import torch

_log: Final = logging.getLogger(__name__)
# In what kernels differ from torch's operations on a device, or None. May raise whatever Triton does.
SelfCheck: TypeAlias = "Callable[[torch.device], str | None]"
# By device and the module that loads them: why Triton's kernels are not used, or None where they are.
_outcomes: Final[dict[torch.device, dict[str, str | None]]] = {}


def if_compiled(load: Callable[[], ModuleType]) -> Callable[[], ModuleType | None]:
    """Makes of `load`, which imports loops for the CPU, a function that returns them.

    They are None without a numba that works with this Python and NumPy: torch then does the same. The first call
    compiles them, up to half a minute, and logs that before it begins, or loads what an earlier process compiled.
    """

    @functools.cache
    def loops() -> ModuleType | None:
        try:
            from pipeline.runtime.compiled import logging_compilation

            with logging_compilation():
                return load()
        except (ImportError, OSError):  # OSError: numba's own library is missing
            return None

    return loops


def if_checked(load: Callable[[], tuple[ModuleType, SelfCheck]]) -> Callable[[torch.device], ModuleType | None]:
    """Makes of `load`, which imports a module of Triton kernels and has their check, a function that gives a device its
    kernels.

    They are None on a CPU. On CUDA they are compared with torch when a device first asks for them; without Triton, or
    where they differ, they are None, the log says why, and torch does the same more slowly. Raises DeviceFailed.
    """
    return functools.cache(lambda device: _checked(load, device) if device.type == "cuda" else None)


def outcomes(device: torch.device) -> dict[str, str | None]:
    """Of the kernels that were asked for so far, by the module that loads them: why they are not used on the device, or
    None where they are."""
    return dict(_outcomes.get(device, {}))


def _checked(load: Callable[[], tuple[ModuleType, SelfCheck]], device: torch.device) -> ModuleType | None:
    from pipeline.runtime.device import is_lack_of_memory, raise_if_failed

    try:
        module, self_check = load()
        problem = self_check(device)
    except Exception as exc:  # no Triton, no compiler for the host's part, a device that it does not know
        if is_lack_of_memory(exc):
            raise  # another time there may be room
        if not str(exc).startswith("Triton Error"):  # what Triton alone cannot do; if the device is lost, torch says so
            raise_if_failed(exc)
        problem = f"{type(exc).__name__}: {exc}".split("\n", 1)[0]
    _outcomes.setdefault(device, {})[load.__module__.rpartition(".")[2]] = problem
    if problem is None:
        return module
    _log.warning("%s does without Triton, more slowly: %s", device, problem)
    return None
