"""Arrays in a memory-mapped file; each block is verified once, before its first use.

A block is 256 KiB with a CRC-32, which detects damage, not tampering.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Final, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from pipeline.types import IntArray

BLOCK_BYTES: Final = 256 * 1024
SUM_TYPE: Final = np.dtype("<u4")
_Scalar = TypeVar("_Scalar", bound=np.generic)


class BlockSums:
    """Checksums of the blocks of a byte stream."""

    def __init__(self) -> None:
        self._sums: list[int] = []
        self._room = 0  # bytes left in the last block

    def add(self, data: memoryview) -> None:
        """Adds the next bytes."""
        while len(data):
            if self._room == 0:
                self._sums.append(0)
                self._room = BLOCK_BYTES
            part, data = data[: self._room], data[self._room :]
            self._sums[-1] = zlib.crc32(part, self._sums[-1])
            self._room -= len(part)

    def table(self) -> bytes:
        """The checksums [b] uint32, as bytes; the last block may be shorter."""
        return np.array(self._sums, SUM_TYPE).tobytes()


class CheckedBlocks:
    """The blocks of a mapped area, and which are verified. Thread-safe: threads may verify the same block twice."""

    def __init__(self, area: memoryview, sums: npt.NDArray[np.uint32], damaged: Callable[[int], Exception]) -> None:
        """`area`: bytes; `sums` [b]: their blocks' checksums; `damaged`: makes the error for a block."""
        self._area = area
        self._sums = sums
        self._damaged = damaged
        self._compared = np.zeros(len(sums), np.bool_)

    def flags(self, start: int, stop: int) -> npt.NDArray[np.bool_]:
        """Whether each block with bytes start .. stop - 1 is verified: a live view."""
        return self._compared[_blocks(start, stop)]

    def require(self, start: int, stop: int) -> None:
        """Verifies the blocks with bytes start .. stop - 1. Raises the `damaged` error of the first damaged one."""
        between = _blocks(start, stop)
        if not self._compared[between].all():
            self.require_blocks(np.arange(between.start, between.stop))

    def require_blocks(self, blocks: IntArray) -> None:
        """`require` for block numbers [m], in any order, repetitions allowed."""
        missing = blocks[~self._compared[blocks]]
        if len(missing) == 0:
            return
        for block in np.unique(missing).tolist():
            start = block * BLOCK_BYTES
            if not self.is_sound(block, self._area[start : start + BLOCK_BYTES]):
                raise self._damaged(block)
            self._compared[block] = True

    def is_sound(self, block: int, data: bytes | memoryview) -> bool:
        """Whether `data` has the block's checksum."""
        return zlib.crc32(data) == int(self._sums[block])


class MappedRows(Generic[_Scalar]):
    """n rows of one type, [n] or [n, w], in a mapped area; read-only, thread-safe."""

    def __init__(self, blocks: CheckedBlocks, array: npt.NDArray[_Scalar], offset: int) -> None:
        """`array` starts at byte `offset` of the area of `blocks`."""
        self.array = array  # [n, ...] all rows; callers must verify them first
        self._blocks = blocks
        self._offset = offset
        self._row_bytes = array.dtype.itemsize * int(np.prod(array.shape[1:]))
        self._flags = blocks.flags(offset, offset + array.nbytes)
        self._complete = False

    def __len__(self) -> int:
        return len(self.array)

    def checked(self, start: int, stop: int) -> npt.NDArray[_Scalar]:
        """A view of rows start .. stop - 1, verified. Raises the blocks' error; IndexError unless 0 <= start <= stop <=
        n."""
        if not 0 <= start <= stop <= len(self.array):
            raise IndexError(f"rows {start} to {stop} of {len(self.array)}")
        if not self._all_compared():
            self._blocks.require(self._offset + start * self._row_bytes, self._offset + stop * self._row_bytes)
        return self.array[start:stop]

    def at(self, rows: IntArray) -> npt.NDArray[_Scalar]:
        """A copy [m, ...] of the rows at positions [m], verified. Raises the blocks' error; IndexError unless all are
        in 0 .. n - 1."""
        if len(rows) and rows.min() < 0:
            raise IndexError(f"row {rows.min()} of {len(self.array)}")
        if not self._all_compared():
            starts = self._offset + rows * self._row_bytes
            first, last = starts // BLOCK_BYTES, (starts + self._row_bytes - 1) // BLOCK_BYTES
            for further in range(self._row_bytes // BLOCK_BYTES + 2):  # a row may span blocks
                self._blocks.require_blocks(np.minimum(first + further, last))
        return self.array.take(rows, axis=0)

    def _all_compared(self) -> bool:
        if not self._complete:
            self._complete = bool(self._flags.all())
        return self._complete


def _blocks(start: int, stop: int) -> slice:
    """The blocks with bytes start .. stop - 1."""
    return slice(start // BLOCK_BYTES, -(-stop // BLOCK_BYTES) if start < stop else start // BLOCK_BYTES)
