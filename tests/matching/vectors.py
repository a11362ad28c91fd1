"""Vectors of norm 1, and indexes of them."""

from __future__ import annotations

import numpy as np

from pipeline.matching.references import ReferenceIndex
from pipeline.types import FloatArray


def unit(rows: FloatArray) -> FloatArray:
    """The rows [n, d] at norm 1, float32."""
    return (rows / np.linalg.norm(rows.astype(np.float64), axis=1, keepdims=True)).astype(np.float32)


def unit_rows(seed: int, count: int, size: int) -> FloatArray:
    """Random rows [count, size] of norm 1, float32."""
    return unit(np.random.default_rng(seed).standard_normal((count, size)))


def append(index: ReferenceIndex, vectors: FloatArray, order: list[int] | None = None) -> None:
    """Appends vectors [n, d] without images, numbered `order`, else by their positions."""
    count, start = len(vectors), len(index)
    numbers = np.array(range(start, start + count) if order is None else order, dtype=np.int64)
    index.append(vectors, numbers, [()] * count, np.zeros((count, 4), dtype=np.float32))


def make_index(
    vectors: FloatArray, order: list[int] | None = None, device: str = "cpu", *, quantized: bool = False
) -> ReferenceIndex:
    """An index of vectors [n, d]."""
    index = ReferenceIndex(vectors.shape[1], device, quantized=quantized)
    append(index, vectors, order)
    return index
