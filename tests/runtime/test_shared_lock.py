"""SharedLock: many share it, or one has it alone."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from pipeline.runtime.shared_lock import SharedLock


def test_several_threads_share_it() -> None:
    lock, everybody = SharedLock(), threading.Barrier(3)

    def visit(_: int) -> None:
        with lock.shared():
            everybody.wait(30)

    with ThreadPoolExecutor(3) as pool:
        assert len(list(pool.map(visit, range(3)))) == 3


def test_alone_waits_for_all_and_holds_newcomers_back() -> None:
    lock = SharedLock()
    order: list[str] = []
    leave = threading.Event()
    waits = threading.Event()

    def first() -> None:
        with lock.shared():
            assert leave.wait(30)
            order.append("first left")

    def alone() -> None:
        waits.set()
        with lock.alone():
            order.append("alone")

    def newcomer() -> None:
        with lock.shared():
            order.append("newcomer")

    threads = [threading.Thread(target=work) for work in (first, alone, newcomer)]
    threads[0].start()
    while not lock._users:
        pass
    threads[1].start()
    assert waits.wait(30)
    while not lock._door.locked():
        pass
    threads[2].start()
    threads[2].join(0.2)
    assert order == []
    leave.set()
    for thread in threads:
        thread.join(30)
    assert order == ["first left", "alone", "newcomer"]


def test_threads_are_alone_one_after_the_other() -> None:
    lock, inside, most = SharedLock(), 0, 0
    count = threading.Lock()

    def work(_: int) -> None:
        nonlocal inside, most
        with lock.alone():
            with count:
                inside += 1
                most = max(most, inside)
            with count:
                inside -= 1

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(200)))
    assert most == 1


def test_a_thread_that_fails_leaves_it() -> None:
    lock = SharedLock()
    for enter in (lock.alone, lock.shared, lock.alone):
        with suppress(ValueError), enter():
            raise ValueError
    with lock.alone():
        pass


def test_alone_waits_only_as_long_as_it_may() -> None:
    lock = SharedLock()
    with lock.shared(), pytest.raises(TimeoutError), lock.alone(timeout_s=0.05):
        raise AssertionError("it is shared")
    with lock.shared():
        pass
    with lock.alone(timeout_s=0.05):
        pass
