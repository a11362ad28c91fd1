"""An int8 copy of the references as a filter for few queries: it reads a quarter of the bytes of a float32 scan, which
is what such a search spends its time on.

A row r of d numbers is stored as codes c in [-127, 127]^d, a scale a and the measured norm E of the remainder; a query
q as 16-bit codes h:

    r = a c + e   with |e| <= E, and   q = b h + f   with |f| <= F,   |.| the L2 norm

1. r.q = ab (c.h) + a c.f + e.q, and |a c| <= |r| + E, so by Cauchy-Schwarz
   |r.q - ab (c.h)| <= W = E (|q| + F) + F |r|.
   E and F are measured, so this holds for every vector.
2. c.h is exact: |h_i| <= (2^31 - 1) / (127 d), so no partial sum overflows an int32.
3. The exact score's dot s (`score.exact_dots`) is within gamma_d(2^-53) |r| |q| of r.q (see `error_bound`): less than
   2^-32 for d <= 2^20 and norms of 1 +- 1e-3. E and F carry a factor 1 + 2^-20 for the rounding of their own sums and
   roots, and of E to float32. SLACK = 2^-30, added to W, covers |s - r.q|, the float64 roundings of b h, a b (c.h) and
   W (a few units of 2^-52 each), and underflow (below 2^-100).

So s lies in [low, high] = ab (c.h) -+ (W + SLACK). If k live rows have low >= t, the k-th best has s >= t. A row with
high < min(t, 1) - TIES ranks strictly below k others (points 2 and 3 of `error_bound`), unless that limit is -1 or
less. All other rows are candidates for float32 products and exact scores.

The scan is compiled (numba) and runs without the interpreter's lock, so threads may search at the same time. Without
numba, or with too many candidates for a gain, the caller searches the float32 vectors.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from pipeline.matching.columns import Column
from pipeline.matching.error_bound import ROUNDING
from pipeline.runtime.optional_kernels import if_compiled
from pipeline.runtime.threads import even_parts, over_threads
from pipeline.types import DoubleArray, FloatArray, IntArray

MAX_DIMENSIONS: Final = 2**20  # of point 3

_SLACK: Final = 2.0**-30
_MEASURED: Final = 1.0 + 2.0**-20
_LEAST: Final = -1.0 + ROUNDING  # lower dots tie at d = 2
# With more candidates than one row in _SHARE, a search is no faster than a float32 scan.
_SHARE: Final = 8
_LEAST_ROOM: Final = 1024
# Codes per thread: half a millisecond of work, ten times the cost of the hand-over.
_PART_CODES: Final = 2**24


@if_compiled
def load_kernels() -> ModuleType:
    """Imports `int8_kernels`: about 2 s the first time on a machine, then 0.5 s, mostly numba's start."""
    from pipeline.matching import int8_kernels

    return int8_kernels


@dataclass(frozen=True, eq=False)
class CodeColumns:
    """The int8 copy of the n rows of an index: n (d + 8) bytes."""

    codes: Column[np.int8]  # [n, d]: c
    scales: Column[np.float32]  # [n]: a
    errors: Column[np.float32]  # [n]: E

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, rows: slice) -> CodeColumns:
        """A view, in constant time."""
        return CodeColumns(self.codes[rows], self.scales[rows], self.errors[rows])


class _Queries(NamedTuple):
    """m queries as codes, with the factors of a row's interval."""

    codes: npt.NDArray[np.int16]  # [m, d]: h
    units: DoubleArray  # [m]: b
    slopes: DoubleArray  # [m]: |q| + F, the factor of E in W
    offsets: DoubleArray  # [m]: F |r| + SLACK


class _Scan(NamedTuple):
    """The candidates in a range of rows."""

    lows: DoubleArray  # [m, k] the largest lower bounds
    rows: IntArray  # [m, capacity] the candidates
    highs: DoubleArray  # [m, capacity] their upper bounds
    counts: IntArray  # [m] their number


def candidates(
    codes: CodeColumns, dead: IntArray, queries: FloatArray, k: int, max_norm: float, ties: float, floor: float
) -> list[IntArray] | None:
    """The positions [c] of the live rows that may be among the k best, for each of m queries [m, d] (norm 1).

    `max_norm` bounds the rows' norms; `ties` is TIES; rows with an exact dot below `floor` may be left out. None if too
    many candidates remain for the filter to be a gain.
    """
    coded = _quantized(queries, max_norm)
    parts = even_parts(len(codes), len(codes) * queries.shape[1] // _PART_CODES)
    # Not in the default pool, behind batch detection, which takes a second on a CPU.
    scans = over_threads(lambda rows: _scan(codes, dead, rows, coded, k, ties, floor), parts, pool="search")
    complete = [scan for scan in scans if scan is not None]
    if len(complete) < len(scans):
        return None
    return [_merged(complete, row, k, ties, floor) for row in range(len(queries))]


def _quantized(queries: FloatArray, max_norm: float) -> _Queries:
    exact = queries.astype(np.float64)
    limit = min(np.iinfo(np.int16).max, np.iinfo(np.int32).max // (127 * queries.shape[1]))
    units = np.abs(exact).max(axis=1) / limit
    rounded = np.rint(exact / units[:, None]).clip(-limit, limit)
    errors = np.linalg.norm(exact - rounded * units[:, None], axis=1) * _MEASURED
    slopes = np.linalg.norm(exact, axis=1) * _MEASURED + errors
    return _Queries(rounded.astype(np.int16), units, slopes, errors * max_norm * _MEASURED + _SLACK)


def _scan(
    codes: CodeColumns, dead: IntArray, rows: slice, queries: _Queries, k: int, ties: float, floor: float
) -> _Scan | None:
    """Scans `rows` part by part; the lower bounds of earlier parts exclude rows of later ones. None if there are too
    many candidates."""
    from pipeline.matching import int8_kernels

    count = len(queries.codes)
    room = count, max(_LEAST_ROOM, (rows.stop - rows.start) // _SHARE)
    lows, counts = np.full((count, k), -np.inf), np.zeros(count, dtype=np.int64)
    kept, highs = np.empty(room, dtype=np.int64), np.empty(room)
    for piece in codes.codes[rows].pieces():
        first, stop = rows.start + piece.start, rows.start + piece.stop
        block = codes.codes.checked(first, stop), codes.scales.checked(first, stop), codes.errors.checked(first, stop)
        if not int8_kernels.scan(*block, first, dead, *queries, ties, _LEAST, floor, lows, kept, highs, counts):
            return None
    return _Scan(lows, kept, highs, counts)


def _merged(scans: list[_Scan], row: int, k: int, ties: float, floor: float) -> IntArray:
    """The candidates of one query that the lower bounds of all scans leave."""
    rows = np.concatenate([scan.rows[row, : scan.counts[row]] for scan in scans])
    highs = np.concatenate([scan.highs[row, : scan.counts[row]] for scan in scans])
    lows = np.concatenate([scan.lows[row] for scan in scans])
    level = min(np.partition(lows, len(lows) - k)[len(lows) - k], 1.0) - ties
    kept: IntArray = rows[highs >= (max(level, floor) if level > _LEAST else floor)]
    return kept
