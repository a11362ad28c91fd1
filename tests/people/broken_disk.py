"""A disk that takes nothing more from a fault point on: the calls of the system fail, Python's and DuckDB's."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from pipeline.store.files import faults
from tests.store.store_samples import at_fault_points, no_room

_CALLS = ("fsync", "fdatasync", "write", "replace", "mkdir", "unlink")


@contextmanager
def broken_at(point: str, number: int) -> Iterator[None]:
    """For the block, from the first call of `point` on Python's writes fail with this error (ENOSPC or EIO), and DuckDB
    has no room for its log, whichever it is: an error of the device cannot be had for one real file. Files can be
    unlinked, but at the point `unlink`."""
    with ExitStack() as stack:

        def reach(name: str) -> None:
            if name == point:
                faults.install(None)
                names = [call for call in _CALLS if call != "unlink" or point == call]
                stack.enter_context(_failing_calls(number, names))
                stack.enter_context(no_room())

        stack.enter_context(at_fault_points(reach))
        yield


@contextmanager
def _failing_calls(number: int, names: Sequence[str]) -> Iterator[None]:
    def failing(call: Callable[..., Any], fails: Callable[..., bool] = lambda *_: True) -> Callable[..., Any]:
        def instead(*args: Any, **kwargs: Any) -> Any:
            if fails(*args):
                raise OSError(number, os.strerror(number))
            return call(*args, **kwargs)

        return instead

    with ExitStack() as stack:
        for name in names:
            stack.enter_context(patch.object(os, name, failing(getattr(os, name))))
        to_write = failing(os.open, lambda _path, flags, *_: bool(flags & (os.O_WRONLY | os.O_RDWR)))
        stack.enter_context(patch.object(os, "open", to_write))
        yield
