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
# An idle worker also gets a shard that has taken this many times as long as others, and at least this many seconds.
_STRAGGLES: Final = 3.0
_STRAGGLES_S: Final = 10.0
_RECENT: Final = 50  # shards that define the usual time


@dataclass(eq=False)
class Shard:
    """A shard that is not yet in the store."""

    number: int
    manifest: pa.Table  # its rows
    done: bool = False  # it is in the shard folder
    told: bool = False  # progress counted it as done
    workers: dict[str, float] = field(default_factory=dict)  # those working on it, and since when
    failures: list[str] = field(default_factory=list)
    maker: str | None = None  # the worker that last finished it


class Assignments:
    """The shards pulled from `shards` and not yet stored: at most `window`, which bounds the shard folder."""

    def __init__(self, shards: Iterator[Shard], window: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._shards = shards
        self.window = window
        self._clock = clock
        self._open: dict[int, Shard] = {}  # in manifest order
        self._seconds: deque[float] = deque(maxlen=_RECENT)

    def first(self) -> Shard | None:
        """Returns the next shard to store, None if none is left."""
        if not self._open:
            self._pull()
        return next(iter(self._open.values()), None)

    def give(self, worker: str, *, alone: bool = True) -> Shard | None:
        """Assigns the next shard; None if there is none. Unless it is `alone`, a worker does not get a shard again that
        it wrote unusably."""
        shard = self._waiting_for(worker, alone=alone) or self._straggler(worker)
        if shard is None:
            return None
        shard.workers[worker] = self._clock()
        return shard

    def in_hand(self, worker: str) -> list[Shard]:
        """Returns a worker's shards in the order of assignment."""
        found = [shard for shard in self._open.values() if worker in shard.workers]
        return sorted(found, key=lambda shard: shard.workers[worker])

    def finished(self, worker: str, number: int) -> int:
        """Records a shard written by a worker. Returns how many rows this completes."""
        shard = self._open.get(number)
        if shard is None or worker not in shard.workers:
            return 0  # a second worker's, already stored
        self._seconds.append(self._clock() - shard.workers.pop(worker))
        shard.done, shard.maker = True, worker
        rows, shard.told = 0 if shard.told else len(shard.manifest), True
        return rows

    def lost(self, worker: str, reason: str) -> None:
        """Frees the shards of a lost worker. Raises ShardFailed if the shard in progress has failed too often: one of
        its photos may crash workers."""
        in_hand = self.in_hand(worker)
        for shard in in_hand:
            del shard.workers[worker]
        if in_hand and not in_hand[0].done:
            self._failed(in_hand[0], reason)

    def made_again(self, shard: Shard, reason: str) -> None:
        """Discards an unusable result. Raises ShardFailed after the third failure."""
        shard.done = False
        self._failed(shard, reason)

    def taken(self, shard: Shard) -> None:
        """Removes a stored shard, on which a second worker may still be working."""
        del self._open[shard.number]

    def _failed(self, shard: Shard, reason: str) -> None:
        shard.failures.append(reason)
        if len(shard.failures) >= MOST_FAILURES:
            raise ShardFailed(shard=shard.number, times=len(shard.failures), detail=reason)

    def _pull(self) -> bool:
        """Opens one more shard; returns False if there is none."""
        shard = next(self._shards, None)
        if shard is not None:
            self._open[shard.number] = shard
        return shard is not None

    def _waiting_for(self, worker: str, *, alone: bool) -> Shard | None:
        """Returns the first free shard for this worker. Pulls until there is one, or the window is full."""
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
