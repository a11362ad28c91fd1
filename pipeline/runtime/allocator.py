"""Allocator settings that keep a long run's memory from growing.

By default glibc gives threads up to eight heaps per core, allocates blocks of up to 32 MB there once one was freed, and
returns a heap's end only once 64 MB are free. A batch's arrays are such blocks and its threads come and go, so each
heap grows to its largest batch (`scripts/bench/bench_memory.py`). Arrow's own allocator would keep memory per thread.
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

# Larger blocks return to the kernel when freed. A smaller limit would cost page faults: a network's layers have a few
# MB.
MAPPED_BYTES: Final = 16 * 2**20
_ARROW_POOL: Final = "ARROW_DEFAULT_MEMORY_POOL"  # read by Arrow when it is loaded
_KEPT_BYTES: Final = 2 * MAPPED_BYTES  # free at the end of a heap


def configure_allocator() -> bool:
    """Limits the process to one heap per core without large blocks, shared with Arrow.

    Call it before threads start: existing heaps stay. Returns False, without changes, if the C library lacks the
    settings.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    settings = {_ARENA_MAX: max(2, os.cpu_count() or 1), _MMAP_THRESHOLD: MAPPED_BYTES, _TRIM_THRESHOLD: _KEPT_BYTES}
    taken = [mallopt(name, value) for name, value in settings.items()]
    if not all(taken):
        return False
    if "pyarrow" not in sys.modules:  # `--help` need not wait for it to load
        os.environ.setdefault(_ARROW_POOL, "system")
    elif _ARROW_POOL not in os.environ:
        arrow = sys.modules["pyarrow"]
        arrow.set_memory_pool(arrow.system_memory_pool())
    return True
