"""Batches beside each other, or one alone."""

from __future__ import annotations

import threading

from pipeline.extraction.engine.device_memory import Room


def test_several_are_inside_beside_each_other() -> None:
    room, everybody = Room(), threading.Barrier(3)

    def visit() -> None:
        with room.beside_others():
            everybody.wait(30)

    threads = [threading.Thread(target=visit) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not everybody.broken


def test_alone_waits_for_all_and_holds_newcomers_back() -> None:
    room = Room()
    order: list[str] = []
    leave = threading.Event()
    waits = threading.Event()

    def first() -> None:
        with room.beside_others():
            assert leave.wait(30)
            order.append("first left")

    def alone() -> None:
        waits.set()
        with room.alone():
            order.append("alone")

    def newcomer() -> None:
        with room.beside_others():
            order.append("newcomer")

    threads = [threading.Thread(target=work) for work in (first, alone, newcomer)]
    threads[0].start()
    while not room._inside:
        pass
    threads[1].start()
    assert waits.wait(30)
    while not room._wanted_alone:
        pass
    threads[2].start()
    threads[2].join(0.2)
    assert order == []
    leave.set()
    for thread in threads:
        thread.join(30)
    assert order == ["first left", "alone", "newcomer"]


def test_two_alone_are_alone_one_after_the_other() -> None:
    room, inside, most = Room(), 0, 0
    lock = threading.Lock()

    def work() -> None:
        nonlocal inside, most
        for _ in range(50):
            with room.alone():
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
    room = Room()
    for enter in (room.alone, room.beside_others, room.alone):
        try:
            with enter():
                raise ValueError
        except ValueError:
            pass
    with room.alone():
        pass
