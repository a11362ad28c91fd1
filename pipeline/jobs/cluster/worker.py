"""The actor on a node: loads the models, extracts shards and writes them into the shard folder.

The engine processes the shards of concurrent calls as one stream, reading one while the networks work on another.
"""

from __future__ import annotations

import hashlib
import os
import platform
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from queue import Empty, Queue
from typing import Any, TypeVar

import pyarrow as pa

import pipeline
from pipeline.config import Settings
from pipeline.errors import ClusterFailed, FacepipeError
from pipeline.extraction.engine import NETWORK_THREADS, LocalEngine
from pipeline.extraction.extractor import BatchExtractor
from pipeline.extraction.images.decode import Decoder
from pipeline.extraction.images.pixel_hash import PixelHash
from pipeline.jobs.models import load_extractor, work_of
from pipeline.jobs.run_report import WorkDone
from pipeline.jobs.wire import ARROW, pack_error, unpack, unpack_error
from pipeline.runtime.allocator import configure_allocator
from pipeline.runtime.device import describe, finish
from pipeline.runtime.stage_times import LOAD, WRITE, StageTimes
from pipeline.store import ShardFolder, StoreIdentity

T = TypeVar("T")


@lru_cache(maxsize=1)
def versions() -> dict[str, str]:
    """The versions of everything that affects the results. facepipe's includes a hash of its code."""
    import ray

    digest = hashlib.sha256()
    folder = Path(pipeline.__path__[0])
    for file in sorted(folder.rglob("*.py")):
        digest.update(file.relative_to(folder).as_posix().encode() + file.read_bytes())
    python = ".".join(platform.python_version_tuple()[:2])
    own = f"{version('facepipe')} ({digest.hexdigest()[:12]})"
    return {"Python": python, "Ray": ray.__version__, "facepipe": own}


@dataclass(frozen=True)
class Order:
    """What every worker of a run needs."""

    settings: Settings  # with the worker's number of threads
    identity: StoreIdentity = field(repr=False)
    other: StoreIdentity | None = field(repr=False)  # of a second model that also embeds the faces
    store: Path  # for messages
    folder: ShardFolder
    metadata: dict[str, Any]  # of each shard: identifies it, and has the run's id
    synchronize: bool = False  # for a profile: stages wait for the device
    sign: str = ""  # of the folder, set for the first worker
    versions: dict[str, str] = field(default_factory=versions)  # required on every node


@dataclass(frozen=True)
class Node:
    """A node's name and versions."""

    name: str
    versions: dict[str, str]


@dataclass(frozen=True)
class Done:
    """A shard is in the folder; with its worker's totals."""

    work: WorkDone
    stages: dict[str, tuple[int, float]]  # calls and seconds
    cpu_s: float


@dataclass(frozen=True)
class Failed:
    """A known failure, packed by `pack_error`: Ray would wrap the error in a class of its own."""

    node: str
    error: bytes

    def raised(self) -> FacepipeError:
        """The error, with the node in its message."""
        error = unpack_error(self.error)
        error.args = (f"{error} This happened on the Ray node {self.node}.",)
        return error


class ShardWorker:
    """The actor. Call `start`, then any number of concurrent `extract`."""

    def __init__(self, order: Order) -> None:
        configure_allocator()
        self._order = order
        self._node = f"{socket.gethostname()} (process {os.getpid()})"
        self._times = StageTimes(self._finish) if order.synchronize else StageTimes()
        self._decoder = Decoder(order.settings.decode)
        self._extractor: BatchExtractor | None = None
        self._device: str | None = None
        self._waiting: Queue[tuple[int, pa.Table]] = Queue()
        self._extracted: dict[int, Future[pa.Table]] = {}
        self._lock = threading.Lock()
        threading.Thread(target=self._work, name="shards", daemon=True).start()

    def start(self) -> Node | Failed:
        """Checks the shard folder and loads the models, whose weights' hash must be the store's."""
        return self._answered(self._start)

    def extract(self, shard: int, manifest: bytes) -> Done | Failed:
        """Extracts a shard with these manifest rows into the shard folder."""
        return self._answered(lambda: self._extract(shard, unpack(ARROW, manifest, None)))

    def _answered(self, call: Callable[[], T]) -> T | Failed:
        try:
            return call()
        except FacepipeError as error:
            return Failed(self._node, pack_error(error))

    def _start(self) -> Node:
        order = self._order
        if versions() != order.versions:  # before anything that may differ between versions
            return Node(self._node, versions())
        if not order.folder.sees(order.sign):
            detail = f"{self._node} does not see {order.folder.address}; give --shard-folder one that all nodes share"
            raise ClusterFailed(detail=detail)
        with self._times.stage(LOAD):
            self._extractor = load_extractor(order.settings, order.identity, order.store, NETWORK_THREADS, order.other)
        self._device = describe(self._extractor.device)  # describe() depends on this thread's number of threads
        return Node(self._node, versions())

    def _extract(self, shard: int, rows: pa.Table) -> Done:
        future: Future[pa.Table] = Future()
        with self._lock:
            self._extracted[shard] = future
            self._waiting.put((shard, rows))
        table = future.result()
        with self._times.stage(WRITE):
            if not self._order.folder.sees(self._order.sign):  # the driver was killed, and may have continued elsewhere
                raise ClusterFailed(detail="the command that its workers belong to has ended")
            self._order.folder.put(shard, table, self._order.metadata)
        work = replace(work_of(self._decoder, self._extractor), device=self._device)
        return Done(work, self._times.by_stage(), time.process_time())

    def _work(self) -> None:
        order = self._order
        pixel_hash = PixelHash(order.identity.pixel_key)
        size = order.identity.embedding_size
        engine = LocalEngine(order.settings, size, self._decoder, pixel_hash, self._loaded, self._times)
        while True:
            first = self._waiting.get()
            try:
                for shard, table in engine.run_shards(self._stream(first), lambda _: None):
                    with self._lock:
                        future = self._extracted.pop(shard)
                    future.set_result(table)
            except BaseException as exc:  # noqa: BLE001  whatever it is, the calls must not wait for ever
                with self._lock:
                    failed, self._extracted = self._extracted, {}
                    while not self._waiting.empty():
                        self._waiting.get()
                for future in failed.values():
                    future.set_exception(exc)

    def _stream(self, first: tuple[int, pa.Table]) -> Iterator[tuple[int, pa.Table]]:
        """Yields waiting shards and ends if there are none: only then does the engine return the last ones."""
        yield first
        while True:
            try:
                yield self._waiting.get_nowait()
            except Empty:
                return

    def _loaded(self) -> BatchExtractor:
        if self._extractor is None:
            raise RuntimeError("a worker is started before it extracts")
        return self._extractor

    def _finish(self) -> None:
        if self._extractor is not None:
            finish(self._extractor.detector.networks.device)
