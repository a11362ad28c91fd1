"""Batches beside each other, or one alone."""

from __future__ import annotations

import threading

from pipeline.extraction.batches import DeviceMemory


def test_several_are_inside_beside_each_other() -> None:
    memory, everybody = DeviceMemory(), threading.Barrier(3)

    def visit() -> None:
        with memory.shared():
            everybody.wait(30)

    threads = [threading.Thread(target=visit) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not everybody.broken


def test_alone_waits_for_all_and_holds_newcomers_back() -> None:
    memory = DeviceMemory()
    order: list[str] = []
    leave = threading.Event()
    waits = threading.Event()

    def first() -> None:
        with memory.shared():
            assert leave.wait(30)
            order.append("first left")

    def alone() -> None:
        waits.set()
        with memory.alone():
            order.append("alone")

    def newcomer() -> None:
        with memory.shared():
            order.append("newcomer")

    threads = [threading.Thread(target=work) for work in (first, alone, newcomer)]
    threads[0].start()
    while not memory._users:
        pass
    threads[1].start()
    assert waits.wait(30)
    while not memory._waiting_alone:
        pass
    threads[2].start()
    threads[2].join(0.2)
    assert order == []
    leave.set()
    for thread in threads:
        thread.join(30)
    assert order == ["first left", "alone", "newcomer"]


def test_two_alone_are_alone_one_after_the_other() -> None:
    memory, inside, most = DeviceMemory(), 0, 0
    lock = threading.Lock()

    def work() -> None:
        nonlocal inside, most
        for _ in range(50):
            with memory.alone():
                with lock:
                    inside += 1
                    most = max(most, inside)
                with lock:
                    inside -= 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert most == 1


def test_who_fails_inside_has_left() -> None:
    memory = DeviceMemory()
    for enter in (memory.alone, memory.shared, memory.alone):
        try:
            with enter():
                raise ValueError
        except ValueError:
            pass
    with memory.alone():
        pass
