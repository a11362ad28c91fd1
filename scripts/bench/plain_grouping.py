"""Sequential threshold grouping as one would write it with a library of matrix products, block by block.

A face goes to the earlier identity of the largest product, the first of equals, where that reaches the threshold, and
is a new identity otherwise. The products are float32: a face within rounding of the threshold, or of a tie, may be
decided differently from exact scores.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from typing import Protocol

import numpy as np
import torch

from pipeline.types import FloatArray, IntArray

_FIRST_CAPACITY = 1024


class Library(Protocol):
    """A growing matrix of vectors [n, d]."""

    def nearest(self, queries: FloatArray) -> tuple[FloatArray, IntArray]:
        """The largest product of each query [m, d] and its row, n >= 1: [m] each."""

    def add(self, vectors: FloatArray) -> None:
        """Appends rows."""


class PlainGrouping:
    """Calling it decides one block of faces [m, d]: the identity [m] of each, numbered in order of insertion."""

    def __init__(self, library: Library, min_product: float) -> None:
        self._library = library
        self._min_product = min_product
        self._count = 0

    def __call__(self, vectors: FloatArray) -> IntArray:
        best, identities = self._earlier(vectors)
        within = vectors @ vectors.T
        new: list[int] = []  # rows of the block
        for row in range(len(vectors)):
            if new:
                among = within[row, new]
                column = int(among.argmax())
                if among[column] > best[row]:
                    best[row], identities[row] = among[column], self._count + column
            if best[row] < self._min_product:
                identities[row] = self._count + len(new)
                new.append(row)
        self._library.add(vectors[new])
        self._count += len(new)
        return identities

    def _earlier(self, vectors: FloatArray) -> tuple[FloatArray, IntArray]:
        if self._count:
            return self._library.nearest(vectors)
        return np.full(len(vectors), -np.inf, dtype=np.float32), np.full(len(vectors), -1)


class _Growing:
    """Vectors in a matrix that doubles when it is full."""

    def __init__(self, size: int) -> None:
        self._matrix = np.empty((_FIRST_CAPACITY, size), dtype=np.float32)
        self._count = 0

    @property
    def vectors(self) -> FloatArray:
        return self._matrix[: self._count]

    def add(self, vectors: FloatArray) -> None:
        needed = self._count + len(vectors)
        if needed > len(self._matrix):
            grown = np.empty((max(needed, 2 * len(self._matrix)), self._matrix.shape[1]), dtype=np.float32)
            grown[: self._count] = self.vectors
            self._matrix = grown
        self._matrix[self._count : needed] = vectors
        self._count = needed


class Numpy(_Growing):
    def nearest(self, queries: FloatArray) -> tuple[FloatArray, IntArray]:
        products = queries @ self.vectors.T
        rows = products.argmax(axis=1)
        return products[np.arange(len(rows)), rows], rows


class Torch(_Growing):
    def nearest(self, queries: FloatArray) -> tuple[FloatArray, IntArray]:
        products, rows = torch.mm(torch.from_numpy(queries), torch.from_numpy(self.vectors).T).max(dim=1)
        return products.numpy(), rows.numpy()


class Faiss:
    def __init__(self, size: int) -> None:
        import faiss

        self._index = faiss.IndexFlatIP(size)

    def nearest(self, queries: FloatArray) -> tuple[FloatArray, IntArray]:
        products, rows = self._index.search(queries, 1)
        return products[:, 0], rows[:, 0]

    def add(self, vectors: FloatArray) -> None:
        self._index.add(vectors)


LIBRARIES: Mapping[str, Callable[[int], Library]] = {"numpy": Numpy, "torch": Torch, "faiss": Faiss}


def installed(name: str) -> bool:
    return importlib.util.find_spec(name) is not None
