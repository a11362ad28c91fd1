"""Time of each stage over all threads, network calls, waits and queue depths. Always measured: it costs a few clock
readings per image."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

Clock = Callable[[], float]

# The stages of a run, in order.
SCAN: Final = "scan"
LOAD: Final = "load"
READ: Final = "read"
HASH: Final = "hash"
DECODE: Final = "decode"
JPEGS: Final = "jpegs"  # decoding on the device
IMAGES: Final = "images"  # copying to the device
PNET: Final = "pnet"
RNET: Final = "rnet"
ONET: Final = "onet"
CROP: Final = "crop"
QUALITY: Final = "quality"
EMBED: Final = "embed"
SECOND_MODEL: Final = "second model"  # in a store with two: crops, quality and embeddings
ENCODE: Final = "encode"  # pictures to store, unless `decide` does it
WRITE: Final = "write"  # shards
DECIDE: Final = "decide"  # with pictures of new references, and commits

DETECTION: Final = (PNET, RNET, ONET)
MODEL_STAGES: Final = (IMAGES, *DETECTION, CROP, QUALITY, EMBED, SECOND_MODEL)
DECODING, NETWORKS = "decoding", "networks"
# part -> group -> stages, in a run's order. Parts have separate threads.
PARTS: Final[Mapping[str, Mapping[str, tuple[str, ...]]]] = {
    "scan": {"hashing": (SCAN,)},
    "models": {"loading": (LOAD,)},
    DECODING: {"reading": (READ, HASH), "decoding": (DECODE,)},
    NETWORKS: {
        "decoding": (JPEGS,),
        "detection": (IMAGES, *DETECTION),
        "crops and quality": (CROP, QUALITY, ENCODE),
        "embedding": (EMBED, SECOND_MODEL),
    },
    "store": {"writing": (WRITE,), "deciding": (DECIDE,)},
}

# What workers can wait for.
FOR_IMAGES: Final = "images"  # not decoded yet
FOR_MODELS: Final = "models"  # being loaded


class CallCounts:
    """Number of calls, such as of a network, and of their inputs (canvases, levels, crops, images). Thread-safe."""

    def __init__(self) -> None:
        self.calls = 0
        self.inputs = 0
        self._lock = threading.Lock()

    def add(self, inputs: int) -> None:
        with self._lock:
            self.calls += 1
            self.inputs += inputs


@dataclass
class StageTime:
    """Wall-clock seconds over all threads, including waits for a core or the disk."""

    calls: int = 0
    seconds: float = 0.0


class Gauge:
    """A varying number: its maximum, and its mean from first to last change."""

    def __init__(self, clock: Clock = time.perf_counter) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._value = 0
        self._area = 0.0  # up to the last change
        self._begun: float | None = None
        self.changed = 0.0  # time of the last change
        self.most = 0

    def add(self, number: int) -> None:
        """Adds `number`, which may be negative."""
        with self._lock:
            now = self._clock()
            if self._begun is None:
                self._begun = self.changed = now
            self._area += self._value * (now - self.changed)
            self.changed = now
            self._value += number
            self.most = max(self.most, self._value)

    def area(self) -> float:
        """The integral of value x seconds up to now."""
        with self._lock:
            return self._area + (self._value * (self._clock() - self.changed) if self._value else 0.0)

    @property
    def mean(self) -> float:
        """0 before the second change."""
        with self._lock:
            seconds = 0.0 if self._begun is None else self.changed - self._begun
            return self._area / seconds if seconds else 0.0


class StageTimes:
    """Measurements of one command. Thread-safe.

    If `synchronize` waits until the device is idle, a stage's time covers the device's work. By default times are the
    host's: the first stage that needs a result waits for all earlier work.
    """

    def __init__(self, synchronize: Callable[[], None] = lambda: None, clock: Clock = time.perf_counter) -> None:
        self._synchronize = synchronize
        self._clock = clock
        self._lock = threading.Lock()
        self.stages: dict[str, StageTime] = {}
        self.images_waiting = Gauge(clock)  # decoded, not in a batch yet
        self.batches_waiting = Gauge(clock)  # complete, no worker yet
        self.workers_busy = Gauge(clock)
        self.held_back_s = 0.0  # of decoders, while enough images waited
        self.idle_s = 0.0  # of workers without a batch, until the last batch ends
        self.idle_for: dict[str, float] = {FOR_IMAGES: 0.0, FOR_MODELS: 0.0}  # of `idle_s`, by what was missing

    @contextmanager
    def stage(self, name: str, calls: int = 1) -> Iterator[None]:
        """Times the block as `calls` calls of the stage."""
        begun = self._clock()
        try:
            yield
        finally:
            self.add(name, calls, self._clock() - begun)

    @contextmanager
    def on_device(self, name: str) -> Iterator[None]:
        """`stage` for work on the device."""
        self._synchronize()
        with self.stage(name):
            yield
            self._synchronize()

    def seconds(self, *names: str) -> float:
        """The sum over these stages."""
        with self._lock:
            return sum((self.stages[name].seconds for name in names if name in self.stages), 0.0)

    def by_stage(self) -> dict[str, tuple[int, float]]:
        """Calls and seconds of each stage so far."""
        with self._lock:
            return {name: (stage.calls, stage.seconds) for name, stage in self.stages.items()}

    def add(self, name: str, calls: int, seconds: float) -> None:
        """Counts calls of a stage with `seconds` in total."""
        with self._lock:
            stage = self.stages.setdefault(name, StageTime())
            stage.calls += calls
            stage.seconds += seconds

    @contextmanager
    def held_back(self) -> Iterator[None]:
        """Around a decoder's wait until fewer images are waiting."""
        begun = self._clock()
        yield
        with self._lock:
            self.held_back_s += self._clock() - begun

    @contextmanager
    def waiting(self, cause: str, workers: int) -> Iterator[None]:
        """Around a wait for images or models (`cause`) by the idle ones of `workers` workers."""
        begun, area = self._clock(), self.workers_busy.area()
        try:
            yield
        finally:
            idle = self._idle(workers, begun, area, self._clock())
            with self._lock:
                self.idle_for[cause] += idle

    @contextmanager
    def worker(self) -> Iterator[None]:
        """Around a worker's work on a batch."""
        self.workers_busy.add(1)
        try:
            yield
        finally:
            self.workers_busy.add(-1)

    @contextmanager
    def engine(self, workers: int) -> Iterator[None]:
        """Around the engine's work with `workers` workers."""
        begun, area = self._clock(), self.workers_busy.area()
        try:
            yield
        finally:
            idle = self._idle(workers, begun, area, max(begun, self.workers_busy.changed))
            with self._lock:
                self.idle_s += idle

    def _idle(self, workers: int, begun: float, area: float, end: float) -> float:
        """Seconds of workers without a batch from `begun` (`workers_busy.area()` was `area`) to `end`."""
        return max(0.0, workers * (end - begun) - (self.workers_busy.area() - area))
