"""How the C library keeps freed memory: so that a long run's memory stays where the work needs it.

By default glibc gives new threads heaps of their own, up to eight per core. Once a block of up to 32 MB was freed, it
takes further such blocks from the heaps, and it returns the end of a heap only when as much as 64 MB is free there. The
pixels, tables and products of a batch are such blocks, and the threads that make them come and go: one heap after the
other grows to the largest batch that it ever served, so the same photos need more memory each time
(`scripts/bench/bench_memory.py`). Arrow has an allocator of its own, which keeps for each thread what that thread once
needed; here it uses the C library's.
"""

from __future__ import annotations

import ctypes
import os
import sys
from typing import Final

# malloc.h
_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3
_ARENA_MAX: Final = -8

# Blocks from this size on are the kernel's again as soon as they are freed. Smaller ones would cost page faults: a
# network's layers have a few MB.
MAPPED_BYTES: Final = 16 * 2**20
_ARROW_POOL: Final = "ARROW_DEFAULT_MEMORY_POOL"  # which Arrow reads when it is loaded
_KEPT_BYTES: Final = 2 * MAPPED_BYTES  # free at the end of a heap


def settle_allocator() -> bool:
    """Sets one heap per core for the whole process, without large blocks, and Arrow's tables in the same heaps.

    Call it before the process starts threads: existing heaps stay. Returns False, and changes nothing, where the C
    library has no such settings.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    settings = {_ARENA_MAX: max(2, os.cpu_count() or 1), _MMAP_THRESHOLD: MAPPED_BYTES, _TRIM_THRESHOLD: _KEPT_BYTES}
    taken = [mallopt(name, value) for name, value in settings.items()]
    if not all(taken):
        return False
    if "pyarrow" not in sys.modules:  # most commands need it, but `--help` need not wait for it
        os.environ.setdefault(_ARROW_POOL, "system")
    elif _ARROW_POOL not in os.environ:
        arrow = sys.modules["pyarrow"]
        arrow.set_memory_pool(arrow.system_memory_pool())
    return True
