"""Loops on several threads: all is done, in order, in forked children too."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest
import torch

from pipeline.runtime.threads import over_threads, parts


@pytest.fixture(params=[1, 3])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def test_results_come_in_the_order_of_the_items(threads: int) -> None:
    assert over_threads(lambda n: n * n, range(50)) == [n * n for n in range(50)]
    assert over_threads(lambda n: n, []) == []


def test_as_many_threads_as_torch_has(threads: int) -> None:
    together = threading.Barrier(threads, timeout=30)
    over_threads(lambda _: together.wait(), range(threads))
    names = set(over_threads(lambda _: threading.current_thread().name, range(9)))
    assert len(names) <= threads


def test_a_pool_waits_for_no_work_of_another() -> None:
    """A server's search does not wait for the detection of a batch."""
    before, end = torch.get_num_threads(), threading.Event()
    torch.set_num_threads(2)
    try:
        long = threading.Thread(target=over_threads, args=(lambda _: end.wait(60), range(8)))
        long.start()
        assert over_threads(lambda n: n, range(8), pool="search") == list(range(8))
        assert long.is_alive()
    finally:
        end.set()
        long.join()
        torch.set_num_threads(before)


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
        "import torch; torch.set_num_threads(2)\n"
        "from pipeline.runtime.threads import over_threads\n"
        "def work(): return over_threads(lambda n: n + 1, [1, 2, 3])\n"
        "assert work() == [2, 3, 4]\n"
        "child = os.fork()\n"
        "if child == 0: os._exit(0 if work() == [2, 3, 4] else 1)\n"
        "assert os.waitpid(child, 0)[1] == 0\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
