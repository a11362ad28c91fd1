"""How the loops of `*_kernels.py` are compiled: by numba, without the interpreter's lock, kept on disk.

Importing this module needs numba.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, TypeVar, cast

from numba import njit

_Function = TypeVar("_Function", bound=Callable[..., Any])


def compiled(
    signature: str | None = None, inlined: Sequence[ModuleType] = (), **options: Any
) -> Callable[[_Function], _Function]:
    """Compiles for one signature now; without one as a part of what calls it. `options` are numba's.

    numba compiles again when the function's own file changes; `inlined` names the other modules whose functions become
    a part of it, and the machine code is kept under a name that changes with theirs.
    """
    edition = hashlib.sha256("".join(inspect.getsource(module) for module in inlined).encode()).hexdigest()[:8]

    def compile_or_load(function: _Function) -> _Function:
        if inlined:
            function.__qualname__ += f"_{edition}"  # of which numba makes the file's name
        try:
            machine_code = njit(signature, nogil=True, cache=True, **options)(function)
        except RuntimeError:  # no folder to keep the machine code in: this process compiles for itself
            machine_code = njit(signature, nogil=True, **options)(function)
        return cast(_Function, machine_code)

    return compile_or_load
