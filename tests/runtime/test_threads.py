"""Loops on several threads: all is done, in order, in forked children too."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from threadpoolctl import threadpool_info, threadpool_limits

from pipeline.runtime.threads import (
    _Threads,
    over_threads,
    own_threads,
    parts,
    set_threads,
    single_threaded_blas,
    threads_here,
    using_threads,
)


@pytest.fixture(params=[1, 3])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    with using_threads(request.param):
        yield request.param


def test_results_come_in_the_order_of_the_items(threads: int) -> None:
    assert over_threads(lambda n: n * n, range(50)) == [n * n for n in range(50)]
    assert over_threads(lambda n: n, []) == []


def test_as_many_threads_as_were_set(threads: int) -> None:
    together = threading.Barrier(threads, timeout=30)
    over_threads(lambda _: together.wait(), range(threads))
    names = set(over_threads(lambda _: threading.current_thread().name, range(9)))
    assert len(names) <= threads


def test_a_thread_of_the_pool_works_alone(threads: int) -> None:
    """It would wait for itself, with all others, where each item has items of its own."""
    done = over_threads(lambda n: over_threads(lambda m: (n, m), range(4)), range(8))
    assert done == [[(n, m) for m in range(4)] for n in range(8)]


@pytest.mark.skipif(sys.platform != "linux", reason="priorities are those of processes")
def test_threads_of_a_pool_have_the_priority_of_the_thread_that_asks() -> None:
    def priorities(niceness: int) -> set[int]:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), niceness)
        with using_threads(2):
            return set(over_threads(lambda _: os.getpriority(os.PRIO_PROCESS, threading.get_native_id()), range(9)))

    usual = os.getpriority(os.PRIO_PROCESS, 0)
    for niceness in (usual + 3, usual, usual + 3):
        with ThreadPoolExecutor(1) as own:
            assert own.submit(priorities, niceness).result() == {niceness}


def test_a_thread_has_its_own_number_or_that_of_the_process() -> None:
    seen: dict[str, int] = {}

    def look(name: str, own: int) -> None:
        if own:
            own_threads(own)
        seen[name] = threads_here()

    before = _Threads.count
    try:
        with using_threads(2):
            set_threads(3)
            for name, own in (("process", 0), ("own", 5)):
                thread = threading.Thread(target=look, args=(name, own))
                thread.start()
                thread.join()
            assert (seen, threads_here(), torch.get_num_threads()) == ({"process": 3, "own": 5}, 3, 3)
    finally:
        _Threads.count = before


def test_matrix_products_run_alone_while_any_thread_asks_for_that() -> None:
    def blas_threads() -> set[int]:
        """Of NumPy's library; others may be loaded by now."""
        numpys = {pool.filepath for pool in single_threaded_blas._controller.select(user_api="blas").lib_controllers}
        return {pool["num_threads"] for pool in threadpool_info() if pool["filepath"] in numpys}

    before = blas_threads()
    with threadpool_limits(limits=2, user_api="blas"):
        with single_threaded_blas():
            with single_threaded_blas():
                assert blas_threads() == {1}
            assert blas_threads() == {1}
        assert blas_threads() == {2}
        with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as other:  # entered by one thread, left by another
            for _ in range(2):
                block = single_threaded_blas()
                one.submit(block.__enter__).result()
                assert blas_threads() == {1}
                other.submit(block.__exit__, None, None, None).result()
                assert blas_threads() == {2}
    assert blas_threads() == before


def test_a_pool_waits_for_no_work_of_another() -> None:
    """A server's search does not wait for the detection of a batch."""
    begun, end = threading.Event(), threading.Event()

    def detect() -> None:
        own_threads(2)
        over_threads(lambda _: begun.set() or end.wait(60), range(8))

    long = threading.Thread(target=detect)
    long.start()
    try:
        assert begun.wait(60)
        with using_threads(2):
            assert over_threads(lambda n: n, range(8), pool="search") == list(range(8))
        assert long.is_alive()
    finally:
        end.set()
        long.join()


@pytest.mark.parametrize("count", [0, 1, 2, 11, 1000])
def test_parts_cover_all_once(count: int, threads: int) -> None:
    covered = [i for part in parts(count) for i in range(count)[part]]
    assert covered == list(range(count))
    assert len(parts(count)) <= 4 * threads


def test_an_error_in_a_thread_is_raised(threads: int) -> None:
    with pytest.raises(ZeroDivisionError):
        over_threads(lambda n: 1 // n, [1, 2, 0, 3])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_child_has_threads_of_its_own() -> None:
    code = (
        "import os, warnings; warnings.simplefilter('ignore')\n"
        "import numpy\n"
        "from pipeline.runtime.threads import over_threads, set_threads, single_threaded_blas; set_threads(2)\n"
        "def work(): return over_threads(lambda n: n + 1, [1, 2, 3])\n"
        "assert work() == [2, 3, 4]\n"
        "with single_threaded_blas():\n"
        "    child = os.fork()\n"
        "    if child == 0: os._exit(0 if work() == [2, 3, 4] and single_threaded_blas._inside == 0 else 1)\n"
        "assert os.waitpid(child, 0)[1] == 0\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
