"""Shards are committed beside the extraction of the next ones: in order, few at a time, none after a failure."""

from __future__ import annotations

import threading

import pyarrow as pa
import pytest

from pipeline.errors import StoreFull
from pipeline.run.stages import CommitThread
from pipeline.runtime.stage_times import DECIDE, StageTimes
from tests.waiting import until

_NOTHING = pa.table({})


class _Commits:
    """A commit that takes as long as the test wants, and fails at one shard."""

    def __init__(self, fails_at: int | None = None) -> None:
        self.begun: list[int] = []
        self.go_on = threading.Semaphore(0)
        self._fails_at = fails_at

    def __call__(self, shard: int, _manifest: pa.Table, _extracted: pa.Table) -> None:
        self.begun.append(shard)
        assert self.go_on.acquire(timeout=60)
        if shard == self._fails_at:
            raise StoreFull(path="store", detail="no space left")


def test_commits_in_order_with_two_shards_in_memory_at_most() -> None:
    commits, times, taken = _Commits(), StageTimes(), list[int]()

    def give() -> None:
        with CommitThread(commits, times) as committer:
            for shard in range(5):
                committer(shard, _NOTHING, _NOTHING)
                taken.append(shard)

    giving = threading.Thread(target=give)
    giving.start()
    for done in range(5):
        giving.join(0.05)
        assert len(taken) <= done + 2
        commits.go_on.release()
    giving.join(60)
    assert commits.begun == taken == [0, 1, 2, 3, 4]
    assert times.stages[DECIDE].calls == 5


@pytest.mark.parametrize("last", [2, 3, 6])
def test_after_a_failure_nothing_more_is_committed(last: int) -> None:
    commits = _Commits(fails_at=1)
    commits.go_on.release(10)

    def commit_all() -> None:
        with CommitThread(commits, StageTimes()) as committer:
            for shard in range(last):
                committer(shard, _NOTHING, _NOTHING)

    with pytest.raises(StoreFull):
        commit_all()
    assert commits.begun == [0, 1]


def test_an_error_beside_it_waits_for_the_shard_in_hand_alone() -> None:
    commits = _Commits()

    def fail() -> None:
        with CommitThread(commits, StageTimes()) as committer:
            committer(0, _NOTHING, _NOTHING)
            committer(1, _NOTHING, _NOTHING)
            until(lambda: commits.begun)
            threading.Timer(0.2, commits.go_on.release).start()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert commits.begun == [0]
