"""Compiled loops where numba is installed, which is optional."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

_Loops = TypeVar("_Loops")


def if_compiled(load: Callable[[], _Loops]) -> _Loops | None:
    """What `load` imports; None without a numba that works with this Python and NumPy.

    The import loads what an earlier process compiled, or compiles, and logs that before it begins.
    """
    try:
        from pipeline.runtime.compiled import logging_compilation

        with logging_compilation():
            return load()
    except (ImportError, OSError):  # OSError: numba's own library is missing
        return None
