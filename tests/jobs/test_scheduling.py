"""Which worker gets which shard."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from pipeline.errors import ShardFailed
from pipeline.jobs.cluster.scheduling import Assignments, Shard

_ROWS = pa.table({"row": range(10)})


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def assignments(count: int, window: int, clock: Clock | None = None, there: tuple[int, ...] = ()) -> Assignments:
    shards = iter([Shard(number, _ROWS, done=number in there) for number in range(count)])
    return Assignments(shards, window, clock or Clock())


def given(to: Assignments, worker: str) -> int | None:
    shard = to.give(worker)
    return None if shard is None else shard.number


def taken(to: Assignments) -> int:
    shard = to.first()
    assert shard is not None
    assert shard.done
    to.taken(shard)
    return shard.number


def test_shards_are_given_in_order_and_only_a_window_of_them() -> None:
    to = assignments(5, window=3)
    assert [given(to, "a"), given(to, "b"), given(to, "a"), given(to, "b")] == [0, 1, 2, None]
    assert to.finished("b", 1) == 10
    assert given(to, "b") is None  # 0 is not taken: what lies in the folder stays bounded
    assert to.finished("a", 0) == 10
    assert [taken(to), taken(to)] == [0, 1]
    assert [given(to, "b"), given(to, "a"), given(to, "a")] == [3, 4, None]


def test_shards_that_are_there_are_given_to_nobody() -> None:
    to = assignments(4, window=4, there=(0, 2))
    assert [given(to, "a"), given(to, "a"), given(to, "a")] == [1, 3, None]
    assert taken(to) == 0


def test_what_a_lost_worker_had_goes_to_the_next_in_order() -> None:
    to = assignments(5, window=5)
    assert [given(to, "a"), given(to, "b"), given(to, "a")] == [0, 1, 2]
    to.lost("a", "killed")
    assert [given(to, "b") for _ in range(4)] == [0, 2, 3, 4]
    assert to.in_hand("a") == []


def test_a_shard_that_ends_three_workers_is_named() -> None:
    to = assignments(3, window=3)
    for worker in "ab":
        assert [given(to, worker), given(to, worker)] == [0, 1]
        to.lost(worker, "killed")
    assert [given(to, "c"), given(to, "c")] == [0, 1]
    with pytest.raises(ShardFailed, match=r"Shard 0 .* 3 times .* out of memory"):
        to.lost("c", "out of memory")


def test_a_shard_that_cannot_be_used_is_made_again_twice() -> None:
    to = assignments(1, window=3)
    for reason in ("changed", "missing", "other rows"):
        assert given(to, "a") == 0
        assert to.finished("a", 0) == (10 if reason == "changed" else 0)  # rows count once
        shard = to.first()
        assert shard is not None
        if reason == "other rows":
            with pytest.raises(ShardFailed, match=reason):
                to.made_again(shard, reason)
        else:
            to.made_again(shard, reason)


def test_a_straggler_goes_to_a_second_worker_that_has_nothing_else_to_do() -> None:
    clock = Clock()
    to = assignments(3, 3, clock)
    assert [given(to, "slow"), given(to, "b"), given(to, "c")] == [0, 1, 2]
    clock.now += 8
    assert (to.finished("b", 1), to.finished("c", 2)) == (10, 10)
    assert given(to, "b") is None
    clock.now += 17
    assert given(to, "b") == 0  # after more than three times as long
    assert given(to, "c") is None  # two are enough
    assert to.finished("b", 0) == 10
    assert [taken(to), taken(to), taken(to)] == [0, 1, 2]
    assert to.finished("slow", 0) == 0


def test_a_straggler_s_second_worker_may_be_lost() -> None:
    clock = Clock()
    to = assignments(2, 2, clock)
    assert [given(to, "slow"), given(to, "b")] == [0, 1]
    to.finished("b", 1)
    clock.now += 60
    assert given(to, "b") == 0
    to.lost("b", "killed")
    assert given(to, "c") == 0
    to.lost("slow", "killed")
    assert [shard.number for shard in to.in_hand("c")] == [0]


def test_what_cannot_be_used_goes_to_another_worker_than_its_maker() -> None:
    to = assignments(3, 3)
    assert [given(to, "bad"), given(to, "good")] == [0, 1]
    to.finished("bad", 0)
    shard = to.first()
    assert shard is not None
    to.made_again(shard, "a worker does not see a photo")
    again = to.give("bad", alone=False)
    assert again is not None
    assert again.number == 2
    assert given(to, "good") == 0


def test_a_maker_that_is_alone_gets_it_again() -> None:
    to = assignments(1, 1)
    given(to, "bad")
    to.finished("bad", 0)
    shard = to.first()
    assert shard is not None
    to.made_again(shard, "changed")
    assert to.give("bad", alone=False) is None
    assert given(to, "bad") == 0


@pytest.mark.parametrize("seed", range(20))
def test_every_shard_is_taken_once_in_order_whatever_happens(seed: int) -> None:
    dice, clock = random.Random(seed), Clock()
    to = assignments(40, window=7, clock=clock, there=tuple(dice.sample(range(40), 5)))
    workers, rows, order = ["a", "b", "c"], 0, []
    while (first := to.first()) is not None:
        clock.now += dice.expovariate(0.2)
        worker = dice.choice(workers)
        in_hand = to.in_hand(worker)
        if in_hand and dice.random() < 0.5:
            rows += to.finished(worker, dice.choice(in_hand).number)
        elif len(in_hand) < 3:
            to.give(worker)
        if dice.random() < 0.03 and all(len(shard.failures) < 2 for shard in to.in_hand(worker)):
            to.lost(worker, "killed")
        if first.done:
            if dice.random() < 0.05 and len(first.failures) < 2:
                to.made_again(first, "changed")
            else:
                order.append(first.number)
                rows += 0 if first.told else len(first.manifest)  # it was there before
                to.taken(first)
    assert order == list(range(40))
    assert rows == 400
