"""The two sides of a comparison in one process: what they are given, and what their turns took and found."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import torch

from pipeline.config import Settings
from pipeline.evaluation.bench.chain import FacepipeChain
from pipeline.evaluation.bench.parity import Extracted
from pipeline.evaluation.bench.reference import LIST_IMAGES, LIST_PIXELS, ReferenceChain, equal_sized
from pipeline.evaluation.bench.report import SideReport
from pipeline.models.weights import ResolvedWeights
from pipeline.runtime.device import set_threads, synchronize

_WARM_UP_IMAGES = 8


class Chain(Protocol):
    """Takes lists of files, then, as often as asked, finds the faces in the lists of given numbers."""

    def prepare(self, lists: Sequence[Sequence[Path]]) -> None: ...
    def __call__(self, numbers: Iterable[int]) -> Mapping[Path, Extracted]: ...


class Side:
    """A chain with its models loaded, and the photos in lists as it takes them."""

    def __init__(self, chain: Chain, device: torch.device, lists: Sequence[Sequence[Path]]) -> None:
        self._chain = chain
        self._device = device
        self._lists = lists
        self.seconds: list[float] = []  # of each turn
        self.found: Mapping[Path, Extracted] = {}  # in the last turn

    def warm_up(self) -> None:
        """A few photos, of as many lists as there are: the first calls of all code, untimed."""
        lists = self._lists[:_WARM_UP_IMAGES]
        images = -(-_WARM_UP_IMAGES // len(lists))
        self._chain.prepare([files[:images] for files in lists])
        self._run(range(len(lists)))
        self._chain.prepare(self._lists)

    def turn(self, advance: Callable[[int], None]) -> None:
        """All photos once, timed from an idle device to an idle device; `advance(n)` as photos are done. `warm_up`
        comes first."""
        synchronize(self._device)
        begun = time.perf_counter()
        self.found = self._run(self._advancing(advance))
        synchronize(self._device)
        self.seconds.append(time.perf_counter() - begun)

    def _run(self, numbers: Iterable[int]) -> Mapping[Path, Extracted]:
        return self._chain(numbers)

    def _advancing(self, advance: Callable[[int], None]) -> Iterator[int]:
        for number, files in enumerate(self._lists):
            yield number
            advance(len(files))

    def report(self) -> SideReport:
        faces, median = sum(map(len, self.found.values())), statistics.median(self.seconds)
        return SideReport(self.seconds, len(self.found) / median, faces / median, faces)


class ReferenceSide(Side):
    """A side that has torch to itself: whatever facepipe sets in this process does not hold in its turns."""

    def __init__(self, chain: Chain, device: torch.device, lists: Sequence[Sequence[Path]], threads: int) -> None:
        super().__init__(chain, device, lists)
        self._threads = threads

    def _run(self, numbers: Iterable[int]) -> Mapping[Path, Extracted]:
        with torch_as_it_comes(self._threads):
            return super()._run(numbers)


@contextmanager
def torch_as_it_comes(threads: int) -> Iterator[None]:
    """torch as another program would find it: `threads` threads for every operation (0: one per core), and on CUDA
    convolutions in TF32."""
    before = torch.get_num_threads()
    set_threads(threads)
    try:
        with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=False, allow_tf32=True):
            yield
    finally:
        torch.set_num_threads(before)


def facepipe_side(chain: FacepipeChain, device: torch.device, files: Sequence[Path]) -> Side:
    """The photos in shards, as a run has them."""
    rows = chain.settings.run.shard_rows
    return Side(chain, device, [files[start : start + rows] for start in range(0, len(files), rows)])


def reference_side(
    weights: ResolvedWeights, settings: Settings, device: torch.device, files: Sequence[Path]
) -> ReferenceSide:
    """The photos in lists of one size."""
    chain = ReferenceChain(weights, settings.detect, settings.align.margin_px, str(device))
    return ReferenceSide(chain, device, equal_sized(files, LIST_IMAGES, LIST_PIXELS), settings.run.threads)
