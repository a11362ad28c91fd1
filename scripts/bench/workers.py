"""Processes that wait with their models loaded, so that variants of a benchmark can take turns, each alone at work.

A variant is one chain in one or more processes. Its processes take the next list of files from one counter, so that
they wait for each other only at the end. A chain that takes lists long before it works on them gets lists of its own.
A turn is timed from the signal to the last answer; its CPU time and peak memory are those of the processes and of their
children.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol

import psutil

from pipeline.runtime.device import driver_uuid, resolve_device
from pipeline.runtime.device_meter import DeviceMeter
from pipeline.runtime.threads import set_threads

_PREPARE, _GO, _RESULTS, _CALL = "prepare", "go", "results", "call"
_START_S = 300.0  # for a process to import torch and load its models on a busy machine


class Chain(Protocol):
    """Takes lists of files, then, as often as asked, makes something of each file of the lists of given numbers."""

    def prepare(self, lists: Sequence[Sequence[Path]]) -> None: ...
    def __call__(self, numbers: Iterable[int]) -> Mapping[Path, Sized]: ...


@dataclass(frozen=True)
class Variant:
    """How a chain is run. `make(threads, *arguments)` is called in each process, so it must be importable."""

    make: Callable[..., Chain]
    processes: int
    threads: int  # of the networks, in each process
    arguments: tuple[Any, ...] = ()
    environment: Mapping[str, str] | None = None
    reads_ahead: bool = False  # then process k of n has the lists k, k + n, ...


@dataclass(frozen=True)
class Turn:
    """What one turn of one process (or of all of a variant) took."""

    cpu_s: float
    peak_rss_bytes: int  # shared pages count in each process
    peak_vram_bytes: int  # as torch reserved it; 0 without CUDA
    made: int  # faces in all files together


class Workers:
    """The processes of one variant, which start at once; a context manager that ends them. Calling it is one turn."""

    def __init__(self, variant: Variant, device: str = "cpu") -> None:
        self.variant = variant
        self.turns: list[Turn] = []
        self.device_busy_shares: list[float] = []  # of the turns, on CUDA
        self._device_uuid = driver_uuid(resolve_device(device))
        context = multiprocessing.get_context("spawn")
        self._counter = context.Value("q", 0)
        self._pipes: list[Connection] = []
        self._processes = []
        environment = {"OMP_NUM_THREADS": str(variant.threads), **(variant.environment or {})}
        with _environment(environment):
            for place in range(variant.processes):
                ours, theirs = context.Pipe()
                process = context.Process(target=_work, args=(theirs, self._counter, variant, place), daemon=False)
                process.start()
                theirs.close()
                self._pipes.append(ours)
                self._processes.append(process)

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        for pipe in self._pipes:
            pipe.close()  # the end of the process's orders
        for process in self._processes:
            process.join()

    def wait(self) -> None:
        """Until all have loaded their models. Raises RuntimeError where one could not, TimeoutError."""
        for pipe in self._pipes:
            if not pipe.poll(_START_S):
                raise TimeoutError(f"no answer of a worker within {_START_S:.0f} s")
            _answer(pipe)

    def prepare(self, lists: Sequence[Sequence[Path]]) -> None:
        """Hands the lists of files to every process, and forgets the turns so far."""
        self.turns, self.device_busy_shares = [], []
        self._all(_PREPARE, lists)

    def __call__(self) -> None:
        """One turn over all lists."""
        self._counter.value = 0
        with DeviceMeter(self._device_uuid) as meter:
            turns = self._all(_GO)
        if meter.busy_share is not None:
            self.device_busy_shares.append(meter.busy_share)
        sums = (sum(getattr(turn, name) for turn in turns) for name in Turn.__dataclass_fields__)
        self.turns.append(Turn(*sums))

    def results(self) -> dict[Path, Any]:
        """What the last turn made of each file."""
        return {file: made for part in self._all(_RESULTS) for file, made in part.items()}

    def call(self, run: Callable[..., Any], *arguments: Any) -> Any:
        """`run(chain, *arguments)` in the first process; importable, like its answer."""
        self._pipes[0].send((_CALL, (run, arguments)))
        return _answer(self._pipes[0])

    def _all(self, order: str, argument: object = None) -> list[Any]:
        for pipe in self._pipes:
            pipe.send((order, argument))
        return [_answer(pipe) for pipe in self._pipes]


def _answer(pipe: Connection) -> Any:
    """A worker's answer. Raises RuntimeError with its message where it failed, EOFError where it died."""
    ok, value = pipe.recv()
    if not ok:
        raise RuntimeError(f"a worker failed: {value}")
    return value


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Sets variables that a process reads when it starts; those that are set already stay."""
    new = {name: value for name, value in values.items() if name not in os.environ}
    os.environ.update(new)
    try:
        yield
    finally:
        for name in new:
            del os.environ[name]


def _work(pipe: Connection, counter: Any, variant: Variant, place: int) -> None:
    """A worker's life: it answers orders until the other end is closed."""

    state = _State(counter, variant, place)
    try:
        set_threads(variant.threads)
        state.chain = variant.make(variant.threads, *variant.arguments)
        pipe.send((True, None))
        for order, argument in _orders(pipe):
            pipe.send((True, getattr(state, order)(argument)))
    except Exception as exc:
        pipe.send((False, f"{type(exc).__name__}: {exc}"))
        raise


def _orders(pipe: Connection) -> Iterator[tuple[str, Any]]:
    while True:
        try:
            yield pipe.recv()
        except EOFError:
            return


class _State:
    """What a worker holds, and the orders it knows."""

    chain: Chain

    def __init__(self, counter: Any, variant: Variant, place: int) -> None:
        self._counter = counter
        self._own = (place, variant.processes) if variant.reads_ahead else None
        self._count = 0
        self._found: Mapping[Path, Sized] = {}

    def prepare(self, lists: Sequence[Sequence[Path]]) -> None:
        self._count = len(lists)
        self.chain.prepare(lists)

    def go(self, _: None) -> Turn:
        self._found = {}
        cpu = _cpu_seconds()
        _reset_peaks()
        self._found = self.chain(self._numbers())
        made = sum(map(len, self._found.values()))
        return Turn(_cpu_seconds() - cpu, _peak_rss(), _peak_vram(), made)

    def results(self, _: None) -> Mapping[Path, Sized]:
        return self._found

    def call(self, what: tuple[Callable[..., Any], tuple[Any, ...]]) -> Any:
        run, arguments = what
        return run(self.chain, *arguments)

    def _numbers(self) -> Iterator[int]:
        """This process's own lists; or the next list that no process has taken, until there is none."""
        if self._own is not None:
            place, processes = self._own
            yield from range(place, self._count, processes)
            return
        while True:
            with self._counter.get_lock():
                number = self._counter.value
                self._counter.value = number + 1
            if number >= self._count:
                return
            yield number


def _family() -> list[psutil.Process]:
    own = psutil.Process()
    return [own, *own.children(recursive=True)]


def _cpu_seconds() -> float:
    """Of this process, its children, and those of them that have ended."""
    return sum(sum(process.cpu_times()[:4]) for process in _family())


def _reset_peaks() -> None:
    for process in _family():
        with suppress(OSError):  # where it is forbidden, the peak is that of the process's life
            Path(f"/proc/{process.pid}/clear_refs").write_text("5", "ascii")  # resets VmHWM: proc(5)
    cuda = _cuda_in_use()
    if cuda is not None:
        cuda.reset_peak_memory_stats()


def _peak_rss() -> int:
    return sum(_status_bytes(process.pid, "VmHWM") for process in _family())


def _status_bytes(pid: int, name: str) -> int:
    lines = Path(f"/proc/{pid}/status").read_text("ascii", errors="replace").splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


def _peak_vram() -> int:
    cuda = _cuda_in_use()
    return 0 if cuda is None else int(cuda.max_memory_reserved())


def _cuda_in_use() -> Any:
    """torch.cuda, if this process has begun to use it."""
    import torch

    cuda: Any = torch.cuda
    return cuda if cuda.is_initialized() else None
