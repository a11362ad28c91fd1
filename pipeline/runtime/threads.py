"""How many threads networks, compiled loops and matrix products use. Importing it needs no torch."""

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
    """A thread's number; the attribute of the class is that of threads that have none of their own."""

    count: int | None = None  # one per core that this process may run on


_threads = _Threads()


def thread_count(threads: int) -> int:
    """What the setting `run.threads` means: 0 is one per core that this process may run on."""
    return threads or usable_cores()


def usable_cores() -> int:
    """The cores that this process may run on: fewer than the machine's under taskset or in a container's CPU set."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def set_threads(threads: int) -> int:
    """Sets how many threads the CPU works with (0: one per core that this process may run on), but for threads with a
    number of their own, and returns it."""
    _Threads.count = thread_count(threads)
    own_threads(_Threads.count)
    return _Threads.count


def own_threads(threads: int) -> None:
    """Sets how many threads work for this thread, whatever `set_threads` sets later."""
    _threads.count = threads
    tell_torch()


def tell_torch() -> None:
    """Gives torch, if it is loaded, this thread's number: for this thread, and for later ones that are given none."""
    if "torch" in sys.modules:
        import torch

        # When a thread first needs the number, torch gives it the one that any thread set last. Asking for it here
        # makes that happen now, so that it cannot replace this one later.
        torch.get_num_threads()
        torch.set_num_threads(threads_here())


@contextmanager
def using_threads(threads: int) -> Iterator[None]:
    """`own_threads` for the block (0: one per core that this process may run on)."""
    before = threads_here()
    own_threads(thread_count(threads))
    try:
        yield
    finally:
        own_threads(before)


def threads_here() -> int:
    """How many threads work for this thread."""
    return _threads.count or usable_cores()


class _SingleThreadedBlas:
    """NumPy's matrix products on the thread that asks for them, while any thread is inside: they divide the work among
    themselves (`over_threads`). BLAS has one number for the whole process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0

    @functools.cached_property
    def _controller(self) -> ThreadpoolController:
        return ThreadpoolController()  # looks through the loaded libraries: some milliseconds

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
        """In a forked child no thread is inside."""
        self._lock = threading.Lock()
        if self._inside:
            self._inside = 0
            self._restore()

    def _restore(self) -> None:
        self._take_turn()
        self._limit.restore_original_limits()
        self._take_turn()

    def _take_turn(self) -> None:
        """From threadpoolctl 3.8 on, one thread sets the number and those of others do nothing until it is told so."""
        for library in self._controller.lib_controllers:
            if hasattr(library, "clear_controlling_thread"):
                library.clear_controlling_thread(force=True)


single_threaded_blas = _SingleThreadedBlas()


def over_threads(do: Callable[[Item], Result], items: Sequence[Item], pool: str = "kernels") -> list[Result]:
    """`do` of each item, in the order of the items; faster where `do` releases the interpreter's lock.

    Each pool serves its items in the order in which they come: short work that must not wait for long work has its own.
    Its threads have the priority of the thread that asks.
    """
    threads = threads_here()
    if threads == 1 or len(items) < 2:
        return [do(item) for item in items]
    return list(_pool(threads, pool, _priority()).map(do, items))


def parts(count: int) -> list[slice]:
    """`count` items in a few parts for every thread, so that none waits long for a slow one."""
    threads = threads_here()
    return split(count, 1 if threads == 1 else min(count, 4 * threads))


def even_parts(count: int, most: int) -> list[slice]:
    """`count` items in a part for every thread, but in no more than `most` parts."""
    return split(count, max(1, min(threads_here(), most)))


def split(count: int, number: int) -> list[slice]:
    """`count` items in `number` parts of nearly the same size."""
    return [slice(count * part // number, count * (part + 1) // number) for part in range(number)]


def _priority() -> int:
    """The niceness of this thread, which the threads that it starts inherit."""
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) if sys.platform == "linux" else 0


@functools.cache
def _pool(threads: int, name: str, priority: int) -> ThreadPoolExecutor:
    """`priority`: of the threads that ask it. The pool starts its own when they ask first."""
    # A thread of a pool works alone: it must not wait for the others.
    return ThreadPoolExecutor(
        threads, thread_name_prefix=f"{name}-{priority}", initializer=setattr, initargs=(_threads, "count", 1)
    )


# A forked child has none of the threads, and would wait for them forever.
os.register_at_fork(after_in_child=_pool.cache_clear)
os.register_at_fork(after_in_child=single_threaded_blas.leave)
