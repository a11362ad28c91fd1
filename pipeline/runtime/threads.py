"""How many threads torch's operations use, and compiled loops on as many. Importing it needs no torch."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def thread_count(threads: int) -> int:
    """What the setting `run.threads` means: 0 is one per core that this process may run on."""
    return threads or usable_cores()


def usable_cores() -> int:
    """The cores that this process may run on: fewer than the machine's under taskset or in a container's CPU set."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def set_threads(threads: int) -> int:
    """Sets how many threads the CPU networks use (0: one per core that this process may run on), and returns it."""
    count = thread_count(threads)
    own_threads(count)
    return count


def own_threads(threads: int) -> None:
    """Sets how many threads torch's operations on this thread use, whatever other threads set later.

    When a thread first needs the number, torch gives it the one that any thread set last. Asking for it here makes that
    happen now, so that it cannot replace this one later.
    """
    import torch

    torch_threads()
    torch.set_num_threads(threads)


def torch_threads() -> int:
    """How many threads torch's operations on this thread use."""
    import torch

    return torch.get_num_threads()


def over_threads(do: Callable[[Item], Result], items: Sequence[Item], pool: str = "kernels") -> list[Result]:
    """`do` of each item, in the order of the items; faster where `do` releases the interpreter's lock.

    Each pool serves its items in the order in which they come: short work that must not wait for long work has its own.
    """
    threads = torch_threads()
    if threads == 1 or len(items) < 2:
        return [do(item) for item in items]
    return list(_pool(threads, pool).map(do, items))


def parts(count: int) -> list[slice]:
    """`count` items in a few parts for every thread, so that none waits long for a slow one."""
    threads = torch_threads()
    return _split(count, 1 if threads == 1 else min(count, 4 * threads))


def even_parts(count: int, most: int) -> list[slice]:
    """`count` items in a part for every thread, but in no more than `most` parts."""
    return _split(count, max(1, min(torch_threads(), most)))


def _split(count: int, number: int) -> list[slice]:
    return [slice(count * part // number, count * (part + 1) // number) for part in range(number)]


@functools.cache
def _pool(threads: int, name: str) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix=name)


# A forked child has none of the threads, and would wait for them forever.
os.register_at_fork(after_in_child=_pool.cache_clear)
