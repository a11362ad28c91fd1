"""The lock of a directory: a writer alone, or several posts at the same time that cannot affect each other.

A writer alone holds it from the decision until the commit is applied in memory. One of several posts holds it to
decide, registers a footprint (what the decision rests on, and what it changes), commits without the lock, and holds it
again to apply the commit. So posts into one directory can share a transaction.
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
class Footprint:
    """What a post rests on and what it changes."""

    person_ids: frozenset[str]  # of matched persons, and of changed records
    external_ids: frozenset[str]  # of changed records, where no two may have the same
    image_hashes: frozenset[str]
    faces: FloatArray  # [n, d] all faces of the image
    new_references: Sequence[int]  # which of them become references
    matcher: Matcher  # with the request's threshold

    def conflicts(self, other: Footprint) -> bool:
        """Whether one of the two posts might have been decided otherwise after the other, or both change the same.
        Errs on the side of yes."""
        return bool(
            self.person_ids & other.person_ids
            or self.external_ids & other.external_ids
            or self._may_match(other)
            or other._may_match(self)
        )

    def _may_match(self, other: Footprint) -> bool:
        """A face of this image might match a new reference of the other's."""
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
        self.under_way: list[Footprint] = []  # of posts that commit now
        self.waiting_alone = 0

    @contextmanager
    def alone(self) -> Iterator[None]:
        """The lock for the block, with no post under way."""
        with self.changed:
            self.wait_until_idle()
            yield

    @contextmanager
    def shared(self, refresh: Callable[[], None]) -> Iterator[PostLock]:
        """The lock for the block, except where it is `released`. Those who wait to be alone go first, or a stream of
        posts could keep them waiting for ever.

        `refresh` is called with the lock before each decision: it repairs the directory after another post failed.
        """
        with self.changed:
            self.changed.wait_for(lambda: not self.waiting_alone)
            shared = PostLock(self, refresh)
            try:
                refresh()
                yield shared
            finally:
                shared.end()

    def wait_until_idle(self) -> None:
        """Waits until no post is under way. The caller has the lock."""
        self.waiting_alone += 1
        try:
            self.changed.wait_for(lambda: not self.under_way)
        finally:
            self.waiting_alone -= 1
            self.changed.notify_all()  # newcomers, who go on when the caller releases the lock


class PostLock:
    """The lock as one of several posts has it: its thread holds it between the calls of these methods."""

    def __init__(self, lock: DirectoryLock, refresh: Callable[[], None]) -> None:
        self._lock = lock
        self._refresh = refresh
        self._footprint: Footprint | None = None

    def register(self, footprint: Footprint) -> bool:
        """Registers the footprint until the end. False: it conflicted with a post under way. Now none is, and the
        decision must be looked at again, once. Until then newcomers wait, or a footprint of many persons might never
        get in."""
        lock = self._lock
        if any(footprint.conflicts(other) for other in lock.under_way):
            lock.wait_until_idle()
            self._refresh()
            return False
        self._footprint = footprint
        lock.under_way.append(footprint)
        return True

    @contextmanager
    def released(self) -> Iterator[None]:
        """The block runs without the lock."""
        self._lock.changed.release()
        try:
            yield
        finally:
            self._lock.changed.acquire()

    def end(self) -> None:
        """Takes the footprint back. The thread still holds the lock."""
        if self._footprint is not None:
            self._lock.under_way = [other for other in self._lock.under_way if other is not self._footprint]
            self._footprint = None
        self._lock.changed.notify_all()
