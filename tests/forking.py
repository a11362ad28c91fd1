"""A process that loads what is slow once and forks a child for each order, so that a hundred killed runs stay quick.

A `Forker` is the test's side. It runs `python -m MODULE`, which loads what it needs on one thread (other threads do not
survive a fork) and then calls `answer_orders` with the work of a child.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from pipeline.store.files import faults

ROOT = Path(__file__).parents[1]
Order = dict[str, Any]
# The work of a child: it calls `ready` with a line for the test. Fault points count from then on.
Work = Callable[[Order, Callable[[str], None]], None]


@dataclass(frozen=True)
class Ended:
    """The end of a child: its exit code or -signal, and how often it met each fault point (only after a clean end)."""

    status: int
    points: dict[str, int]


class Forker:
    """The forking process of a module. `prefix` is a command that runs it."""

    def __init__(self, module: str, *, prefix: Sequence[str] = (), environ: Mapping[str, str] | None = None) -> None:
        self._process = subprocess.Popen(
            [*prefix, sys.executable, "-W", "ignore", "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={
                **(os.environ if environ is None else environ),
                "PYTHONPATH": str(ROOT / "scripts" / "bench"),
                "OMP_NUM_THREADS": "1",
            },
        )

    def start(self, **order: Any) -> Child:
        """A child that is ready. With `fault` and `nth` it kills itself (SIGKILL) when it meets that fault point for
        the n-th time."""
        reply = self._send({"start": order})
        return Child(self, reply["pid"], reply["ready"])

    @contextmanager
    def running(self, **order: Any) -> Iterator[Child]:
        """A child that is stopped in the end, and must stop cleanly."""
        child = self.start(**order)
        try:
            yield child
        except BaseException:
            child.kill()
            raise
        assert child.stop().status == 0

    def wait(self, pid: int) -> Ended:
        return Ended(**self._send({"wait": pid}))

    def close(self) -> None:
        with self._process as process:  # closes the pipes: the forker ends with its input
            assert process.stdin is not None

    def __enter__(self) -> Forker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _send(self, message: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(message) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, "the forker died"
        return dict(json.loads(line))


@dataclass(frozen=True)
class Child:
    """`ready` is the line it sent; empty where it died before."""

    forker: Forker
    pid: int
    ready: str

    def wait(self) -> Ended:
        return self.forker.wait(self.pid)

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        assert self.wait().status == -signal.SIGKILL

    def stop(self) -> Ended:
        os.kill(self.pid, signal.SIGTERM)
        return self.wait()


def answer_orders(work: Work) -> None:
    """The forking process: forks a child per order, and reports ends, until standard input closes."""
    replies: dict[int, TextIO] = {}
    gc.collect()
    gc.freeze()  # or a child's first collection would copy all memory that it shares with this process
    for line in sys.stdin:
        message = json.loads(line)
        if "start" in message:
            pid, replies_of_child = _fork(work, message["start"])
            replies[pid] = replies_of_child
            answer: dict[str, Any] = {"pid": pid, "ready": replies_of_child.readline().rstrip("\n")}
        else:
            pid = message["wait"]
            with replies.pop(pid) as replies_of_child:
                points = json.loads(replies_of_child.read() or "{}")
            answer = {"status": os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), "points": points}
        print(json.dumps(answer), flush=True)
    gc.unfreeze()  # or DuckDB's binding reports leaks


def _fork(work: Work, order: Order) -> tuple[int, TextIO]:
    """The pid of a new child, and what it writes: the line it is ready with, and in the end its fault points."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid != 0:
        os.close(writing)
        return pid, os.fdopen(reading)
    status = 1
    try:
        os.close(reading)
        os.setpgid(0, 0)  # a Ctrl-C in the terminal is for the test alone
        os.dup2(2, 1)  # standard output is for the answers of the forking process
        with os.fdopen(writing, "w") as reply:
            _work(work, order, reply)
        status = 0
    except SystemExit as exc:
        status = int(exc.code or 0)
    except BaseException:  # noqa: BLE001 - the child must never return into the parent's loop
        traceback.print_exc()
    finally:
        os._exit(status)


def _work(work: Work, order: Order, reply: TextIO) -> None:
    met: Counter[str] = Counter()

    def hook(name: str) -> None:
        met[name] += 1
        if name == order.get("fault") and met[name] == order["nth"]:
            os.kill(os.getpid(), signal.SIGKILL)

    def ready(line: str) -> None:
        faults.install(hook)
        print(line, file=reply, flush=True)

    work(order, ready)
    print(json.dumps(met), file=reply)
