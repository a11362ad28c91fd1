"""Compiles the loops of `*_kernels.py` with numba, without the interpreter's lock, and caches them on disk. Needs a
numba that compiles."""

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

# Options of `compiled`: division as in NumPy; FUSED also allows fused multiply-add, with one rounding.
EXACT: Final[dict[str, Any]] = {"error_model": "numpy"}
FUSED: Final[dict[str, Any]] = {"fastmath": {"contract"}, **EXACT}

_log: Final = logging.getLogger(__name__)

_Function = TypeVar("_Function", bound=Callable[..., Any])
# numba has no type annotations for these.
_settings: Final[Any] = numba.config
_Kept: Final[Any] = numba.core.caching.FunctionCache

if _settings.DISABLE_JIT:  # uncompiled, handwritten instructions fail and other loops take hours
    raise ImportError("numba is told not to compile, by NUMBA_DISABLE_JIT")


def compiled(
    signature: str | None = None, inlined: Sequence[ModuleType] = (), **options: Any
) -> Callable[[_Function], _Function]:
    """Compiles a function for `signature` at once, or loads it from the cache. Without a signature it is compiled into
    its callers.

    numba only watches the function's own file. `inlined` names other modules that are compiled into it; changing them
    changes its name in the cache. `options` are numba's.
    """

    def compile_or_load(function: _Function) -> _Function:
        if signature is None:  # cached alone, it would ignore changed modules
            return cast(_Function, njit(nogil=True, **options)(function))
        function.__qualname__ += f"_{edition(function, *inlined)}"  # names numba's cache file
        try:
            return cast(_Function, njit(signature, nogil=True, cache=True, **options)(function))
        except Exception:  # noqa: BLE001 - no folder, no room, or a damaged file: unpickling may raise anything
            with suppress(RuntimeError, OSError):
                _Kept(function).flush()  # or every later process reads the damaged file
            return cast(_Function, njit(signature, nogil=True, **options)(function))  # for this process only

    return compile_or_load


def edition(*sources: Callable[..., Any] | ModuleType) -> str:
    """A hash of this file and those that define `sources`."""
    files = [__file__, *(inspect.getfile(source) for source in sources)]
    return hashlib.sha256(b"".join(Path(file).read_bytes() for file in files)).hexdigest()[:8]


@contextmanager
def logging_compilation() -> Iterator[None]:
    """Logs once per process, before loops are compiled, so that users do not think it hangs. Cached loops are not
    logged."""
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
