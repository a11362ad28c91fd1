"""Frozen parts in memory, and indexes of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic

import numpy as np
import numpy.typing as npt

from pipeline.errors import StoreDamaged
from pipeline.matching.columns import Scalar
from pipeline.matching.references import ReferenceIndex
from pipeline.types import FloatArray, IntArray
from tests.matching.vectors import coded


@dataclass
class CheckedRows(Generic[Scalar]):
    """The rows of a read-only array. Reading one of `damaged` raises StoreDamaged; `read` counts the rows that were."""

    array: npt.NDArray[Scalar]
    damaged: Sequence[int] = ()
    read: int = 0

    def __post_init__(self) -> None:
        self.array = self.array.copy()
        self.array.setflags(write=False)

    def checked(self, start: int, stop: int) -> npt.NDArray[Scalar]:
        assert 0 <= start <= stop <= len(self.array)
        return self._read(np.arange(start, stop), self.array[start:stop])

    def at(self, rows: IntArray) -> npt.NDArray[Scalar]:
        assert ((rows >= 0) & (rows < len(self.array))).all()
        return self._read(rows, self.array[rows])

    def _read(self, rows: IntArray, found: npt.NDArray[Scalar]) -> npt.NDArray[Scalar]:
        self.read += len(rows)
        if np.isin(rows, self.damaged).any():
            raise StoreDamaged(path="segment", detail="a checksum is wrong", cure="")
        return found


@dataclass
class Part:
    """A frozen part of n references."""

    vectors: CheckedRows[np.float32]
    order: CheckedRows[np.int64]
    boxes: CheckedRows[np.float32]
    hashes: Sequence[tuple[str, ...]]
    dead: IntArray
    codes: CheckedRows[np.int8] = field(init=False)
    scales: CheckedRows[np.float32] = field(init=False)
    errors: CheckedRows[np.float32] = field(init=False)

    def __post_init__(self) -> None:
        rows = self.vectors.array
        self.codes, self.scales, self.errors = map(CheckedRows, coded(rows))
        self.max_norm = float(np.linalg.norm(rows.astype(np.float64), axis=1).max(initial=0.0))

    def __len__(self) -> int:
        return len(self.vectors.array)

    @property
    def rows_read(self) -> int:
        return sum(rows.read for rows in (self.vectors, self.order, self.boxes, self.codes, self.scales, self.errors))

    def image_rows(self, image_hash: str) -> list[int]:
        return [row for row, hashes in enumerate(self.hashes) if image_hash in hashes]


def split_index(
    vectors: FloatArray,
    order: Sequence[int],
    hashes: Sequence[tuple[str, ...]],
    boxes: FloatArray,
    dead: Sequence[int] = (),
    cuts: Sequence[int] = (),
    device: str = "cpu",
    *,
    quantized: bool = False,
) -> ReferenceIndex:
    """An index of n references with `dead` rows. `cuts`, ascending, are the ends of its frozen parts, so that an index
    without cuts is all tail. Every second dead row of a frozen part is dead from the start; all others are removed."""
    removed, parts = list(dead), list[Part]()
    for start, end in zip([0, *cuts], cuts, strict=False):
        before = [position for position in dead if start <= position < end][::2]
        removed = [position for position in removed if position not in before]
        arrays = vectors[start:end], np.array(order[start:end], np.int64), boxes[start:end].astype(np.float32)
        vector_rows, order_rows, box_rows = map(CheckedRows, arrays)
        dead_rows = np.array(before, dtype=np.int64) - start
        parts.append(Part(vector_rows, order_rows, box_rows, hashes[start:end], dead_rows))
    index = ReferenceIndex(vectors.shape[1], device, quantized=quantized, frozen=parts)
    begin = cuts[-1] if len(cuts) else 0
    for rows in (slice(begin, (begin + len(vectors)) // 2), slice((begin + len(vectors)) // 2, None)):
        index.append(vectors[rows], np.array(order[rows], dtype=np.int64), hashes[rows], boxes[rows])
    index.remove(np.array(removed, dtype=np.int64))
    return index
