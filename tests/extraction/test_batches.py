"""Batches in several threads: results in order, and bounded work in progress."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch

from pipeline.extraction.batches import BatchWorkers
from pipeline.runtime.threads import own_threads, threads_here


def test_results_come_in_order_though_later_ones_finish_first() -> None:
    second = threading.Event()

    def work(batch: list[int]) -> None:
        if batch == [0]:
            assert second.wait(30)  # the other worker overtakes
        batch.append(threading.get_ident())
        second.set()

    with BatchWorkers(2, work) as workers:
        done = list(workers.in_order([k] for k in range(40)))
    assert [batch[0] for batch in done] == list(range(40))
    assert all(len(batch) == 2 for batch in done)
    assert done[0][1] != done[1][1]


@pytest.mark.parametrize("count", [1, 3])
def test_as_many_work_at_once_as_there_are_workers(count: int) -> None:
    everybody = threading.Barrier(count)
    with BatchWorkers(count, lambda _: everybody.wait(30)) as workers:
        assert list(workers.in_order(range(2 * count))) == list(range(2 * count))


def test_only_one_batch_waits() -> None:
    """Every batch that was taken holds the pixels of its images until it is done."""
    taken, finished, most = 0, 0, 0

    def batches() -> Iterator[int]:
        nonlocal taken, most
        for number in range(30):
            taken += 1
            most = max(most, taken - finished)
            yield number

    def work(_: int) -> None:
        nonlocal finished
        finished += 1

    with BatchWorkers(1, work) as workers:
        assert sum(1 for _ in workers.in_order(batches())) == 30
    assert 1 <= most <= 3  # one at work, one ready, and one that waits for room


def test_torch_threads_set_elsewhere_later_do_not_reach_a_worker() -> None:
    """The models are loaded, and torch's threads set, when a batch first needs them: workers may be there."""
    before, begun = threads_here(), threading.Event()
    seen: list[int] = []

    def batches() -> Iterator[bool]:
        yield False
        assert begun.wait(30)
        own_threads(3)
        yield True

    def work(computes: bool) -> None:
        if computes:
            seen.append(torch.get_num_threads())
        begun.set()

    try:
        with BatchWorkers(2, work) as workers:
            list(workers.in_order(batches()))
        assert (seen, torch.get_num_threads()) == ([1], 3)
    finally:
        own_threads(before)


def test_an_error_comes_in_its_place_and_ends_the_work() -> None:
    def work(batch: int) -> None:
        if batch == 2:
            raise ValueError("the third")

    done: list[int] = []
    with BatchWorkers(2, work) as workers, pytest.raises(ValueError, match="the third"):
        done.extend(workers.in_order(range(50)))
    assert done == [0, 1]
    assert not [t for t in threading.enumerate() if t.name.startswith("batch")]


@pytest.mark.parametrize(("workers", "threads"), [(1, 1), (2, 1), (2, 2), (1, 3)])
def test_each_worker_computes_on_its_own_threads(workers: int, threads: int) -> None:
    before = threads_here()
    own_threads(3)
    try:
        seen: set[int] = set()
        with BatchWorkers(workers, lambda _: seen.add(torch.get_num_threads()), threads) as pool:
            list(pool.in_order(range(8)))
        later: list[int] = []
        thread = threading.Thread(target=lambda: later.append(torch.get_num_threads()))
        thread.start()
        thread.join()
        assert (seen, later, torch.get_num_threads()) == ({threads}, [3], 3)
    finally:
        own_threads(before)
