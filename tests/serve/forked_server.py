"""Servers as children of a process that has everything imported.

The order {"store", "without", "flags", "files", "log"} is a server over a store of coded faces: `without` names the
parts of durability that it leaves out, `flags` are more settings, `files` is the limit on open files, `log` the file of
its log. It is ready with its URL. The order {"words", "environ", "log"} is a command of these words and environment
variables, with its models. It is ready with the first line that it prints.
"""

from __future__ import annotations

import io
import os
import resource
import stat
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import coded_server
import uvicorn.lifespan.on  # what uvicorn imports by name only when it starts
import uvicorn.loops.auto  # noqa: F401

import pipeline.serve.server
import pipeline.store.catalog.connection
from pipeline.cli import main
from pipeline.cli.serve import log_to_stderr
from pipeline.config import load_settings
from pipeline.matching import int8_filter
from pipeline.runtime.threads import set_threads
from pipeline.serve.server import serve
from pipeline.store.catalog.connection import connect
from tests.forking import Order, answer_orders
from tests.remembering import remembering

CROP_BYTES = 300
FLAGS = {
    "serve.port": 0,
    "serve.person_headers": "optional",
    "serve.queue_images": 1000,
    "serve.workers": 8,
    "run.threads": 1,
}
SETTINGS = load_settings(environ={}, flags=FLAGS)


def _skip_fsync(skipped: Callable[[int], bool]) -> None:
    fsync = os.fsync
    os.fsync = lambda fd: None if skipped(fd) else fsync(fd)  # type: ignore[assignment, arg-type]


def _is_object(fd: int, *, folder: bool) -> bool:
    in_objects = "/objects" in str(Path(f"/proc/self/fd/{fd}").readlink())
    return in_objects and stat.S_ISDIR(os.fstat(fd).st_mode) == folder


def _connect_without_sync(file: Path, root: Path, *, reading: bool = False) -> Any:
    connection = connect(file, root, reading=reading)
    connection.execute("SET fsync_mode = 'NONE'")
    return connection


def _without_log_sync() -> None:
    pipeline.store.catalog.connection.connect = _connect_without_sync


WITHOUT: dict[str, Callable[[], None]] = {
    "object": lambda: _skip_fsync(lambda fd: _is_object(fd, folder=False)),
    "folder": lambda: _skip_fsync(lambda fd: _is_object(fd, folder=True)),
    "log": _without_log_sync,
}


class _Output(io.StringIO):
    """Standard output of a command that prints one line."""

    def __init__(self, ready: Callable[[str], None]) -> None:
        super().__init__()
        self._ready = ready

    def write(self, text: str) -> int:
        written = super().write(text)
        if text:  # click tries the stream with nothing
            self._ready(text.rstrip())
        return written


def work(order: Order, ready: Callable[[str], None]) -> None:
    if "log" in order:
        with Path(order["log"]).open("w") as log:
            os.dup2(log.fileno(), sys.stderr.fileno())
    if "words" in order:
        os.environ.clear()
        os.environ.update(order["environ"])
        with redirect_stdout(_Output(ready)):
            main(order["words"])
    coded_server.install(CROP_BYTES)
    for part in order.get("without", ()):
        WITHOUT[part]()
    if "files" in order:
        resource.setrlimit(resource.RLIMIT_NOFILE, (order["files"], order["files"]))
    if "log" in order:
        log_to_stderr(quiet=False)
    settings = load_settings(environ={}, flags={**FLAGS, **order.get("flags", {})})
    serve(Path(order["store"]), settings, lambda listening: ready(listening.url))


if __name__ == "__main__":
    set_threads(1)
    load = pipeline.serve.server.load_extractor
    pipeline.serve.server.load_extractor = lambda *arguments: remembering(load(*arguments))
    int8_filter.load_kernels()  # compiled here once, not in every child
    answer_orders(work)
