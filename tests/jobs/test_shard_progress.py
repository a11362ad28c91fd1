"""How long the shard in hand will take."""

from __future__ import annotations

import threading

from pipeline.jobs.shard_progress import ShardProgress
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
