"""Assigns shards to workers: in order, within a window, and again if a worker died or was too slow."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from statistics import median
from typing import Final

import pyarrow as pa

from pipeline.errors import ShardFailed

MOST_FAILURES: Final = 3  # of one shard
# A shard is given to a second worker, which has nothing else to do, once it takes so many times as long as others, and
# at least so many seconds.
_STRAGGLES: Final = 3.0
_STRAGGLES_S: Final = 10.0
_RECENT: Final = 50  # shards whose time is usual


@dataclass(eq=False)
class Shard:
    """A shard that is not taken yet."""

    number: int
    manifest: pa.Table  # its rows
    done: bool = False  # it lies in the shard folder
    told: bool = False  # as done, for progress
    workers: dict[str, float] = field(default_factory=dict)  # that have it, and since when
    failures: list[str] = field(default_factory=list)
    maker: str | None = None  # the worker that finished it last


class Assignments:
    """The shards that were pulled from `shards` and are not taken yet: at most `window`. That bounds the size of the
    shard folder, however slow one shard is."""

    def __init__(self, shards: Iterator[Shard], window: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._shards = shards
        self.window = window
        self._clock = clock
        self._open: dict[int, Shard] = {}  # in the order of the manifest
        self._seconds: deque[float] = deque(maxlen=_RECENT)

    def first(self) -> Shard | None:
        """The shard that is to be taken next; None: there is none left."""
        if not self._open:
            self._pull()
        return next(iter(self._open.values()), None)

    def give(self, worker: str, *, alone: bool = True) -> Shard | None:
        """Assigns the next shard to a worker; None if there is none for it. A worker that left an unusable file of a
        shard does not get this shard again, unless it is `alone`."""
        shard = self._waiting_for(worker, alone=alone) or self._straggler(worker)
        if shard is None:
            return None
        shard.workers[worker] = self._clock()
        return shard

    def in_hand(self, worker: str) -> list[Shard]:
        """The shards of a worker, in the order in which it got them."""
        found = [shard for shard in self._open.values() if worker in shard.workers]
        return sorted(found, key=lambda shard: shard.workers[worker])

    def finished(self, worker: str, number: int) -> int:
        """A worker left a shard, or found it left by another. Returns the number of rows that this completes."""
        shard = self._open.get(number)
        if shard is None or worker not in shard.workers:
            return 0  # of a second worker, and taken already
        self._seconds.append(self._clock() - shard.workers.pop(worker))
        shard.done, shard.maker = True, worker
        rows, shard.told = 0 if shard.told else len(shard.manifest), True
        return rows

    def lost(self, worker: str, reason: str) -> None:
        """A worker ended: its shards wait for another. Raises ShardFailed if the shard in progress has failed too
        often: one of its photos may crash workers."""
        in_hand = self.in_hand(worker)
        for shard in in_hand:
            del shard.workers[worker]
        if in_hand and not in_hand[0].done:
            self._failed(in_hand[0], reason)

    def made_again(self, shard: Shard, reason: str) -> None:
        """What was left of a shard cannot be used. Raises ShardFailed after the third time."""
        shard.done = False
        self._failed(shard, reason)

    def taken(self, shard: Shard) -> None:
        """The shard is in the store. A second worker may still work on it."""
        del self._open[shard.number]

    def _failed(self, shard: Shard, reason: str) -> None:
        shard.failures.append(reason)
        if len(shard.failures) >= MOST_FAILURES:
            raise ShardFailed(shard=shard.number, times=len(shard.failures), detail=reason)

    def _pull(self) -> bool:
        """Opens one more shard; False: there is none."""
        shard = next(self._shards, None)
        if shard is not None:
            self._open[shard.number] = shard
        return shard is not None

    def _waiting_for(self, worker: str, *, alone: bool) -> Shard | None:
        """The first shard without a worker that may go to this one. Pulls until there is one, or the window is full."""
        while True:
            for shard in self._open.values():
                if not shard.done and not shard.workers and (alone or shard.maker != worker):
                    return shard
            if len(self._open) >= self.window or not self._pull():
                return None

    def _straggler(self, worker: str) -> Shard | None:
        if not self._seconds or self.in_hand(worker):
            return None
        limit = max(_STRAGGLES_S, _STRAGGLES * median(self._seconds))
        now = self._clock()
        for shard in self._open.values():
            if not shard.done and len(shard.workers) == 1 and now - min(shard.workers.values()) > limit:
                return shard
        return None
