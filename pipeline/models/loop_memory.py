"""The memory that the compiled loops work in: one thread's, used again from call to call."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from pipeline.models.layers import Size, Step
from pipeline.models.onnx_graph import Array

_LINE: Final = 16  # numbers in a line of the cache


@dataclass(frozen=True)
class Needs:
    """How many numbers of scratch a step takes; what it needs for each picture that goes through it together."""

    spectra: int = 0
    products: int = 0
    tile: int = 0
    each: int = 0


@dataclass(frozen=True)
class Room:
    """Steps that `together` pictures go through at a time, up to the value `target`."""

    steps: Sequence[Step]
    needs: Sequence[Needs]
    target: str
    together: int


def zeros(*shape: int) -> Array:
    """float32, from a bound of the cache's lines on: a vector that lies in two of them takes twice as long to read."""
    size = math.prod(shape)
    room = np.zeros(size + _LINE, np.float32)
    start = -(room.ctypes.data // room.itemsize) % _LINE
    return room[start : start + size].reshape(shape)


class Memory:
    """The values' pixels [n, c], one below the other, and scratch. Values that are not needed at the same time share
    their memory, so that as much as possible stays in the cache."""

    def __init__(self, sizes: Mapping[str, Size], rooms: Sequence[Room], spare: int) -> None:
        """`spare`: pixels behind the last picture, which may be read and written."""
        self.sizes = sizes
        pictures: dict[str, int] = {}
        for room in reversed(rooms):  # what is between two of them, the later one reads
            for step in room.steps:
                for name in (*step.reads, step.target):
                    pictures.setdefault(name, room.together)
        shapes = {name: (pictures[name] * sizes[name][0] * sizes[name][1] + spare, sizes[name][2]) for name in pictures}
        numbers = {name: math.prod(shape) for name, shape in shapes.items()}
        homes = homes_of([step for room in rooms for step in room.steps], [room.target for room in rooms], numbers)
        most: dict[int, int] = {}
        for name, home in homes.items():
            most[home] = max(most.get(home, 0), numbers[name])
        pieces = {home: zeros(number) for home, number in most.items()}
        self._values = {name: pieces[homes[name]][: numbers[name]].reshape(shape) for name, shape in shapes.items()}
        needs = [(need, room.together) for room in rooms for need in room.needs]
        self.spectra = zeros(max(max(need.spectra, need.each * together) for need, together in needs))
        self.products = zeros(max(need.products for need, _ in needs))
        self.tile = zeros(max(need.tile for need, _ in needs))

    def pixels(self, name: str, first: int = 0) -> Array:
        """[>= n h w, c] of a value, from picture `first` on."""
        rows, columns, _ = self.sizes[name]
        return self._values[name][first * rows * columns :]

    def pictures(self, name: str, first: int = 0) -> Array:
        """[n, h, w, c] of a value, from picture `first` on."""
        rows, columns, channels = self.sizes[name]
        pixels = self.pixels(name, first)
        number = len(pixels) // (rows * columns)
        return pixels[: number * rows * columns].reshape(number, rows, columns, channels)


class View:
    """What steps see of a thread's memory: pictures that were `given`, and of the value `target` those from `first`
    on."""

    def __init__(self, memory: Memory, target: str, first: int, given: Array) -> None:
        self.given, self.sizes = given, memory.sizes
        self.spectra, self.products, self.tile = memory.spectra, memory.products, memory.tile
        self._memory, self._first = memory, {target: first}

    def pixels(self, name: str) -> Array:
        return self._memory.pixels(name, self._first.get(name, 0))

    def pictures(self, name: str) -> Array:
        return self._memory.pictures(name, self._first.get(name, 0))


def homes_of(steps: Sequence[Step], kept: Sequence[str], numbers: Mapping[str, int]) -> dict[str, int]:
    """In which piece of memory each value lies. The first step's source, and those that are `kept`, have their own."""
    homes = {name: home for home, name in enumerate(dict.fromkeys((steps[0].source, *kept)))}
    own, count = set(homes), len(homes)
    last = {name: place for place, step in enumerate(steps) for name in step.reads}
    free: dict[int, int] = {}  # pieces that nothing lies in, and the numbers of what lay there
    for place, step in enumerate(steps):
        ending = {name for name in step.reads if last[name] == place and name not in own}
        if step.target not in homes:
            added = step.added
            if added is not None and added in ending - {step.source} and numbers[added] == numbers[step.target]:
                homes[step.target] = homes[added]  # each number is read before it is written
                ending.remove(added)
            elif free:
                homes[step.target] = min(free, key=lambda home: (abs(free[home] - numbers[step.target]), home))
                del free[homes[step.target]]
            else:
                homes[step.target], count = count, count + 1
        free.update({homes[name]: numbers[name] for name in ending})
    return homes
