"""How long the shard in hand will take."""

from __future__ import annotations

import signal
import threading

import pytest

from pipeline.cli.progress import LongWork
from pipeline.errors import Interrupted
from pipeline.jobs.shard_progress import ShardProgress, loading_models
from tests.integration.conftest import RecordedProgress


def test_after_a_stop_the_rest_of_the_shard_is_told_once() -> None:
    recorded, stop, now = RecordedProgress(), threading.Event(), [0.0]
    progress = ShardProgress(recorded, stop, lambda: now[0])
    progress.start("run", 200)
    progress.begin_shard(100)
    now[0] = 50.0
    with progress.meanwhile("loading the models"):
        now[0] = 60.0  # does not count
    now[0] = 65.0
    progress.advance(10)
    assert recorded.notes == []
    stop.set()
    now[0] = 70.0
    progress.advance(10)
    progress.advance(10)
    assert recorded.notes == ["The shard in hand takes about 40 s more."]
    assert recorded.phases == ["run", "loading the models", "run"]
    assert recorded.advanced == 30


def test_a_shard_that_is_done_needs_no_time() -> None:
    recorded, stop = RecordedProgress(), threading.Event()
    progress = ShardProgress(recorded, stop)
    progress.start("run", 4)
    progress.begin_shard(4)
    stop.set()
    progress.advance(4)
    assert recorded.notes == []


def test_models_need_not_be_loaded_to_the_end() -> None:
    went_on = []

    def load(number: int) -> None:
        signal.raise_signal(number)
        went_on.append(number)

    with LongWork() as long:
        for number in (signal.SIGINT, signal.SIGTERM):
            long.stop.clear()
            with pytest.raises(Interrupted, match="the models were being loaded"), loading_models(long.stop):
                load(number)
        assert went_on == []
        assert not long.stop.at_once
        long.stop.clear()
        with pytest.raises(KeyboardInterrupt), loading_models(long.stop):  # somebody else's
            raise KeyboardInterrupt
    stop = threading.Event()
    with pytest.raises(Interrupted), loading_models(stop):
        stop.set()
