"""Compiled loops on as many threads as torch's own operations use."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import TypeVar

import torch

Item = TypeVar("Item")
Result = TypeVar("Result")


def over_threads(do: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """`do` of each item, in the order of the items; it gains where `do` releases the interpreter's lock."""
    threads = torch.get_num_threads()
    if threads == 1 or len(items) < 2:
        return [do(item) for item in items]
    return list(_pool(threads).map(do, items))


def parts(count: int) -> list[slice]:
    """`count` things in a few parts for every thread, so that none waits long for a slow one."""
    threads = torch.get_num_threads()
    number = 1 if threads == 1 else min(count, 4 * threads)
    bounds = [count * part // number for part in range(number + 1)] if number else []
    return [slice(start, end) for start, end in pairwise(bounds)]


@functools.cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="kernels")


# A forked child has none of the threads, and would wait for them for ever.
os.register_at_fork(after_in_child=_pool.cache_clear)
