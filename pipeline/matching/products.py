"""Float32 products of faces with references on the host, in NumPy; `device_products` does the same on CUDA."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, TypeVar

import numpy as np

from pipeline.matching.columns import Column, dead_between
from pipeline.runtime.device import HOST
from pipeline.runtime.threads import over_threads, single_threaded_blas, split, threads_here
from pipeline.types import FloatArray, IntArray

# References per product: at least _CHUNK; with few queries more, up to _ELEMENTS products (2 MB, so that they are still
# in a core's cache when the row maximum is taken).
_CHUNK: Final = 1024
_ELEMENTS: Final = 2**19
# With fewer queries per thread, reading the references takes longer than multiplying.
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

    @staticmethod
    def in_parts(search: Callable[[slice], _Found], queries: int) -> list[tuple[slice, _Found]]:
        """Splits `queries` queries into parts of at most MOST_ROWS and runs `search` on each, in several threads."""
        number = max(-(-queries // MOST_ROWS), min(threads_here(), queries // _LEAST_ROWS))
        parts = split(queries, number)
        with single_threaded_blas():  # BLAS threads would add to ours, at normal priority, and busy-wait
            return list(zip(parts, over_threads(search, parts, pool="products"), strict=True))

    def chunks(self, queries: FloatArray, dead: IntArray) -> Iterator[tuple[int, FloatArray]]:
        """Products of `queries` [m, d] with chunks of the references: (first position, [m, chunk]). They are -inf at
        the positions `dead` (ascending). Later chunks overwrite the buffer."""
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
        """The products >= `limits` [c] in c cells of [rows, n, width]: cell number in [0, c), index in the cell,
        value."""
        chosen = cells[row, cell]
        which, place = np.nonzero(chosen >= limits[:, None])
        return which, place, chosen[which, place]

    def pairs(self, vectors: FloatArray, partners: IntArray, cut: float) -> tuple[IntArray, IntArray, FloatArray]:
        """Products >= `cut` of each row of `vectors` [m, d] with earlier rows at `partners` [p] (ascending): the row,
        the index in `partners` and the value, ordered by row."""

        def of_rows(part: slice) -> tuple[IntArray, IntArray, FloatArray]:
            products = vectors[part] @ vectors[partners].T
            before = partners < np.arange(part.start, part.stop)[:, None]
            rows, columns = np.nonzero((products >= cut) & before)
            return rows + part.start, columns, products[rows, columns]

        found = [found for _, found in self.in_parts(of_rows, len(vectors))]
        rows, columns, values = (np.concatenate(parts) for parts in zip(*found, strict=True))
        return rows, columns, values
