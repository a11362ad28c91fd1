"""Thread counts of networks, compiled loops and matrix products. Needs no torch."""

from __future__ import annotations

import functools
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

from threadpoolctl import ThreadpoolController

Item = TypeVar("Item")
Result = TypeVar("Result")


class _Threads(threading.local):
    """The thread's own count; the class attribute is for threads without one."""

    count: int | None = None  # one per usable core


_threads = _Threads()


def thread_count(threads: int) -> int:
    """The count for the setting `run.threads`; 0: one per usable core."""
    return threads or usable_cores()


def usable_cores() -> int:
    """Cores that this process may use; taskset and containers can limit them."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def set_threads(threads: int) -> int:
    """Sets and returns the number of CPU threads (0: one per core that this process may use) for threads without their
    own."""
    _Threads.count = thread_count(threads)
    own_threads(_Threads.count)
    return _Threads.count


def own_threads(threads: int) -> None:
    """Sets this thread's count, regardless of `set_threads`."""
    _threads.count = threads
    tell_torch()


def tell_torch() -> None:
    """Passes this thread's count to torch, if loaded: for this thread, and new ones without their own."""
    if "torch" in sys.modules:
        import torch

        # At its first read, torch sets a thread's count to the one last set by any thread. Reading it now prevents that
        # later.
        torch.get_num_threads()
        torch.set_num_threads(threads_here())


@contextmanager
def using_threads(threads: int) -> Iterator[None]:
    """`own_threads` for the block (0: one per usable core)."""
    before = threads_here()
    own_threads(thread_count(threads))
    try:
        yield
    finally:
        own_threads(before)


def threads_here() -> int:
    """This thread's thread count."""
    return _threads.count or usable_cores()


class _SingleThreadedBlas:
    """Limits BLAS to one thread, in the whole process, while any thread is inside: `over_threads` divides NumPy's
    products."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0

    @functools.cached_property
    def _controller(self) -> ThreadpoolController:
        return ThreadpoolController()  # scans libraries: some milliseconds

    @contextmanager
    def __call__(self) -> Iterator[None]:
        with self._lock:
            if not self._inside:
                self._take_turn()
                self._limit = self._controller.limit(limits=1, user_api="blas")
            self._inside += 1
        try:
            yield
        finally:
            with self._lock:
                self._inside -= 1
                if not self._inside:
                    self._restore()

    def leave(self) -> None:
        """For a forked child, in which no thread is inside."""
        self._lock = threading.Lock()
        if self._inside:
            self._inside = 0
            self._restore()

    def _restore(self) -> None:
        self._take_turn()
        self._limit.restore_original_limits()
        self._take_turn()

    def _take_turn(self) -> None:
        """Since threadpoolctl 3.8 only the controlling thread can change the count; this releases it."""
        for library in self._controller.lib_controllers:
            if hasattr(library, "clear_controlling_thread"):
                library.clear_controlling_thread(force=True)


single_threaded_blas = _SingleThreadedBlas()


def over_threads(do: Callable[[Item], Result], items: Sequence[Item], pool: str = "kernels") -> list[Result]:
    """`do` of each item, in order; faster if `do` releases the interpreter's lock.

    A pool serves items in order of arrival: short work that must not wait needs its own pool. Its threads have the
    caller's priority.
    """
    threads = threads_here()
    if threads == 1 or len(items) < 2:
        return [do(item) for item in items]
    return list(_pool(threads, pool, _priority()).map(do, items))


def parts(count: int) -> list[slice]:
    """Splits `count` items into a few parts per thread, so that slow parts even out."""
    threads = threads_here()
    return split(count, 1 if threads == 1 else min(count, 4 * threads))


def even_parts(count: int, most: int) -> list[slice]:
    """Splits `count` items into one part per thread, at most `most`."""
    return split(count, max(1, min(threads_here(), most)))


def split(count: int, number: int) -> list[slice]:
    """Splits `count` items into `number` nearly equal parts."""
    return [slice(count * part // number, count * (part + 1) // number) for part in range(number)]


def _priority() -> int:
    """This thread's niceness, inherited by threads that it starts."""
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) if sys.platform == "linux" else 0


@functools.cache
def _pool(threads: int, name: str, priority: int) -> ThreadPoolExecutor:
    """`priority`: the callers', which the pool's threads inherit."""
    # A pool's thread must not split its work and wait for the others.
    return ThreadPoolExecutor(
        threads, thread_name_prefix=f"{name}-{priority}", initializer=setattr, initargs=(_threads, "count", 1)
    )


# A forked child lacks the pool's threads and would wait forever.
os.register_at_fork(after_in_child=_pool.cache_clear)
os.register_at_fork(after_in_child=single_threaded_blas.leave)
