"""Vectors of norm 1, and indexes of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from pipeline.matching.columns import Column
from pipeline.matching.device_products import DeviceVectors
from pipeline.matching.products import HostVectors
from pipeline.matching.references import ReferenceIndex
from pipeline.types import FloatArray

BOX = [0.0, 0.0, 10.0, 10.0]


def unit(rows: FloatArray) -> FloatArray:
    """The rows [n, d] at norm 1, float32."""
    return (rows / np.linalg.norm(rows.astype(np.float64), axis=1, keepdims=True)).astype(np.float32)


def unit_rows(seed: int, count: int, size: int) -> FloatArray:
    """Random rows [count, size] of norm 1, float32."""
    return unit(np.random.default_rng(seed).standard_normal((count, size)))


class Codes(NamedTuple):
    """The int8 copy of n rows."""

    codes: npt.NDArray[np.int8]  # [n, d]
    scales: FloatArray  # [n]
    errors: FloatArray  # [n]


def coded(vectors: FloatArray) -> Codes:
    """The int8 copy of vectors [n, d], as an index makes it."""
    from pipeline.matching import int8_kernels

    count = len(vectors)
    made = Codes(np.empty(vectors.shape, np.int8), np.empty(count, np.float32), np.empty(count, np.float32))
    int8_kernels.quantize(np.ascontiguousarray(vectors), *made)
    return made


def whole(rows: Column[Any] | HostVectors | DeviceVectors) -> npt.NDArray[Any]:
    """All rows of a column, or of the vectors for products, on the host."""
    if isinstance(rows, Column):
        return rows.at(np.arange(len(rows)))
    return whole(rows.rows) if isinstance(rows, HostVectors) else np.asarray(rows.rows.cpu().numpy())


def append(
    index: ReferenceIndex, vectors: FloatArray, order: list[int] | None = None, remove: Sequence[int] = ()
) -> None:
    """Appends vectors [n, d], numbered `order`, else by their positions, each with its number as the hash of its image.
    In the same step removes those at the positions `remove`."""
    numbers = list(range(len(index), len(index) + len(vectors))) if order is None else order
    boxes = np.tile(np.array(BOX, dtype=np.float32), (len(vectors), 1))
    hashes = [(str(number),) for number in numbers]
    index.append(vectors, np.array(numbers, np.int64), hashes, boxes, np.array(remove, np.int64))


# torch's products in the host's memory: what CUDA runs, where there is none.
TORCH_ON_CPU: Final = "cpu:0"


def make_index(
    vectors: FloatArray, order: list[int] | None = None, device: str = "cpu", *, quantized: bool = False
) -> ReferenceIndex:
    """An index of vectors [n, d], as `append` does it."""
    index = ReferenceIndex(vectors.shape[1], device, quantized=quantized)
    append(index, vectors, order)
    return index
