"""The two sides of a comparison in one process: each has its models loaded, and the photos in lists of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import torch

from pipeline.config import Settings
from pipeline.evaluation.bench.facepipe import FacepipeChain
from pipeline.evaluation.bench.parity import Extracted
from pipeline.evaluation.bench.reference import LIST_IMAGES, LIST_PIXELS, ReferenceChain, equal_sized
from pipeline.models.weights import ResolvedWeights
from pipeline.runtime.threads import set_threads

_WARM_UP_IMAGES = 8


class Chain(Protocol):
    """Takes lists of files once; each call then extracts the faces of the lists with these numbers."""

    def prepare(self, lists: Sequence[Sequence[Path]]) -> None: ...
    def __call__(self, numbers: Iterable[int]) -> Mapping[Path, Extracted]: ...


class Side:
    """A chain and its lists of photos. A call is one turn over all photos; `advance(n)` reports n photos as done."""

    def __init__(
        self,
        chain: Chain,
        lists: Sequence[Sequence[Path]],
        advance: Callable[[int], None] = lambda _count: None,
    ) -> None:
        self._chain = chain
        self._lists = lists
        self._advance = advance
        self.faces: Mapping[Path, Extracted] = {}  # of the last turn

    def warm_up(self) -> None:
        """Runs once over a few photos, from as many lists as possible, and prepares the lists of the turns."""
        lists = self._lists[:_WARM_UP_IMAGES]
        images = -(-_WARM_UP_IMAGES // len(lists))
        self._chain.prepare([files[:images] for files in lists])
        self._run(range(len(lists)))
        self._chain.prepare(self._lists)

    def __call__(self) -> None:
        """One turn. Call `warm_up` before."""
        self.faces = self._run(self._numbers())

    def _run(self, numbers: Iterable[int]) -> Mapping[Path, Extracted]:
        return self._chain(numbers)

    def _numbers(self) -> Iterator[int]:
        for number, files in enumerate(self._lists):
            yield number
            self._advance(len(files))


class ReferenceSide(Side):
    """A side that runs with torch's defaults, whatever facepipe has set in this process."""

    def __init__(
        self,
        chain: Chain,
        lists: Sequence[Sequence[Path]],
        advance: Callable[[int], None] = lambda _count: None,
        *,
        threads: int,
    ) -> None:
        super().__init__(chain, lists, advance)
        self._threads = threads

    def _run(self, numbers: Iterable[int]) -> Mapping[Path, Extracted]:
        with default_torch(self._threads):
            return super()._run(numbers)


@contextmanager
def default_torch(threads: int) -> Iterator[None]:
    """torch with its defaults: `threads` threads for every operation (0: one per core), on CUDA TF32 convolutions."""
    before = torch.get_num_threads()
    set_threads(threads)
    try:
        with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=False, allow_tf32=True):
            yield
    finally:
        torch.set_num_threads(before)


def facepipe_side(chain: FacepipeChain, files: Sequence[Path], advance: Callable[[int], None]) -> Side:
    """The photos in shards, as a run has them."""
    rows = chain.settings.run.shard_rows
    return Side(chain, [files[start : start + rows] for start in range(0, len(files), rows)], advance)


def reference_side(
    weights: ResolvedWeights,
    settings: Settings,
    device: torch.device,
    files: Sequence[Path],
    advance: Callable[[int], None],
) -> ReferenceSide:
    """The photos in lists of one size."""
    chain = ReferenceChain(weights, settings.detect, settings.align.margin_px, str(device))
    lists = equal_sized(files, LIST_IMAGES, LIST_PIXELS)
    return ReferenceSide(chain, lists, advance, threads=settings.run.threads)
