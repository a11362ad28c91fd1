"""A network's convolutions, pools and sums in the compiled loops of `winograd_kernels`, from one value to another."""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Final

import numpy as np

from pipeline.models.layers import Size, Step, Unfit, sizes_of
from pipeline.models.loop_memory import Memory, Room, View
from pipeline.models.loop_steps import ReadyStep
from pipeline.models.onnx_graph import Array
from pipeline.runtime.optional_numba import if_compiled

# Pictures that go through a part of the network together: fewer where they are large, or they would not stay in the
# cache from one layer to the next, and many where they are small, or weights would be read more often than need be.
_PIXELS_TOGETHER: Final = 2500
_MOST_TOGETHER: Final = 16


@functools.cache
def load_kernels() -> ModuleType | None:
    """The compiled loops; None without a numba that works with this Python and NumPy.

    The first call compiles them, some ten seconds, or loads what an earlier process compiled.
    """
    return if_compiled(_import)


def _import() -> ModuleType:
    from pipeline.models import winograd_kernels

    return winograd_kernels


class Loops:
    """Steps in an order of evaluation, from the value `source` to the value `target`.

    Several threads may call it at once; each keeps its own memory, of the size that some pictures need however many
    there are.
    """

    def __init__(self, steps: Sequence[Step], source: str, target: str, shape: tuple[int, int, int]) -> None:
        """`shape`: of each picture, [c, h, w]. Raises Unfit."""
        kernels = load_kernels()
        if kernels is None:
            raise Unfit("the compiled loops need numba")
        self._kernels, self._shape = kernels, shape
        self._source, self._target = source, target
        self._sizes = sizes_of(steps, source, (shape[1], shape[2], shape[0]))
        self._parts = _parts([ReadyStep(step, self._sizes, kernels) for step in steps], source, target, self._sizes)
        readers = [ready for part in self._parts for ready in part.steps if source in ready.step.reads]
        self._enters = not any(ready.unfolds for ready in readers)
        if not self._enters and len(readers) > 1:
            raise Unfit(f"{source}, which has few channels, is read twice")
        self._own = threading.local()

    def __call__(self, x: Array) -> Array:
        """[n, c, h, w] float32 -> [n, o, h', w']. Raises ValueError for pictures of another shape."""
        if x.shape[1:] != self._shape:
            raise ValueError(f"pictures must be {list(self._shape)}, not {list(x.shape[1:])}")
        rows, columns, channels = self._sizes[self._target]
        out = np.empty((len(x), channels, rows, columns), np.float32)
        memory, together = self._memory(), self._parts[-1].together
        for first in range(0, len(x), together):
            self._fill(len(self._parts) - 1, x[first : first + together], memory)
            self._kernels.leave(memory.pictures(self._target), out[first : first + together])
        return out

    def _fill(self, place: int, x: Array, memory: Memory) -> None:
        """The answers of the part `place` to the pictures x."""
        part = self._parts[place]
        for first in range(0, len(x), part.together):
            some = x[first : first + part.together]
            if place:
                self._fill(place - 1, some, memory)
            elif self._enters:
                self._kernels.enter(some, memory.pictures(self._source))
            view = View(memory, part.target, first, some)
            for step in part.steps:
                step(view, len(some))

    def _memory(self) -> Memory:
        """This thread's."""
        found: Memory | None = getattr(self._own, "memory", None)
        if found is None:
            rooms = [part.room() for part in self._parts]
            # Products are made of whole blocks of rows.
            found = self._own.memory = Memory(self._sizes, rooms, spare=self._kernels.ROWS)
        return found


@dataclass(frozen=True)
class _Part:
    """Steps up to a value that is all that is needed behind it, so that pictures can go through them in turn."""

    steps: tuple[ReadyStep, ...]
    target: str
    together: int

    def room(self) -> Room:
        steps, needs = zip(*((ready.step, ready.needs) for ready in self.steps), strict=True)
        return Room(steps, needs, self.target, self.together)


def _parts(steps: Sequence[ReadyStep], source: str, target: str, sizes: Mapping[str, Size]) -> list[_Part]:
    """The steps, cut wherever one value is all that is needed later, and more pictures go through what follows."""
    parts: list[_Part] = []
    begin = 0
    for end in range(1, len(steps) + 1):
        later = {name for ready in steps[end:] for name in ready.step.reads} | {target}
        needed = later & {source, *(ready.step.target for ready in steps[:end])}
        if len(needed) > 1 or source in needed:
            continue
        (reached,) = needed
        part = _Part(tuple(steps[begin:end]), reached, _together(steps[begin:end], sizes))
        # Steps whose values nobody reads end where the part before them did.
        if parts and (parts[-1].together >= part.together or parts[-1].target == reached):
            before = parts.pop()
            part = _Part((*before.steps, *part.steps), reached, before.together)
        parts.append(part)
        begin = end
    return parts


def _together(steps: Iterable[ReadyStep], sizes: Mapping[str, Size]) -> int:
    areas = [sizes[name][0] * sizes[name][1] for ready in steps for name in (*ready.step.reads, ready.step.target)]
    return max(1, min(_MOST_TOGETHER, _PIXELS_TOGETHER // max(areas)))
