"""Exact search: the references that score highest against a face.

Float32 products, and for few queries an int8 copy before them, only filter (`error_bound`, `int8_filter`). The
remaining candidates get exact scores on the host; ties go to the lower order number. So the answer does not depend on
the device, batch or chunk size. Callers apply `IndexView.find_identical` first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from pipeline.config import EVERYBODY
from pipeline.errors import UsageError
from pipeline.matching.calibration import Calibration
from pipeline.matching.error_bound import ProductFilter
from pipeline.matching.int8_filter import candidates
from pipeline.matching.references import IndexView, ReferenceIndex, check_embeddings, with_room
from pipeline.matching.score import check_threshold, contract_distance, exact_dots, similarity_score
from pipeline.types import BoolArray, DoubleArray, FloatArray, IntArray

if TYPE_CHECKING:
    from pipeline.matching.device_products import DeviceVectors
    from pipeline.matching.products import HostVectors

# The int8 copy is faster than a matrix product for up to _FEW queries, and 2 plus one per _FEW_ROWS references.
_FEW: Final = 16
_FEW_ROWS: Final = 256
# Pairs scored at once: 16 MB at 512 dimensions.
_PAIRS: Final = 4096
# Unscored candidates that a thread keeps: 24 MB. Only archives of near-copies reach it.
_PENDING: Final = 2**20
# Matches that `all_matching` first looks for.
_FIRST: Final = 64
# References per cell (see `Shortlist`).
_CELL: Final = 512


@dataclass(frozen=True)
class Nearest:
    """The k nearest references of m queries, nearest first, padded with -1, NaN and -inf."""

    positions: IntArray  # [m, k] in the index
    distances: DoubleArray  # [m, k] contract distance
    ranks: DoubleArray  # [m, k] as `Matcher.ranks`


class Matcher:
    """Scores and searches with one calibration and threshold. Raises BadValue unless T is in [0, 3.99] or 4."""

    def __init__(self, calibration: Calibration, threshold: float) -> None:
        self.calibration = calibration
        self.threshold = check_threshold(threshold)

    def distances(self, a: FloatArray, b: FloatArray) -> DoubleArray:
        """Row-wise contract distances [n] of `a` and `b`, both [n, d] float32."""
        return contract_distance(exact_dots(a, b), self.calibration)

    def scores(self, distances: DoubleArray) -> DoubleArray:
        """As `similarity_score`."""
        return similarity_score(distances, self.threshold)

    def ranks(self, distances: DoubleArray) -> DoubleArray:
        """The sort key of candidates, higher first: the score; -d at T = 4, where scores are clamped."""
        return -distances if self.threshold == EVERYBODY else self.scores(distances)

    def matches(self, distances: DoubleArray) -> BoolArray:
        """Whether each contract distance is a match: score >= 1.0, not NaN. At T = 0 none is, not even 0: only
        identical images match (contract, 4.1 and 4.2 rule 5)."""
        return np.asarray((self.scores(distances) >= 1.0) & (self.threshold > 0))

    def top_k(self, index: ReferenceIndex | IndexView, queries: FloatArray, k: int) -> tuple[IntArray, DoubleArray]:
        """The k best references of each query [m, d] (norm 1): positions and scores [m, min(k, len(index))].

        Highest score first, equal scores by order number; padded with -1 and NaN. Raises UsageError for k < 1,
        EmbeddingInvalid, and DeviceError if the device's float32 products have reduced precision.
        """
        if k < 1:
            raise UsageError(message=f"The number of references to find must be at least 1, not {k}.")
        view = index.view()
        nearest = self.nearest(view, queries, min(k, len(view)))
        return nearest.positions, self.scores(nearest.distances)

    def nearest(
        self, index: ReferenceIndex | IndexView, queries: FloatArray, k: int, *, matching: bool = False
    ) -> Nearest:
        """As `top_k`, but always k columns. `matching` leaves out references that do not match, which is faster."""
        return with_room(lambda view: self._nearest(view, queries, k, matching=matching), index.view())

    def all_matching(self, index: ReferenceIndex | IndexView, queries: FloatArray) -> IntArray:
        """The positions of the references that match any of these queries [m, d], ascending. Raises as `top_k`."""
        view, k, found = index.view(), _FIRST, [np.empty(0, np.int64)]
        while len(queries):
            positions = self.nearest(view, queries, min(k, len(view)), matching=True).positions
            found.append(positions[positions >= 0])
            # Where all k match there may be more.
            queries = queries[positions[:, -1] >= 0] if k < len(view) else queries[:0]
            k *= 4
        return np.unique(np.concatenate(found))

    def _nearest(self, view: IndexView, queries: FloatArray, k: int, *, matching: bool) -> Nearest:
        norm = check_embeddings(queries, view.embedding_size)
        nearest = Nearest(
            np.full((len(queries), k), -1, dtype=np.int64),
            np.full((len(queries), k), np.nan),
            np.full((len(queries), k), -np.inf),
        )
        if k == 0 or len(view) == 0:
            return nearest
        products = ProductFilter(view.embedding_size, norm * view.max_norm, self.calibration)
        floor = products.match_cut(self.threshold) if matching else -np.inf

        def best_of(rows: slice) -> Scored:
            shortlist = Shortlist(rows.stop - rows.start, k, products, floor, view.vectors)
            return self._best(view, queries[rows], shortlist)

        for rows, best in view.vectors.in_parts(best_of, len(queries)):
            keep = self.matches(best.distances) if matching else slice(None)
            where = best.rows[keep] + rows.start, best.columns()[keep]
            nearest.positions[where] = best.positions[keep]
            nearest.distances[where] = best.distances[keep]
            nearest.ranks[where] = best.ranks[keep]
        return nearest

    def _best(self, view: IndexView, queries: FloatArray, shortlist: Shortlist) -> Scored:
        if not self._offer_few(view, queries, shortlist):
            for offset, products in view.vectors.chunks(queries, view.dead):
                shortlist.add(offset, products)
                if shortlist.count >= _PENDING:
                    self._score(view, queries, shortlist)
        self._score(view, queries, shortlist)
        return shortlist.best

    def _score(self, view: IndexView, queries: FloatArray, shortlist: Shortlist) -> None:
        """Scores the pending candidates."""
        if not shortlist.count:
            return
        rows, positions = shortlist.take()
        distances = np.empty(len(rows))
        for start in range(0, len(rows), _PAIRS):
            part = slice(start, start + _PAIRS)
            distances[part] = self.distances(queries[rows[part]], view.vectors_at(positions[part]))
        shortlist.keep(Scored(rows, positions, view.orders_at(positions), distances, self.ranks(distances)))

    def _offer_few(self, view: IndexView, queries: FloatArray, shortlist: Shortlist) -> bool:
        """Offers the candidates of the int8 copy. Returns False, offering none, if it would be no gain."""
        if view.codes is None or len(queries) > min(_FEW, 2 + len(view) // _FEW_ROWS):
            return False
        products = shortlist.products
        kept = candidates(view.codes, view.dead, queries, shortlist.k, view.max_norm, products.ties, shortlist.floor)
        for row, positions in enumerate(kept or ()):
            shortlist.offer(row, positions, _gathered_products(view, queries[row], positions))
        return kept is not None


def _gathered_products(view: IndexView, query: FloatArray, positions: IntArray) -> FloatArray:
    """Float32 products [c] of `query` [d] with the references at `positions` [c]."""
    products = np.empty(len(positions), dtype=np.float32)
    for start in range(0, len(positions), _PAIRS):
        part = slice(start, start + _PAIRS)
        products[part] = view.vectors_at(positions[part]) @ query
    return products


class Scored(NamedTuple):
    """Candidates with their exact distance."""

    rows: IntArray  # [c] the query
    positions: IntArray  # [c] the reference
    orders: IntArray  # [c] its order number
    distances: DoubleArray  # [c] contract distance
    ranks: DoubleArray  # [c] higher is better

    def columns(self) -> IntArray:
        """The index [c] of each within its row, from 0. Requires sorting by row."""
        return np.arange(len(self.rows)) - np.searchsorted(self.rows, self.rows)


class Shortlist:
    """The best k references of `rows` queries, from chunks of float32 products.

    `add` checks the largest product of each cell of references first, to skip most cells. Candidates are not excluded
    by `products.cut`, >= `floor` and not -inf. The caller must `take` them, score them and pass them to `keep`.
    """

    def __init__(
        self, rows: int, k: int, products: ProductFilter, floor: float, vectors: HostVectors | DeviceVectors
    ) -> None:
        """`vectors`: those of the products."""
        # Sorted by row, best first.
        self.best = Scored._make(np.empty(0, dtype=t) for t in (np.int64, np.int64, np.int64, float, float))
        self.k = k
        self.products = products
        self._vectors = vectors
        self.floor = max(floor, float(np.finfo(np.float32).min))
        self._top = np.full((rows, k), -np.inf, dtype=np.float32)  # each row's k largest maxima so far
        self._pending: list[tuple[IntArray, IntArray, FloatArray]] = []
        self.count = 0  # of the pending candidates

    def add(self, offset: int, products: Any) -> None:
        """Takes the float32 products [rows, c] of the references at positions offset .. offset + c - 1."""
        rows, count = products.shape
        # At least 4 k cells: then their maxima are nearly the k largest products.
        width = max(1, min(_CELL, count // (4 * self.k)))
        end = count - count % width
        self._add_cells(offset, products[:, :end].reshape(rows, end // width, width))
        if end < count:
            self._add_cells(offset + end, products[:, None, end:])

    def offer(self, row: int, positions: IntArray, products: FloatArray) -> None:
        """Adds candidates of one row: at least all that may be among its best."""
        self._top[row] = _largest(np.concatenate([self._top[row], products]), self.k)
        self._pending.append((np.full(len(positions), row), positions, products))
        self.count += len(positions)

    def _add_cells(self, offset: int, cells: Any) -> None:
        """Adds products [rows, n, width]; reads only cells whose largest product passes the cut."""
        highest = self._vectors.maxima(cells)
        # Cells are disjoint, so at least k products reach the k-th largest maximum.
        self._top = _largest(np.concatenate([self._top, highest], axis=1), self.k)
        cuts = self._cuts()
        row, cell = np.nonzero(highest >= cuts[:, None])
        if len(row) == 0:
            return
        kept, place, values = self._vectors.reaching(cells, row, cell, cuts[row])
        self._pending.append((row[kept], offset + cell[kept] * cells.shape[2] + place, values))
        self.count += len(values)

    def _cuts(self) -> FloatArray:
        """[rows] float32: lower products are excluded."""
        kth = self._top.min(axis=1).astype(np.float64)
        return np.maximum(self.products.cut(kth), self.floor).astype(np.float32)

    def take(self) -> tuple[IntArray, IntArray]:
        """Removes the pending candidates; returns rows and positions of those not excluded by now."""
        rows, positions, values = (np.concatenate(parts) for parts in zip(*self._pending, strict=True))
        self._pending, self.count = [], 0
        keep = values >= self._cuts()[rows]
        return rows[keep], positions[keep]

    def keep(self, scored: Scored) -> None:
        """Merges scored candidates into the best k of each row."""
        both = Scored._make(np.concatenate(pair) for pair in zip(self.best, scored, strict=True))
        sort = np.lexsort((both.positions, both.orders, -both.ranks, both.rows))
        ranked = Scored._make(column[sort] for column in both)
        first = ranked.columns() < self.k
        self.best = Scored._make(column[first] for column in ranked)


def _largest(values: FloatArray, k: int) -> FloatArray:
    """The k largest of the last axis, in any order."""
    if k == 1:
        return np.asarray(values.max(axis=-1, keepdims=True))
    return np.asarray(np.partition(values, values.shape[-1] - k)[..., -k:])
