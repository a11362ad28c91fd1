"""Float32 products of faces with references, on the host in NumPy. `device_products` makes them on a CUDA device.

A search looks at products in chunks of references, and in a chunk first at the largest product of each cell.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, TypeVar

import numpy as np

from pipeline.matching.columns import Column, dead_between
from pipeline.runtime.device import HOST
from pipeline.runtime.threads import over_threads, single_threaded_blas, split, threads_here
from pipeline.types import FloatArray, IntArray

# A product takes at least _CHUNK references, and more for few queries: up to _ELEMENTS elements, 2 MB that stay in a
# core's cache until the row maximum is known.
_CHUNK: Final = 1024
_ELEMENTS: Final = 2**19
# With fewer queries to a thread, reading the references takes longer than multiplying them.
_LEAST_ROWS: Final = 64
MOST_ROWS: Final = 1024
_Found = TypeVar("_Found")


class HostVectors:
    """[n, d] float32 references in the host's memory."""

    device: Final = HOST

    def __init__(self, rows: Column[np.float32]) -> None:
        self.rows = rows

    def __getitem__(self, rows: slice) -> HostVectors:
        return HostVectors(self.rows[rows])

    def on_host(self) -> FloatArray:
        """[n, d], a copy if they are of several parts."""
        return self.rows.whole()

    @staticmethod
    def in_parts(search: Callable[[slice], _Found], queries: int) -> list[tuple[slice, _Found]]:
        """`queries` queries in parts of at most MOST_ROWS, with what `search` finds for each, on several threads."""
        number = max(-(-queries // MOST_ROWS), min(threads_here(), queries // _LEAST_ROWS))
        parts = split(queries, number)
        with single_threaded_blas():  # its own threads would be more than ours, of normal priority, and wait busily
            return list(zip(parts, over_threads(search, parts, pool="products"), strict=True))

    def chunks(self, queries: FloatArray, dead: IntArray) -> Iterator[tuple[int, FloatArray]]:
        """Products of `queries` [m, d] with chunks of the references: (first position, [m, chunk]) in a buffer that a
        later chunk overwrites; -inf for those at the positions `dead`, ascending."""
        rows, count = len(queries), len(self.rows)
        chunk, threads = max(_CHUNK, _ELEMENTS // rows), threads_here()

        def multiply(piece: slice, buffer: FloatArray) -> tuple[int, FloatArray]:
            references = self.rows.checked(piece.start, piece.stop)
            products = buffer[: rows * len(references)].reshape(rows, len(references))
            np.matmul(queries, references.T, out=products)
            products[:, dead_between(dead, piece.start, piece.stop)] = -np.inf
            return piece.start, products

        pieces = list(self.rows.pieces(chunk))
        buffers = [np.empty(rows * min(chunk, count), dtype=np.float32) for _ in pieces[:threads]]
        for first in range(0, len(pieces), threads):
            together = list(zip(pieces[first : first + threads], buffers, strict=False))
            yield from over_threads(lambda each: multiply(*each), together, pool="products")

    @staticmethod
    def maxima(cells: FloatArray) -> FloatArray:
        """[rows, n, width] -> [rows, n], the largest product of each cell."""
        return np.asarray(cells.max(axis=2))

    @staticmethod
    def reaching(
        cells: FloatArray, row: IntArray, cell: IntArray, limits: FloatArray
    ) -> tuple[IntArray, IntArray, FloatArray]:
        """The products of c cells of [rows, n, width] that reach the cell's limit [c]: which of the c, the place in
        the cell, and the value."""
        chosen = cells[row, cell]
        which, place = np.nonzero(chosen >= limits[:, None])
        return which, place, chosen[which, place]

    def pairs(self, vectors: FloatArray, partners: IntArray, cut: float) -> tuple[IntArray, IntArray, FloatArray]:
        """Products of `vectors` [m, d] with those of them at `partners` [p], ascending, that come before them and
        reach `cut`: the row, the index in `partners` and the value, in the order of rows."""

        def of_rows(part: slice) -> tuple[IntArray, IntArray, FloatArray]:
            products = vectors[part] @ vectors[partners].T
            before = partners < np.arange(part.start, part.stop)[:, None]
            rows, columns = np.nonzero((products >= cut) & before)
            return rows + part.start, columns, products[rows, columns]

        found = [found for _, found in self.in_parts(of_rows, len(vectors))]
        rows, columns, values = (np.concatenate(parts) for parts in zip(*found, strict=True))
        return rows, columns, values
