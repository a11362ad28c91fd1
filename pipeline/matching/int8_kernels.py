"""The compiled loops of `int8_filter` (which has the proof). They run without the interpreter's lock. Importing needs
numba; it compiles the loops or loads them from numba's cache.

Fixed signatures keep compilation out of searches. Reductions are plain loops: LLVM vectorises the integer one, whose
order does not matter, and leaves the float64 ones alone.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from pipeline.runtime.compiled import compiled

_TILE_ROWS: Final = 64  # their codes stay in the L1 cache for all queries


@compiled("void(Array(f4, 2, 'C', readonly=True), i1[:,::1], f4[::1], f4[::1])")
def quantize(vectors: Any, codes: Any, scales: Any, errors: Any) -> None:
    """Fills codes [m, d], scales [m] and errors [m] of `vectors` [m, d]."""
    for row in range(vectors.shape[0]):
        largest = np.float32(0.0)
        for i in range(vectors.shape[1]):
            largest = max(largest, abs(vectors[row, i]))
        scale = np.float64(np.float32(largest / np.float32(127.0)))
        squares = 0.0
        for i in range(vectors.shape[1]):
            code = min(max(np.rint(vectors[row, i] / scale), -127.0), 127.0)
            codes[row, i] = np.int8(code)
            squares += (vectors[row, i] - scale * code) ** 2
        scales[row] = scale
        errors[row] = np.sqrt(squares) * (1.0 + 2.0**-20)


@compiled()
def _raise_lowest(heap: Any, value: float) -> None:
    """Replaces the smallest element of a binary min-heap."""
    place, size = 0, len(heap)
    while 2 * place + 1 < size:
        child = 2 * place + 1
        if child + 1 < size and heap[child + 1] < heap[child]:
            child += 1
        if heap[child] >= value:
            break
        heap[place] = heap[child]
        place = child
    heap[place] = value


@compiled()
def _keep_possible(candidates: Any, highs: Any, cut: float) -> int:
    """Moves the candidates with a high >= `cut` to the front; returns their number."""
    kept = 0
    for i in range(len(candidates)):
        if highs[i] >= cut:
            candidates[kept], highs[kept] = candidates[i], highs[i]
            kept += 1
    return kept


@compiled(
    "b1(Array(i1, 2, 'C', readonly=True), Array(f4, 1, 'C', readonly=True), Array(f4, 1, 'C', readonly=True), i8,"
    " Array(i8, 1, 'C', readonly=True), i2[:,::1], f8[::1], f8[::1], f8[::1], f8, f8, f8, f8[:,::1], i8[:,::1],"
    " f8[:,::1], i8[::1])"
)
def scan(
    codes: Any,
    scales: Any,
    errors: Any,
    first: int,
    dead: Any,
    queries: Any,
    units: Any,
    slopes: Any,
    offsets: Any,
    ties: float,
    least: float,
    floor: float,
    lows: Any,
    candidates: Any,
    highs: Any,
    counts: Any,
) -> bool:
    """Finds the rows that may be among the best k of each of m queries, except the positions `dead` (ascending). Row r
    is at position `first` + r.

    Updates `lows` [m, k], the k largest lower bounds; `candidates` [m, capacity], positions; `highs` [m, capacity],
    their upper bounds; and `counts` [m]. Before the first call `lows` are -inf and `counts` 0; later calls add further
    rows. Returns False if there are too many candidates.
    """
    dead_from = np.searchsorted(dead, first)
    for tile in range(0, codes.shape[0], _TILE_ROWS):
        end = min(tile + _TILE_ROWS, codes.shape[0])
        next_dead = dead_from
        for m in range(queries.shape[0]):
            heap = lows[m]
            next_dead = dead_from
            level = min(heap[0], 1.0) - ties
            cut = max(level, floor) if level > least else floor
            for row in range(tile, end):
                if next_dead < len(dead) and dead[next_dead] == first + row:
                    next_dead += 1
                    continue
                product = np.int32(0)
                for i in range(codes.shape[1]):
                    # Cast at every step, or numba sums in 64 bits.
                    product = np.int32(product + np.int32(np.int32(codes[row, i]) * np.int32(queries[m, i])))
                value = product * (scales[row] * units[m])
                width = errors[row] * slopes[m] + offsets[m]
                if value + width < cut:
                    continue
                if counts[m] == candidates.shape[1]:
                    counts[m] = _keep_possible(candidates[m], highs[m], cut)
                    if 4 * counts[m] > 3 * candidates.shape[1]:
                        return False
                candidates[m, counts[m]], highs[m, counts[m]] = first + row, value + width
                counts[m] += 1
                if value - width > heap[0]:
                    _raise_lowest(heap, value - width)
                    level = min(heap[0], 1.0) - ties
                    cut = max(level, floor) if level > least else floor
        dead_from = next_dead
    return True
