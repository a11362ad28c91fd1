"""How the loops of `*_kernels.py` are compiled: by numba, without the interpreter's lock, kept on disk.

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
    """Compiles for one signature now, or loads what an earlier process compiled; without one as a part of what calls
    it, which keeps it. `options` are numba's.

    numba looks at the function's own file only. `inlined` names the other modules whose functions and constants become
    a part of it, and the machine code is kept under a name that changes with all of them.
    """

    def compile_or_load(function: _Function) -> _Function:
        if signature is None:  # kept by itself it would stay what it was when a file that it is made of changes
            return cast(_Function, njit(nogil=True, **options)(function))
        function.__qualname__ += f"_{edition(function, *inlined)}"  # of which numba makes the file's name
        try:
            return cast(_Function, njit(signature, nogil=True, cache=True, **options)(function))
        except Exception:  # noqa: BLE001 - no folder, no room, or a damaged file: unpickling raises whatever it meets
            with suppress(RuntimeError, OSError):
                _Kept(function).flush()  # or every later process would meet the damaged file
            return cast(_Function, njit(signature, nogil=True, **options)(function))  # this process for itself

    return compile_or_load


def edition(*sources: Callable[..., Any] | ModuleType) -> str:
    """A name for what the files hold that define these, and this one: of which machine code is made."""
    files = [__file__, *(inspect.getfile(source) for source in sources)]
    return hashlib.sha256(b"".join(Path(file).read_bytes() for file in files)).hexdigest()[:8]


@contextmanager
def logging_compilation() -> Iterator[None]:
    """While it is open, the log says that loops are compiled, before the first one is, once a process: the wait is so
    long that one would think nothing happened. Of loops that are loaded it says nothing."""
    with numba.core.event.install_listener("numba:compile", _Compilation()):
        yield


class _Compilation(numba.core.event.Listener):  # type: ignore[misc, unused-ignore]
    def on_start(self, _event: Any) -> None:
        _log_compilation()

    def on_end(self, _event: Any) -> None:
        """It is not said how long it took."""


@functools.cache
def _log_compilation() -> None:
    _log.warning("compiling loops for this processor, once: about half a minute")
