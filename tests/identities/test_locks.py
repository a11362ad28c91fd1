"""Which posts may commit into a directory at the same time, and who waits for whom."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pipeline.identities.locks import DirectoryLock, Footprint
from pipeline.matching.calibration import Calibration
from pipeline.matching.match import Matcher
from tests.identities.planted import until

MATCHER = Matcher(Calibration(), 0.54)
WAIT_S = 10.0
A_MOMENT_S = 0.05


def footprint(person: str) -> Footprint:
    nothing = np.empty((0, 4), np.float32)
    return Footprint(frozenset({person}), frozenset(), frozenset(), nothing, [], MATCHER)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as made:
        yield made


class Post:
    """A post on another thread, which commits until `end`."""

    def __init__(self, lock: DirectoryLock, person: str, refresh: Callable[[], None] = lambda: None) -> None:
        self.tries = 0
        self.committing, self.finish, self.done = threading.Event(), threading.Event(), threading.Event()
        self._work = (lock, person, refresh)
        threading.Thread(target=self._post, daemon=True).start()

    def _post(self) -> None:
        lock, person, refresh = self._work
        with lock.shared(refresh) as shared:
            self.tries = 1
            while not shared.register(footprint(person)):
                self.tries += 1
            with shared.released():
                self.committing.set()
                self.finish.wait(WAIT_S)
        self.done.set()

    def end(self) -> None:
        self.finish.set()
        assert self.done.wait(WAIT_S)


def test_posts_that_do_not_touch_commit_at_the_same_time() -> None:
    lock = DirectoryLock()
    posts = [Post(lock, name) for name in "abc"]
    assert all(post.committing.wait(WAIT_S) for post in posts)
    for post in posts:
        post.end()
    assert lock.under_way == []


def test_a_conflicting_post_decides_again_when_the_other_is_in() -> None:
    lock = DirectoryLock()
    refreshed: list[bool] = []
    first = Post(lock, "a")
    assert first.committing.wait(WAIT_S)
    second = Post(lock, "a", lambda: refreshed.append(first.finish.is_set()))
    until(lambda: lock.waiting_alone == 1)
    assert not second.committing.is_set()
    first.end()
    assert second.committing.wait(WAIT_S)
    assert second.tries == 2
    assert (refreshed[0], refreshed[-1]) == (False, True), "looked after before each decision"
    second.end()


def test_being_alone_waits_for_those_under_way_and_keeps_others_out(pool: ThreadPoolExecutor) -> None:
    lock = DirectoryLock()
    first = Post(lock, "a")
    assert first.committing.wait(WAIT_S)
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


def test_a_post_that_fails_leaves_no_footprint() -> None:
    lock = DirectoryLock()

    def fail() -> None:
        with lock.shared(lambda: None) as shared:
            assert shared.register(footprint("a"))
            with shared.released():
                raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    with lock.alone():
        assert lock.under_way == []


def test_who_conflicts_waits_for_those_under_way_and_goes_before_newcomers() -> None:
    lock = DirectoryLock()
    first = Post(lock, "a")
    assert first.committing.wait(WAIT_S)
    second = Post(lock, "a")
    until(lambda: lock.waiting_alone == 1)
    newcomer = Post(lock, "b")
    assert not newcomer.committing.wait(A_MOMENT_S), "or a footprint of many persons might never get in"
    first.end()
    assert second.committing.wait(WAIT_S)
    assert newcomer.committing.wait(WAIT_S), "beside the second, not after it"
    second.end()
    newcomer.end()


def test_many_who_conflict_decide_at_most_twice_each() -> None:
    lock = DirectoryLock()
    first = Post(lock, "a")
    assert first.committing.wait(WAIT_S)
    same = [Post(lock, "a") for _ in range(12)]
    for post in [first, *same]:
        post.finish.set()
    assert all(post.done.wait(WAIT_S) for post in same)
    assert max(post.tries for post in same) <= 2


# At distance 0.6 of the first, and sqrt(2) of the second.
FIRST, NEAR_FIRST, SECOND = np.array([[1, 0, 0], [0.82, 0.57236, 0], [0, 0, 1]], np.float32)


def of_post(*faces: np.ndarray, new: list[int], threshold: float = 0.54, **more: Any) -> Footprint:
    matcher, none = Matcher(Calibration(), threshold), frozenset[str]()
    return replace(Footprint(none, none, none, np.array(faces, np.float32), new, matcher), **more)


def conflict(a: Footprint, b: Footprint) -> bool:
    assert a.conflicts(b) == b.conflicts(a)
    return a.conflicts(b)


def test_new_faces_of_two_people_don_t_conflict() -> None:
    assert not conflict(of_post(FIRST, new=[0]), of_post(SECOND, new=[0]))


def test_a_face_that_would_match_the_other_s_new_reference_conflicts() -> None:
    assert conflict(of_post(FIRST, new=[0]), of_post(NEAR_FIRST, new=[0]))
    assert conflict(of_post(FIRST, new=[0]), of_post(SECOND, NEAR_FIRST, new=[0])), "any face, not only the new one"
    assert not conflict(of_post(FIRST, new=[]), of_post(NEAR_FIRST, new=[])), "nobody's reference changes"


def test_each_post_sees_the_other_at_its_own_threshold() -> None:
    strict = of_post(FIRST, new=[0], threshold=0.3)
    assert not conflict(strict, of_post(NEAR_FIRST, new=[0], threshold=0.3))
    assert conflict(strict, of_post(NEAR_FIRST, new=[0], threshold=0.54))


def test_of_one_image_a_new_reference_is_identical_at_any_threshold() -> None:
    image = {"image_hashes": frozenset({"bytes", "pixels"})}
    copy = {"image_hashes": frozenset({"other bytes", "pixels"})}
    assert conflict(of_post(FIRST, new=[0], threshold=0, **image), of_post(FIRST, new=[0], threshold=0, **copy))


@pytest.mark.parametrize("what", ["person_ids", "external_ids"])
def test_the_same_person_or_external_id_conflicts(what: str) -> None:
    one, other = {what: frozenset({"x", "y"})}, {what: frozenset({"y", "z"})}
    assert conflict(of_post(FIRST, new=[], **one), of_post(SECOND, new=[], **other))
    assert not conflict(of_post(FIRST, new=[], **one), of_post(SECOND, new=[], **{what: frozenset({"z"})}))
