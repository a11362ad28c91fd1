"""A process that has everything imported and forks one server per order, so that a hundred killed servers stay quick.

Reads one JSON object per line. {"store", "fault", "nth", "without"} starts a server over a store of coded faces and
answers {"pid", "url"} (`url` null: it died before it listened); `fault` makes it kill itself (SIGKILL) when it comes
to that fault point for the n-th time since then, `without` names what it leaves undone (`WITHOUT`). {"wait"} with a
pid answers {"status": exit code or -signal, "points": how often it met each fault point; only of a clean end}.
One thread only: other threads do not survive a fork.
"""

from __future__ import annotations

import json
import os
import signal
import stat
import sys
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import coded_server
import torch
import uvicorn.lifespan.on  # what uvicorn imports by name only when it starts
import uvicorn.loops.auto  # noqa: F401

import pipeline.store.catalog.opening
from pipeline.config import load_settings
from pipeline.matching import int8_filter
from pipeline.serve.server import Listening, serve
from pipeline.store.catalog.connection import connect
from pipeline.store.files import faults

CROP_BYTES = 300
SETTINGS = load_settings(
    environ={},
    flags={
        "serve.port": 0,
        "serve.person_headers": "optional",
        "serve.queue_images": 1000,
        "serve.workers": 8,
        "run.threads": 1,
    },
)


def _skip_fsync(skipped: Callable[[int], bool]) -> None:
    fsync = os.fsync
    os.fsync = lambda fd: None if skipped(fd) else fsync(fd)  # type: ignore[assignment, arg-type]


def _is_object(fd: int, *, folder: bool) -> bool:
    in_objects = "/objects" in str(Path(f"/proc/self/fd/{fd}").readlink())
    return in_objects and stat.S_ISDIR(os.fstat(fd).st_mode) == folder


def _connect_without_sync(file: Path, root: Path) -> Any:
    made = connect(file, root)
    made.execute("SET fsync_mode = 'NONE'")
    return made


def _without_log_sync() -> None:
    pipeline.store.catalog.opening.connect = _connect_without_sync


# Durability's parts, and how to leave each of them out.
WITHOUT: dict[str, Callable[[], None]] = {
    "object": lambda: _skip_fsync(lambda fd: _is_object(fd, folder=False)),
    "folder": lambda: _skip_fsync(lambda fd: _is_object(fd, folder=True)),
    "log": _without_log_sync,
}


def child(order: dict[str, Any], answer: int, met: Counter[str]) -> None:
    def hook(name: str) -> None:
        met[name] += 1
        if name == order.get("fault") and met[name] == order["nth"]:
            os.kill(os.getpid(), signal.SIGKILL)

    def announce(listening: Listening) -> None:
        faults.install(hook)
        os.write(answer, listening.url.encode())
        os.close(answer)

    for part in order.get("without", ()):
        WITHOUT[part]()
    serve(Path(order["store"]), SETTINGS, announce)


def _points(pid: int) -> Path:
    return Path(sys.argv[1]) / f"{pid}.points"


def start(order: dict[str, Any]) -> dict[str, Any]:
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        os.setpgid(0, 0)  # a Ctrl-C in the terminal is for the test alone
        status, met = 1, Counter[str]()
        try:
            child(order, writing, met)
            _points(os.getpid()).write_text(json.dumps(met))
            status = 0
        except BaseException:  # noqa: BLE001 - the child must never return into the parent's loop
            traceback.print_exc()
        finally:
            os._exit(status)
    os.close(writing)
    with os.fdopen(reading) as answers:
        url = answers.read()
    return {"pid": pid, "url": url or None}


def wait(pid: int) -> dict[str, Any]:
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return {"status": status, "points": json.loads(_points(pid).read_text()) if status == 0 else None}


def main() -> None:
    torch.set_num_threads(1)
    int8_filter.prepare()  # compiled here once, not in every child
    coded_server.install(CROP_BYTES)
    for line in sys.stdin:
        order = json.loads(line)
        print(json.dumps(wait(order["wait"]) if "wait" in order else start(order)), flush=True)


if __name__ == "__main__":
    main()
