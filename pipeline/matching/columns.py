"""Columns of an index: the concatenated rows of several arrays, some of them in files."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from pipeline.types import IntArray

Scalar = TypeVar("Scalar", bound=np.generic)
Scalar_co = TypeVar("Scalar_co", bound=np.generic, covariant=True)


class Rows(Protocol[Scalar_co]):
    """The n rows of an array in memory or in a file. Reading them may raise StoreDamaged."""

    @property
    def array(self) -> npt.NDArray[Scalar_co]:
        """[n, ...] all rows, not validated: only for shape and dtype."""

    def checked(self, start: int, stop: int) -> npt.NDArray[Scalar_co]:
        """A view of the rows start .. stop - 1."""

    def at(self, rows: IntArray) -> npt.NDArray[Scalar_co]:
        """A copy of `rows` [m], each in [0, n)."""


@dataclass(frozen=True, eq=False)
class MemoryRows(Generic[Scalar]):
    """An array in memory; needs no validation."""

    array: npt.NDArray[Scalar]

    def checked(self, start: int, stop: int) -> npt.NDArray[Scalar]:
        return self.array[start:stop]

    def at(self, rows: IntArray) -> npt.NDArray[Scalar]:
        return self.array[rows]


@dataclass(frozen=True, eq=False)
class Column(Generic[Scalar]):
    """n consecutive rows of the concatenated `parts`: position p is row `first` + p."""

    parts: Sequence[Rows[Scalar]]
    starts: IntArray  # [parts] first row of each part
    first: int
    length: int

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, rows: slice) -> Column[Scalar]:
        """The positions `rows`, in constant time."""
        start, stop, _ = rows.indices(self.length)
        return Column(self.parts, self.starts, self.first + start, max(0, stop - start))

    @property
    def shape(self) -> tuple[int, ...]:
        return self.length, *self.parts[-1].array.shape[1:]

    def pieces(self, most: int | None = None) -> Iterator[slice]:
        """Splits all positions into ranges within one part, each of at most `most`."""
        ends = [*(self.starts[1:] - self.first).tolist(), self.length]
        start = 0
        for end in ends:
            while start < min(end, self.length):
                stop = min(end, self.length, start + (most or self.length))
                yield slice(start, stop)
                start = stop

    def checked(self, start: int, stop: int) -> npt.NDArray[Scalar]:
        """A view of the rows at positions start .. stop - 1, all of one part."""
        first = self.first + start
        part = bisect_right(self.starts, first) - 1
        place = first - int(self.starts[part])
        # Not a memmap: NumPy's arithmetic is slower with subclasses.
        rows: npt.NDArray[Scalar] = np.asarray(self.parts[part].checked(place, place + stop - start))
        return rows

    def at(self, positions: IntArray) -> npt.NDArray[Scalar]:
        """A copy of the rows at `positions` [m], each in [0, n)."""
        rows = positions + self.first
        if len(self.parts) == 1:  # searches of few references would take a tenth longer
            return self.parts[0].at(rows)
        part_of = np.searchsorted(self.starts, rows, side="right") - 1
        gathered = np.empty((len(rows), *self.shape[1:]), dtype=self.parts[-1].array.dtype)
        for part in set(part_of.tolist()):
            chosen = part_of == part
            gathered[chosen] = self.parts[part].at(rows[chosen] - self.starts[part])
        return gathered


def dead_between(dead: IntArray, start: int, end: int) -> IntArray:
    """The positions of `dead` (ascending) in [start, end), relative to `start`."""
    return dead[slice(*np.searchsorted(dead, (start, end)))] - start
