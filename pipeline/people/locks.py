"""The lock of a directory, held by one writer alone or shared by posts that cannot affect each other.

A writer alone holds it from the decision until the commit is applied in memory. A post holds it to decide and to apply,
but not for the commit, during which its read/write set is registered. So posts can share a transaction.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from pipeline.matching.match import Matcher
from pipeline.types import FloatArray


@dataclass(frozen=True, eq=False)
class ReadWriteSet:
    """The read/write set of a post."""

    person_ids: frozenset[str]  # matched persons and changed records
    external_ids: frozenset[str]  # of changed records, if they must be unique
    image_hashes: frozenset[str]
    faces: FloatArray  # [n, d] all faces of the image
    new_references: Sequence[int]  # indices of those that become references
    matcher: Matcher  # with the request's threshold

    def conflicts(self, other: ReadWriteSet) -> bool:
        """Whether one post's commit might change the other's decision, or both write the same. May err towards True."""
        return bool(
            self.person_ids & other.person_ids
            or self.external_ids & other.external_ids
            or self._may_match(other)
            or other._may_match(self)
        )

    def _may_match(self, other: ReadWriteSet) -> bool:
        """Whether a face of this image might match a new reference of the other."""
        if not other.new_references:
            return False
        if self.image_hashes & other.image_hashes:
            return True
        new = other.faces[list(other.new_references)]
        rows, columns = np.divmod(np.arange(len(self.faces) * len(new)), len(new))
        return bool(self.matcher.matches(self.matcher.distances(self.faces[rows], new[columns])).any())


class DirectoryLock:
    """The lock of one directory."""

    def __init__(self) -> None:
        self.changed = threading.Condition(threading.Lock())
        self.under_way: list[ReadWriteSet] = []  # of posts in progress
        self.waiting_alone = 0

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Holds the lock for the block, with no post in progress."""
        with self.changed:
            self.wait_until_idle()
            yield

    @contextmanager
    def shared(self, refresh: Callable[[], None]) -> Iterator[PostLock]:
        """Holds the lock for the block, except while `released`. Writers that wait to be alone go first, so that posts
        cannot starve them. `refresh`, called under the lock before each decision, repairs the directory after another
        post failed."""
        with self.changed:
            self.changed.wait_for(lambda: not self.waiting_alone)
            shared = PostLock(self, refresh)
            try:
                refresh()
                yield shared
            finally:
                shared.end()

    def wait_until_idle(self) -> None:
        """Waits until no post is in progress. The caller holds the lock."""
        self.waiting_alone += 1
        try:
            self.changed.wait_for(lambda: not self.under_way)
        finally:
            self.waiting_alone -= 1
            self.changed.notify_all()  # for waiting posts


class PostLock:
    """The lock shared by a post, whose thread holds it between calls of these methods."""

    def __init__(self, lock: DirectoryLock, refresh: Callable[[], None]) -> None:
        self._lock = lock
        self._refresh = refresh
        self._read_write_set: ReadWriteSet | None = None

    def register(self, read_write_set: ReadWriteSet) -> bool:
        """Registers the read/write set until `end`. Returns False if it conflicts with a post in progress, after
        waiting for all posts. Then the caller must validate its decision and register again, once; new posts wait, so
        that large sets do not starve."""
        lock = self._lock
        if any(read_write_set.conflicts(other) for other in lock.under_way):
            lock.wait_until_idle()
            self._refresh()
            return False
        self._read_write_set = read_write_set
        lock.under_way.append(read_write_set)
        return True

    @contextmanager
    def released(self) -> Iterator[None]:
        """Releases the lock for the block."""
        self._lock.changed.release()
        try:
            yield
        finally:
            self._lock.changed.acquire()

    def end(self) -> None:
        """Removes the read/write set. The caller holds the lock."""
        if self._read_write_set is not None:
            self._lock.under_way = [other for other in self._lock.under_way if other is not self._read_write_set]
            self._read_write_set = None
        self._lock.changed.notify_all()
