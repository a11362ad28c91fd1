"""Who may change a directory at the same time, and who waits for whom."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from pipeline.identities.claims import Claim
from pipeline.identities.turns import Turns
from pipeline.matching.match import Calibration, Matcher

MATCHER = Matcher(Calibration(), 0.54)
WAIT_S = 10.0
A_MOMENT_S = 0.05


def claim(person: str) -> Claim:
    nothing = np.empty((0, 4), np.float32)
    return Claim(frozenset({person}), frozenset(), frozenset(), nothing, [], MATCHER)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as made:
        yield made


def until(reached: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.001)


class Post:
    """A post on a thread of its own that commits until it is told that the commit is in."""

    def __init__(self, turns: Turns, person: str, refresh: Callable[[], None] = lambda: None) -> None:
        self.tries = 0
        self.committing, self.finish, self.done = threading.Event(), threading.Event(), threading.Event()
        self._work = (turns, person, refresh)
        threading.Thread(target=self._post, daemon=True).start()

    def _post(self) -> None:
        turns, person, refresh = self._work
        with turns.together(refresh) as turn:
            self.tries = 1
            while not turn.claim(claim(person)):
                self.tries += 1
            with turn.unlocked():
                self.committing.set()
                self.finish.wait(WAIT_S)
        self.done.set()

    def end(self) -> None:
        self.finish.set()
        assert self.done.wait(WAIT_S)


def test_posts_that_do_not_touch_commit_at_the_same_time() -> None:
    turns = Turns()
    posts = [Post(turns, name) for name in "abc"]
    assert all(post.committing.wait(WAIT_S) for post in posts)
    for post in posts:
        post.end()
    assert turns.under_way == []


def test_a_conflicting_post_decides_again_when_the_other_is_in() -> None:
    turns = Turns()
    refreshed: list[bool] = []
    first = Post(turns, "a")
    assert first.committing.wait(WAIT_S)
    second = Post(turns, "a", lambda: refreshed.append(first.finish.is_set()))
    until(lambda: turns.waiting_alone == 1)
    assert not second.committing.is_set()
    first.end()
    assert second.committing.wait(WAIT_S)
    assert second.tries == 2
    assert (refreshed[0], refreshed[-1]) == (False, True), "looked after before each decision"
    second.end()


def test_being_alone_waits_for_those_under_way_and_keeps_others_out(pool: ThreadPoolExecutor) -> None:
    turns = Turns()
    first = Post(turns, "a")
    assert first.committing.wait(WAIT_S)
    inside, leave = threading.Event(), threading.Event()

    def alone() -> None:
        with turns.alone():
            inside.set()
            leave.wait(WAIT_S)

    pool.submit(alone)
    until(lambda: turns.waiting_alone == 1)
    assert not inside.is_set()
    newcomer = Post(turns, "b")
    assert not newcomer.committing.wait(A_MOMENT_S), "it would keep the other waiting"
    first.finish.set()
    assert inside.wait(WAIT_S)
    assert not newcomer.committing.wait(A_MOMENT_S)
    leave.set()
    assert newcomer.committing.wait(WAIT_S)
    newcomer.end()


def test_a_turn_that_fails_leaves_no_claim() -> None:
    turns = Turns()

    def fail() -> None:
        with turns.together(lambda: None) as turn:
            assert turn.claim(claim("a"))
            with turn.unlocked():
                raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    with turns.alone():
        assert turns.under_way == []


def test_who_conflicts_waits_for_those_under_way_and_goes_before_newcomers() -> None:
    turns = Turns()
    first = Post(turns, "a")
    assert first.committing.wait(WAIT_S)
    second = Post(turns, "a")
    until(lambda: turns.waiting_alone == 1)
    newcomer = Post(turns, "b")
    assert not newcomer.committing.wait(A_MOMENT_S), "or a claim on many persons might never get in"
    first.end()
    assert second.committing.wait(WAIT_S)
    assert newcomer.committing.wait(WAIT_S), "beside the second, not after it"
    second.end()
    newcomer.end()


def test_many_who_conflict_decide_at_most_twice_each() -> None:
    turns = Turns()
    first = Post(turns, "a")
    assert first.committing.wait(WAIT_S)
    same = [Post(turns, "a") for _ in range(12)]
    for post in [first, *same]:
        post.finish.set()
    assert all(post.done.wait(WAIT_S) for post in same)
    assert max(post.tries for post in same) <= 2
