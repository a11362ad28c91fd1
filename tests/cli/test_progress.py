"""What long work shows on standard error, and what Ctrl-C does to it."""

from __future__ import annotations

import io
import pty
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from pipeline.cli.progress import BarProgress, LineProgress, LongWork, duration, open_progress
from pipeline.jobs.shard_progress import ShardProgress


class Log:
    """Progress as lines, and its clock."""

    def __init__(self) -> None:
        self.now = 100.0
        self.stream = io.StringIO()
        self.progress = LineProgress(self.stream, lambda: self.now)

    def lines(self) -> list[str]:
        return self.stream.getvalue().splitlines()


@pytest.fixture
def log() -> Log:
    return Log()


def test_one_line_a_minute(log: Log) -> None:
    log.progress.start("run", 1000)
    for _ in range(240):
        log.now += 0.5
        log.progress.advance()
    assert log.lines() == [
        "run: 1000",
        "run: 20 of 1000, 2.0/s, 8:10 left",  # the first after ten seconds
        "run: 140 of 1000, 2.0/s, 7:10 left",
    ]


def test_the_rate_is_of_the_last_minute_and_not_of_what_was_there_before(log: Log) -> None:
    log.progress.start("run", 2000)
    log.now += 60
    log.progress.advance(1000)
    for _ in range(60):
        log.now += 1
        log.progress.advance()
    assert log.lines()[-1] == "run: 1060 of 2000, 1.0/s, 15:40 left"


def test_an_unknown_total_has_no_time_left_and_a_new_phase_counts_from_0(log: Log) -> None:
    log.progress.start("scan", None)
    log.now += 60
    log.progress.advance(60)
    log.progress.start("run", 10)
    log.progress.advance(5)
    log.progress.note("shown at\x1b once")
    log.progress.close()
    assert log.lines() == ["scan", "scan: 60, 1.0/s", "run: 10", "shown at\\x1b once"]


def test_a_phase_that_goes_on_after_the_loading_of_models_has_one_line(log: Log) -> None:
    shown = ShardProgress(log.progress, threading.Event())
    for _ in range(2):  # two sources
        log.progress.start("scan", None)
        log.progress.advance(10)
        shown.start("run", 10)
        with shown.meanwhile("loading the models"):
            pass
        shown.advance(10)
    assert log.lines() == ["scan", "run: 10", "loading the models"] * 2


def test_lines_from_many_threads_count_everything(log: Log) -> None:
    log.progress.start("run", 4000)
    threads = [threading.Thread(target=lambda: [log.progress.advance() for _ in range(999)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    log.now += 60
    log.progress.advance(4)
    assert log.lines()[1].startswith("run: 4000 of 4000")


@pytest.mark.parametrize(("seconds", "text"), [(0, "0:00"), (59.6, "1:00"), (754, "12:34"), (11220, "3:07:00")])
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_bars_on_a_terminal_lines_elsewhere() -> None:
    main_end, terminal_end = pty.openpty()
    with open(terminal_end, "w", encoding="utf-8") as terminal:  # noqa: PTH123  a descriptor, not a path
        progress = open_progress(terminal)
        assert isinstance(progress, BarProgress)
        progress.advance()  # before any phase
        progress.start("run", 10)
        progress.advance(4)
        progress.note("a file [red].jpg")
        progress.start("a [b] \x1b]0;title\x07", None)
        progress.note("\x1b[2Jgone")
        progress.close()
    shown = _screen(main_end)
    assert b"4/10" in shown
    assert b"?" not in shown.replace(b"\x1b[?25", b"")
    assert b"a file [red].jpg" in shown
    assert b"a [b] \\x1b]0;title\\x07" in shown
    assert b"\\x1b[2Jgone" in shown
    assert isinstance(open_progress(io.StringIO()), LineProgress)


def test_a_phase_that_is_over_is_full_or_gone() -> None:
    main_end, terminal_end = pty.openpty()
    with open(terminal_end, "w", encoding="utf-8") as terminal:  # noqa: PTH123  a descriptor, not a path
        progress = open_progress(terminal)
        progress.start("scan", None)
        progress.advance(7)
        progress.start("run", 10)
        progress.start("loading the models", None)
        progress.start("run", 10)
        progress.advance(10)
        progress.close()
    last = _screen(main_end).rpartition(b"scan")[2].split(b"\r\n")
    assert b" 7 " in last[0]
    assert b"run" in last[1]
    assert b"10/10" in last[1]
    assert b"loading" not in b"".join(last)
    assert b"run" not in b"".join(last[2:])


def _screen(descriptor: int) -> bytes:
    """What a closed terminal has shown."""
    shown = b""
    with suppress(OSError), open(descriptor, "rb", buffering=0) as screen:
        while part := screen.read(65536):
            shown += part
    return shown


def test_the_first_signal_sets_stop_and_the_handlers_come_back() -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    for number in (signal.SIGINT, signal.SIGTERM):
        with LongWork() as long:
            assert not long.stop.is_set()
            signal.raise_signal(number)
            assert long.stop.is_set()
        assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


WAITING = """
import sys, time
from pipeline.cli.progress import LongWork
with LongWork() as long:
    print("ready", flush=True)
    long.stop.wait()
    print("stopping", flush=True)
    time.sleep(60)
"""


def test_the_second_signal_ends_at_once() -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", WAITING], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=Path.cwd()
    )
    with child:
        assert child.stdout is not None
        assert child.stderr is not None
        for expected in ("ready\n", "stopping\n"):
            assert child.stdout.readline() == expected
            child.send_signal(signal.SIGINT)
        assert child.wait(timeout=60) == -signal.SIGINT
        assert "a second Ctrl-C ends at once" in child.stderr.read()
