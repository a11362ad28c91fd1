"""What is measured of the stages of a run, and what the profile makes of it."""

from __future__ import annotations

import dataclasses
import json
import threading

import pytest

from pipeline.jobs.profile import STAGES, make_profile
from pipeline.runtime.stage_times import (
    DECIDE,
    DECODE,
    DECODING,
    EMBED,
    FOR_IMAGES,
    FOR_MODELS,
    NETWORKS,
    PARTS,
    PNET,
    READ,
    SCAN,
    Gauge,
    StageTimes,
)


class Clock:
    """Seconds that pass when they are told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_a_gauge_weighs_by_time(clock: Clock) -> None:
    gauge = Gauge(clock)
    assert (gauge.mean, gauge.most, gauge.area()) == (0, 0, 0)
    clock.sleep(50)  # before the first change nothing counts
    for number, seconds in ((2, 1.0), (3, 2.0), (-5, 3.0), (1, 0.0)):
        gauge.add(number)
        clock.sleep(seconds)
    assert gauge.mean == (2 * 1 + 5 * 2 + 0 * 3) / 6
    assert gauge.most == 5
    clock.sleep(4)
    assert gauge.area() == 2 + 10 + 4
    assert gauge.mean == 2  # up to the last change


def test_stages_add_up_over_calls_and_threads(clock: Clock) -> None:
    times = StageTimes(clock=clock)
    for _ in range(3):
        with times.stage(DECODE):
            clock.sleep(2)
    with pytest.raises(ZeroDivisionError), times.stage(DECODE, calls=4):
        clock.sleep(1 / 0)
    assert (times.stages[DECODE].calls, times.stages[DECODE].seconds) == (7, 6)

    def work() -> None:
        for _ in range(500):
            with times.stage(READ), times.worker():
                pass

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert times.stages[READ].calls == 2000
    assert 1 <= times.workers_busy.most <= 4


def test_a_stage_of_the_device_has_its_time(clock: Clock) -> None:
    """The device has its own 5 seconds of work, which come due when somebody waits for it."""
    due = [3.0]  # of what came before

    def synchronize() -> None:
        clock.sleep(due.pop() if due else 0)

    times = StageTimes(synchronize, clock)
    with times.on_device(EMBED):
        due.append(5.0)
    with times.stage(DECIDE):
        due.append(7.0)  # a stage of the host does not wait
    assert times.stages[EMBED].seconds == 5
    assert times.stages[DECIDE].seconds == 0


def test_what_waited(clock: Clock) -> None:
    times = StageTimes(clock=clock)
    with times.engine(workers=2):
        with times.waiting(FOR_IMAGES, 2):
            clock.sleep(3)  # both workers have nothing
        with times.waiting(FOR_MODELS, 2):
            clock.sleep(5)
        with times.worker():
            with times.waiting(FOR_IMAGES, 2):
                clock.sleep(2)  # one of them
            clock.sleep(1)
        clock.sleep(10)  # behind the last batch nobody waits for work
    with times.held_back():
        clock.sleep(4)
    assert times.idle_for == {FOR_IMAGES: 2 * 3 + 1 * 2, FOR_MODELS: 2 * 5}
    assert times.idle_s == 2 * 3 + 2 * 5 + 1 * 2 + 1 * 1
    assert times.held_back_s == 4


def test_an_engine_without_a_batch_was_not_idle(clock: Clock) -> None:
    times = StageTimes(clock=clock)
    with times.engine(workers=2):
        clock.sleep(1)
    assert times.idle_s == 0


@pytest.mark.parametrize(
    ("seconds", "wall", "group"),
    [
        ({PNET: 8, EMBED: 2, DECODE: 5, DECIDE: 1}, "networks", "detection"),
        ({PNET: 3, EMBED: 6, DECODE: 8.9, DECIDE: 1}, "networks", "embedding"),
        ({PNET: 8, EMBED: 2, DECODE: 11}, "decoding", "decoding"),
        ({PNET: 8, EMBED: 2, DECODE: 3, READ: 9}, "decoding", "reading"),
        ({PNET: 8, EMBED: 2, DECIDE: 5.5}, "store", "deciding"),  # on one thread, the networks on two
        ({SCAN: 6, PNET: 10}, "scan", "hashing"),
    ],
)
def test_the_wall_is_the_part_that_is_busy_longest(
    clock: Clock, seconds: dict[str, float], wall: str, group: str
) -> None:
    times = StageTimes(clock=clock)
    for stage, taken in seconds.items():
        with times.stage(stage):
            clock.sleep(taken)
    profile = make_profile(times, {DECODING: 2, NETWORKS: 2}, 0.5, None)
    assert profile.wall == wall
    assert max(profile.wall_shares, key=lambda name: profile.wall_shares[name]) == group
    assert sum(stage.share for stage in profile.stages.values()) == pytest.approx(1)
    first = next(iter(profile.lines()))
    assert first.startswith(f"wall        the {wall}: {group} ")
    assert json.loads(json.dumps(dataclasses.asdict(profile)))["stages"].keys() == seconds.keys()


def test_a_command_without_work_has_a_profile() -> None:
    profile = make_profile(StageTimes(), {DECODING: 1, NETWORKS: 1}, 0.0, 0.25)
    assert profile.stages == {}
    assert "device 25%" in "\n".join(profile.lines())


def test_every_stage_is_of_one_part() -> None:
    assert len(STAGES) == len(set(STAGES))
    assert len(PARTS) == 5
