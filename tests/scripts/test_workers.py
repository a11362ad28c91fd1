"""The processes of the speed benchmarks: every list is done once, and what a turn took is counted."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest
from workers import Variant, Workers

LISTS = [[Path(f"{number}-{k}") for k in range(number + 1)] for number in range(6)]
MIB = 2**20


class Recording:
    """Notes for each file which process saw it and with what threads; uses memory and time."""

    def __init__(self, threads: int, size: int) -> None:
        import torch

        self.note = (os.getpid(), torch.get_num_threads(), os.environ["OMP_WAIT_POLICY"])
        self.size = size
        self.lists: Sequence[Sequence[Path]] = []

    def prepare(self, lists: Sequence[Sequence[Path]]) -> None:
        self.lists = lists

    def __call__(self, numbers: Iterable[int]) -> dict[Path, tuple[int, int, str]]:
        found = {}
        for number in numbers:
            spent = time.process_time()
            while time.process_time() < spent + 0.02:
                bytearray(self.size)
            time.sleep(0.05)  # the other process gets its share
            found.update(dict.fromkeys(self.lists[number], self.note))
        return found


class Failing(Recording):
    def __call__(self, numbers: Iterable[int]) -> dict[Path, tuple[int, int, str]]:
        raise ValueError("no such picture")


def add(chain: Recording, number: int) -> int:
    return chain.size + number


@pytest.mark.slow
def test_two_processes_share_the_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    passive = {"OMP_WAIT_POLICY": "passive"}
    with Workers(Variant(Recording, 2, 1, (64 * MIB,), passive)) as workers:
        workers.wait()
        workers.prepare(LISTS)
        begun = time.perf_counter()
        for _ in range(2):
            workers()
        wall = time.perf_counter() - begun
        results = workers.results()
        assert workers.call(add, 1) == 64 * MIB + 1
    assert "OMP_WAIT_POLICY" not in os.environ
    assert sorted(results) == sorted(file for files in LISTS for file in files)
    notes = set(results.values())
    assert len({process for process, _, _ in notes}) == 2
    assert {(threads, policy) for _, threads, policy in notes} == {(1, "passive")}
    for turn in workers.turns:
        assert turn.made == 3 * len(results)  # each note has three parts
        assert 0.1 < turn.cpu_s < 2 * wall + 0.1  # clock ticks are 0.01 s
        assert turn.peak_rss_bytes > 2 * 64 * MIB
        assert turn.peak_vram_bytes == 0


class Hasty(Recording):
    """Takes all numbers before it begins."""

    def __call__(self, numbers: Iterable[int]) -> dict[Path, tuple[int, int, str]]:
        return super().__call__(list(numbers))


@pytest.mark.slow
def test_processes_that_read_ahead_have_their_own_lists() -> None:
    with Workers(Variant(Hasty, 2, 1, (1,), {"OMP_WAIT_POLICY": "passive"}, reads_ahead=True)) as workers:
        workers.wait()
        workers.prepare(LISTS)
        workers()
        process = [{note[0] for file, note in workers.results().items() if file in files} for files in LISTS]
    assert process[0] == process[2] == process[4] != process[1] == process[3] == process[5]
    assert all(len(one) == 1 for one in process)


@pytest.mark.slow
def test_a_failure_is_reported(capfd: pytest.CaptureFixture[str]) -> None:
    workers = Workers(Variant(Failing, 1, 1, (1,), {"OMP_WAIT_POLICY": "passive"}))
    with workers:
        workers.wait()
        workers.prepare(LISTS)
        with pytest.raises(RuntimeError, match="ValueError: no such picture"):
            workers()
    assert "no such picture" in capfd.readouterr().err
