"""Servers over stores of coded faces, as children of a process that has everything imported.

An order is {"store", "without", "flags", "files", "log"}: `without` names the parts of durability that the server
leaves out, `flags` are more settings, `files` is the limit on open files, `log` the file of its log. A server is ready
with its URL.
"""

from __future__ import annotations

import os
import resource
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import coded_server
import torch
import uvicorn.lifespan.on  # what uvicorn imports by name only when it starts
import uvicorn.loops.auto  # noqa: F401

import pipeline.store.catalog.connection
from pipeline.cli.serve import log_to_stderr
from pipeline.config import load_settings
from pipeline.matching import int8_filter
from pipeline.serve.server import serve
from pipeline.store.catalog.connection import connect
from tests.forking import Order, answer_orders

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


def work(order: Order, ready: Callable[[str], None]) -> None:
    for part in order.get("without", ()):
        WITHOUT[part]()
    if "files" in order:
        resource.setrlimit(resource.RLIMIT_NOFILE, (order["files"], order["files"]))
    if "log" in order:
        with Path(order["log"]).open("w") as log:
            os.dup2(log.fileno(), sys.stderr.fileno())
        log_to_stderr(quiet=False)
    settings = load_settings(environ={}, flags={**FLAGS, **order.get("flags", {})})
    serve(Path(order["store"]), settings, lambda listening: ready(listening.url))


if __name__ == "__main__":
    torch.set_num_threads(1)
    int8_filter.prepare()  # compiled here once, not in every child
    coded_server.install(CROP_BYTES)
    answer_orders(work)
