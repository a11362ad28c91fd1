"""What the C library does with freed memory, seen from processes of their own."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys

import pytest
from click.testing import CliRunner

from pipeline.cli import main

glibc = pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="the C library has no mallopt")

_PRELUDE = """
import ctypes, threading
from pipeline.runtime.allocator import MAPPED_BYTES, configure_allocator
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
"""
_HEAPS = """
threads, places = 8 * 4 * {cores}, set()
barrier = threading.Barrier(threads)
def allocate():
    barrier.wait()
    places.add(libc.malloc(1000) >> 26)  # a thread's heap is an aligned piece of 64 MB of addresses
    barrier.wait()
alive = [threading.Thread(target=allocate) for _ in range(threads)]
[thread.start() for thread in alive]
[thread.join() for thread in alive]
print(len(places))
"""
_MAPPED = """
mapped = []
for _ in range(3):
    block = libc.malloc(MAPPED_BYTES)
    mapped.append(block % 4096 == 16)  # a block of its own begins a page, behind its header
    libc.free(block)
print(mapped.count(True))
"""


def _printed(code: str, settled: bool) -> int:
    call = "assert configure_allocator()" if settled else ""
    words = [sys.executable, "-c", "\n".join([_PRELUDE, call, code])]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    return int(subprocess.run(words, capture_output=True, text=True, check=True, env=environment).stdout)


@glibc
def test_threads_share_one_heap_per_core() -> None:
    cores = os.cpu_count() or 1
    code = _HEAPS.format(cores=cores)
    heaps = max(2, cores) + 1  # the first heap may lie in two such pieces
    assert _printed(code, settled=True) <= heaps < _printed(code, settled=False)


@glibc
def test_large_blocks_are_returned_as_soon_as_they_are_freed() -> None:
    assert _printed(_MAPPED, settled=True) == 3
    assert _printed(_MAPPED, settled=False) == 1  # after the first, glibc keeps such blocks


@pytest.mark.parametrize(
    ("own", "settled"),
    [
        ({}, 1),
        ({"MALLOC_ARENA_MAX": "4"}, 0),
        ({"GLIBC_TUNABLES": "glibc.malloc.arena_max=4"}, 0),
        ({"GLIBC_TUNABLES": "glibc.pthread.rseq=0"}, 1),
    ],
)
def test_what_the_user_set_stays(own: dict[str, str], settled: int, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[None] = []
    monkeypatch.setattr("pipeline.cli.configure_allocator", lambda: calls.append(None))
    for name in [*os.environ]:
        if name.startswith(("MALLOC_", "GLIBC_")):
            monkeypatch.delenv(name)
    assert CliRunner().invoke(main, ["--version"], env=own).exit_code == 0
    assert len(calls) == settled


@glibc
@pytest.mark.parametrize("before", ["import pyarrow; configure_allocator()", "configure_allocator(); import pyarrow"])
@pytest.mark.parametrize(("own", "expected"), [(None, "system"), ("mimalloc", "mimalloc")])
def test_arrow_uses_the_same_heaps_unless_the_user_said_otherwise(before: str, own: str | None, expected: str) -> None:
    imports = "from pipeline.runtime.allocator import configure_allocator"
    code = f"{imports}; {before}; print(pyarrow.default_memory_pool().backend_name)"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ARROW_")}
    environment |= {} if own is None else {"ARROW_DEFAULT_MEMORY_POOL": own}
    words = [sys.executable, "-c", code]
    done = subprocess.run(words, capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.strip() == expected
