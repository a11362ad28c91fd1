"""Compiles the loops of `*_kernels.py` with numba, without the interpreter's lock, and keeps them on disk.

Importing this module needs a numba that compiles.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Any, Final, TypeVar, cast

import numba.core.caching
import numba.core.event
from numba import njit

# Options of `compiled`. Division as NumPy's; FUSED: products and sums may become one instruction, with one rounding.
EXACT: Final[dict[str, Any]] = {"error_model": "numpy"}
FUSED: Final[dict[str, Any]] = {"fastmath": {"contract"}, **EXACT}

_log: Final = logging.getLogger(__name__)

_Function = TypeVar("_Function", bound=Callable[..., Any])
# numba says nothing of the types of these.
_settings: Final[Any] = numba.config
_Kept: Final[Any] = numba.core.caching.FunctionCache

if _settings.DISABLE_JIT:  # the instructions by hand cannot be interpreted, and all other loops take hours
    raise ImportError("numba is told not to compile, by NUMBA_DISABLE_JIT")


def compiled(
    signature: str | None = None, inlined: Sequence[ModuleType] = (), **options: Any
) -> Callable[[_Function], _Function]:
    """Compiles a function for `signature` now, or loads what an earlier process compiled. Without a signature the
    function becomes a part of its callers, which are kept. `options` are numba's.

    numba watches the function's own file only. `inlined` names the other modules whose functions and constants become a
    part of it: the machine code is kept under a name that changes with all of them.
    """

    def compile_or_load(function: _Function) -> _Function:
        if signature is None:  # kept by itself, it would not change with the files that it is made of
            return cast(_Function, njit(nogil=True, **options)(function))
        function.__qualname__ += f"_{edition(function, *inlined)}"  # numba makes the file's name of it
        try:
            return cast(_Function, njit(signature, nogil=True, cache=True, **options)(function))
        except Exception:  # noqa: BLE001 - no folder, no room, or a damaged file: unpickling may raise anything
            with suppress(RuntimeError, OSError):
                _Kept(function).flush()  # or every later process would read the damaged file
            return cast(_Function, njit(signature, nogil=True, **options)(function))  # for this process only

    return compile_or_load


def edition(*sources: Callable[..., Any] | ModuleType) -> str:
    """A hash of the files that define `sources` and of this one: what the machine code is made from."""
    files = [__file__, *(inspect.getfile(source) for source in sources)]
    return hashlib.sha256(b"".join(Path(file).read_bytes() for file in files)).hexdigest()[:8]


@contextmanager
def logging_compilation() -> Iterator[None]:
    """Inside, the log says that loops are being compiled, once a process and before the first: it takes so long that a
    user would think nothing happens. Loops that are loaded from disk are not logged."""
    with numba.core.event.install_listener("numba:compile", _Compilation()):
        yield


class _Compilation(numba.core.event.Listener):  # type: ignore[misc, unused-ignore]
    def on_start(self, _event: Any) -> None:
        _log_compilation()

    def on_end(self, _event: Any) -> None:
        """Nothing to log."""


@functools.cache
def _log_compilation() -> None:
    _log.warning("compiling loops for this processor, once: about half a minute")
