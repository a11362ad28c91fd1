"""Which posts may commit into a directory at the same time, and who waits for whom."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pipeline.matching.calibration import Calibration
from pipeline.matching.match import Matcher
from pipeline.people.locks import DirectoryLock, ReadWriteSet
from tests.waiting import until

MATCHER = Matcher(Calibration(), 0.54)
WAIT_S = 10.0
A_MOMENT_S = 0.05


def read_write_set(person: str) -> ReadWriteSet:
    nothing = np.empty((0, 4), np.float32)
    return ReadWriteSet(frozenset({person}), frozenset(), frozenset(), nothing, [], MATCHER)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as made:
        yield made


class Post:
    """A post on another thread, which commits until `end`."""

    def __init__(self, lock: DirectoryLock, person: str, refresh: Callable[[], None] = lambda: None) -> None:
        self.tries = 0
        self.committing, self.finish, self.done = threading.Event(), threading.Event(), threading.Event()
        threading.Thread(target=self._post, args=(lock, person, refresh), daemon=True).start()

    def _post(self, lock: DirectoryLock, person: str, refresh: Callable[[], None]) -> None:
        with lock.shared(refresh) as shared:
            self.tries = 1
            while not shared.register(read_write_set(person)):
                self.tries += 1
            with shared.released():
                self.committing.set()
                self.finish.wait(WAIT_S)
        self.done.set()

    def end(self) -> None:
        self.finish.set()
        assert self.done.wait(WAIT_S)


@pytest.fixture
def lock() -> DirectoryLock:
    return DirectoryLock()


@pytest.fixture
def first(lock: DirectoryLock) -> Post:
    """A post about "a" that commits."""
    post = Post(lock, "a")
    assert post.committing.wait(WAIT_S)
    return post


def test_posts_that_do_not_touch_commit_at_the_same_time(lock: DirectoryLock) -> None:
    posts = [Post(lock, name) for name in "abc"]
    assert all(post.committing.wait(WAIT_S) for post in posts)
    for post in posts:
        post.end()
    assert lock.under_way == []


def test_a_conflicting_post_decides_again_when_the_other_is_in(lock: DirectoryLock, first: Post) -> None:
    refreshed: list[bool] = []
    second = Post(lock, "a", lambda: refreshed.append(first.finish.is_set()))
    until(lambda: lock.waiting_alone == 1)
    assert not second.committing.is_set()
    first.end()
    assert second.committing.wait(WAIT_S)
    assert second.tries == 2
    assert (refreshed[0], refreshed[-1]) == (False, True), "looked after before each decision"
    second.end()


def test_being_alone_waits_for_those_under_way_and_keeps_others_out(
    lock: DirectoryLock, first: Post, pool: ThreadPoolExecutor
) -> None:
    inside, leave = threading.Event(), threading.Event()

    def alone() -> None:
        with lock.alone():
            inside.set()
            leave.wait(WAIT_S)

    pool.submit(alone)
    until(lambda: lock.waiting_alone == 1)
    assert not inside.is_set()
    newcomer = Post(lock, "b")
    assert not newcomer.committing.wait(A_MOMENT_S), "it would keep the other waiting"
    first.finish.set()
    assert inside.wait(WAIT_S)
    assert not newcomer.committing.wait(A_MOMENT_S)
    leave.set()
    assert newcomer.committing.wait(WAIT_S)
    newcomer.end()


def test_a_post_that_fails_leaves_no_read_write_set(lock: DirectoryLock) -> None:
    def fail() -> None:
        with lock.shared(lambda: None) as shared:
            assert shared.register(read_write_set("a"))
            with shared.released():
                raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    with lock.alone():
        assert lock.under_way == []


def test_who_conflicts_waits_for_those_under_way_and_goes_before_newcomers(lock: DirectoryLock, first: Post) -> None:
    second = Post(lock, "a")
    until(lambda: lock.waiting_alone == 1)
    newcomer = Post(lock, "b")
    assert not newcomer.committing.wait(A_MOMENT_S), "or a read_write_set of many persons might never get in"
    first.end()
    assert second.committing.wait(WAIT_S)
    assert newcomer.committing.wait(WAIT_S), "beside the second, not after it"
    second.end()
    newcomer.end()


def test_many_who_conflict_decide_at_most_twice_each(lock: DirectoryLock, first: Post) -> None:
    same = [Post(lock, "a") for _ in range(12)]
    for post in [first, *same]:
        post.finish.set()
    assert all(post.done.wait(WAIT_S) for post in same)
    assert max(post.tries for post in same) <= 2


# At distance 0.6 of the first, and sqrt(2) of the second.
FIRST, NEAR_FIRST, SECOND = np.array([[1, 0, 0], [0.82, 0.57236, 0], [0, 0, 1]], np.float32)


def of_post(*faces: np.ndarray, new: Sequence[int] = (0,), threshold: float = 0.54, **more: Any) -> ReadWriteSet:
    matcher, none = Matcher(Calibration(), threshold), frozenset[str]()
    return replace(ReadWriteSet(none, none, none, np.array(faces, np.float32), new, matcher), **more)


BYTES, COPY = frozenset({"bytes", "pixels"}), frozenset({"other bytes", "pixels"})
CONFLICTS = {
    "two people": (of_post(FIRST), of_post(SECOND), False),
    "new reference": (of_post(FIRST), of_post(NEAR_FIRST), True),
    "any face, not only the new one": (of_post(FIRST), of_post(SECOND, NEAR_FIRST), True),
    "no reference changes": (of_post(FIRST, new=[]), of_post(NEAR_FIRST, new=[]), False),
    "both strict": (of_post(FIRST, threshold=0.3), of_post(NEAR_FIRST, threshold=0.3), False),
    "each at its own threshold": (of_post(FIRST, threshold=0.3), of_post(NEAR_FIRST, threshold=0.54), True),
    "one image at threshold 0": (
        of_post(FIRST, threshold=0, image_hashes=BYTES),
        of_post(FIRST, threshold=0, image_hashes=COPY),
        True,
    ),
}


@pytest.mark.parametrize(("one", "other", "expected"), CONFLICTS.values(), ids=CONFLICTS)
def test_who_conflicts(one: ReadWriteSet, other: ReadWriteSet, expected: bool) -> None:
    assert one.conflicts(other) == other.conflicts(one) == expected


@pytest.mark.parametrize("what", ["person_ids", "external_ids"])
def test_the_same_person_or_external_id_conflicts(what: str) -> None:
    one = of_post(FIRST, new=[], **{what: frozenset({"x", "y"})})
    for values, expected in (("yz", True), ("z", False)):
        other = of_post(SECOND, new=[], **{what: frozenset(values)})
        assert one.conflicts(other) == other.conflicts(one) == expected
