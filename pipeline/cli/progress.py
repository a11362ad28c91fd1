"""Progress of long work on standard error: bars on a terminal, one line a minute elsewhere."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, TextIO

from pipeline.cli.output import printable
from pipeline.jobs.shard_progress import Stop

LINE_EVERY_S = 60.0
FIRST_LINE_S = 10.0
SHOW_CURSOR = b"\x1b[?25h"  # the bars hide it
STOPPING = b"\nFinishing the shard in hand; a second Ctrl-C ends at once.\n"


def open_progress(stream: TextIO | None = None) -> BarProgress | LineProgress:
    """Bars where `stream` (standard error) is a terminal, lines elsewhere."""
    stream = sys.stderr if stream is None else stream
    return BarProgress(stream) if stream.isatty() else LineProgress(stream)


class LineProgress:
    """A line when a phase begins, one after ten seconds, then one a minute, for logs. A phase that goes on after one
    without steps, such as the loading of models, has no second line. Safe to call from any thread."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self._lock = threading.Lock()
        self._former: tuple[str, int | None] = "", None
        self._begin("", None)

    def start(self, phase: str, total: int | None) -> None:
        with self._lock:
            goes_on = (phase, total) == self._former and self._total is None and not self._done
            self._former = self._phase, self._total
            self._begin(phase, total)
            if not goes_on:
                self._write(phase if total is None else f"{phase}: {total}")

    def _begin(self, phase: str, total: int | None) -> None:
        self._phase, self._total = phase, total
        self._done = self._shown_done = 0
        self._shown_at = self._clock()
        self._wait = FIRST_LINE_S

    def advance(self, count: int = 1) -> None:
        with self._lock:
            self._done += count
            now = self._clock()
            if now - self._shown_at >= self._wait:
                self._show(now)
                self._wait = LINE_EVERY_S

    def _show(self, now: float) -> None:
        # The rate since the last line: a resumed run skips finished shards in no time, and a mean over the whole
        # phase would promise an end that never comes.
        rate = (self._done - self._shown_done) / (now - self._shown_at)
        of_total = "" if self._total is None else f" of {self._total}"
        time_left = ""
        if self._total is not None and rate > 0:
            time_left = f", {duration((self._total - self._done) / rate)} left"
        self._write(f"{self._phase}: {self._done}{of_total}, {rate:.1f}/s{time_left}")
        self._shown_at, self._shown_done = now, self._done

    def note(self, text: str) -> None:
        with self._lock:
            self._write(text)

    def _write(self, text: str) -> None:
        print(printable(text), file=self._stream, flush=True)

    def close(self) -> None:
        """Nothing is open."""


class BarProgress:
    """One bar a phase, with its rate, its time and the time left (rich). Safe to call from any thread."""

    def __init__(self, stream: TextIO) -> None:
        # Late: a short command need not wait for this import.
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        self._bars = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.fields[so_far]}"),
            TimeElapsedColumn(),
            console=Console(file=stream),
        )
        self._task: Any = None
        self._lock = threading.Lock()

    def start(self, phase: str, total: int | None) -> None:
        with self._lock:
            self._bars.start()
            self._end_phase()
            for task in self._bars.tasks:
                if task.description == printable(phase):  # it goes on after an interruption
                    self._bars.remove_task(task.id)
            self._task = self._bars.add_task(
                printable(phase), total=total, so_far="" if total is None else f"0/{total}"
            )

    def _end_phase(self) -> None:
        """The bar of a phase where nothing was counted goes; one that nobody knew the end of becomes full."""
        if self._task is None:
            return
        task = self._bars.tasks[-1]
        self._bars.stop_task(self._task)
        if not task.completed:
            self._bars.remove_task(self._task)
        elif task.total is None:
            self._bars.update(self._task, total=task.completed)
        self._task = None

    def advance(self, count: int = 1) -> None:
        with self._lock:
            if self._task is None:
                return
            self._bars.update(self._task, advance=count)
            task = self._bars.tasks[-1]
            parts = [f"{task.completed:.0f}" + ("" if task.total is None else f"/{task.total:.0f}")]
            speed, left = task.speed, task.time_remaining  # once: each sums up a thousand samples
            parts += [f"{speed:.1f}/s"] if speed else []
            parts += [f"{duration(left)} left"] if left else []
            self._bars.update(self._task, so_far=", ".join(parts))

    def note(self, text: str) -> None:
        # Markup off: a file name may hold brackets.
        self._bars.console.print(printable(text), markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        with self._lock:
            self._end_phase()
            self._bars.stop()


def duration(seconds: float) -> str:
    """`seconds` as 0:42, 12:05 or 3:07:00."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


class LongWork:
    """Progress and the stop signal of one long command, as a context manager.

    The first Ctrl-C (or SIGTERM) sets `stop`: the library finishes the shard in progress, if any, and raises
    Interrupted. The second ends the process at once, which a store survives as it survives any crash.
    """

    def __init__(self) -> None:
        self.progress = open_progress()
        self.stop = Stop()
        self._former_handlers: dict[int, Any] = {}

    def __enter__(self) -> LongWork:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._former_handlers[number] = signal.signal(number, self._on_signal)
        return self

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        # Past Python's streams, whose locks the main thread may hold at this moment.
        if self.stop.is_set():
            if sys.stderr.isatty():
                os.write(2, SHOW_CURSOR)
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        self.stop.set()
        if self.stop.at_once:
            raise KeyboardInterrupt
        os.write(2, STOPPING)

    def __exit__(self, *_exception: object) -> None:
        for number, handler in self._former_handlers.items():
            signal.signal(number, handler)
        self.progress.close()
