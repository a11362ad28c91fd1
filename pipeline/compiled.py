"""How the loops of `*_kernels.py` are compiled: by numba, without the interpreter's lock, kept on disk.

Importing this module needs numba.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from numba import njit

_Function = TypeVar("_Function", bound=Callable[..., Any])


def compiled(signature: str | None = None, **options: Any) -> Callable[[_Function], _Function]:
    """Compiles for one signature now; without one as a part of what calls it. `options` are numba's."""

    def compile_or_load(function: _Function) -> _Function:
        try:
            machine_code = njit(signature, nogil=True, cache=True, **options)(function)
        except RuntimeError:  # no folder to keep the machine code in: this process compiles for itself
            machine_code = njit(signature, nogil=True, **options)(function)
        return cast(_Function, machine_code)

    return compile_or_load
