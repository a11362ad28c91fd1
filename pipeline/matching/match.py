"""Exact search: the references that score highest against a face.

Float32 matrix products (`products`) only filter, and for few queries an int8 copy (`int8_filter`) before them.
Candidates that they cannot exclude (`error_bound.ProductFilter`) are scored by the exact function on the host, and ties
go to the lower order number. So the answer depends neither on the device nor on batch or chunk sizes. The
identical-image rule comes before any search: `IndexView.find_identical`.
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

# The int8 copy answers at most _FEW queries faster than a matrix product, and one for every _FEW_ROWS references.
_FEW: Final = 16
_FEW_ROWS: Final = 256
# Candidates gathered for exact scoring at once: 16 MB at 512 dimensions.
_PAIRS: Final = 4096
# Candidates that a thread keeps before they are scored: 24 MB. Only archives of near-copies reach it.
_PENDING: Final = 2**20
# References whose largest product is looked at before any of them.
_CELL: Final = 512


@dataclass(frozen=True)
class Nearest:
    """The k nearest references of m queries, nearest first; -1, NaN and -inf where there are fewer."""

    positions: IntArray  # [m, k] in the index
    distances: DoubleArray  # [m, k] contract distance
    ranks: DoubleArray  # [m, k] their order, higher first (`Matcher.ranks`)


class Matcher:
    """Scores and searches with one calibration and one threshold T in [0, 3.99] or 4. Raises BadValue for another T."""

    def __init__(self, calibration: Calibration, threshold: float) -> None:
        self.calibration = calibration
        self.threshold = check_threshold(threshold)

    def distances(self, a: FloatArray, b: FloatArray) -> DoubleArray:
        """[n] contract distances of the rows of `a` and `b`, both [n, d] float32."""
        return contract_distance(exact_dots(a, b), self.calibration)

    def scores(self, distances: DoubleArray) -> DoubleArray:
        """The similarityScore of each contract distance; NaN stays NaN."""
        return similarity_score(distances, self.threshold)

    def ranks(self, distances: DoubleArray) -> DoubleArray:
        """The order of candidates, higher first: the score, but -d at T = 4, where scores are levelled."""
        return -distances if self.threshold == EVERYBODY else self.scores(distances)

    def matches(self, distances: DoubleArray) -> BoolArray:
        """Which contract distances are a match: score >= 1.0; NaN is none. At T = 0 none is, not even 0: there only an
        identical image matches (contract, 4.1 and 4.2 rule 5), which no distance decides."""
        return np.asarray((self.scores(distances) >= 1.0) & (self.threshold > 0))

    def top_k(self, index: ReferenceIndex | IndexView, queries: FloatArray, k: int) -> tuple[IntArray, DoubleArray]:
        """The k best references of each query [m, d] (norm 1): positions and scores [m, min(k, len(index))].

        Exact: highest score first, equal scores by order number; -1 and NaN where fewer are alive. Raises UsageError
        for k < 1, EmbeddingInvalid, and DeviceError where the device's float32 products are not float32.
        """
        if k < 1:
            raise UsageError(message=f"The number of references to find must be at least 1, not {k}.")
        view = index.view()
        nearest = self.nearest(view, queries, min(k, len(view)))
        return nearest.positions, self.scores(nearest.distances)

    def nearest(
        self, index: ReferenceIndex | IndexView, queries: FloatArray, k: int, *, matching: bool = False
    ) -> Nearest:
        """As `top_k`, padded to k columns. `matching` leaves out references that don't match, which is cheaper: most
        queries of a new archive then have no candidate."""
        return with_room(lambda view: self._nearest(view, queries, k, matching=matching), index.view())

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
        """Scores the candidates that are pending."""
        if not shortlist.count:
            return
        rows, positions = shortlist.take()
        distances = np.empty(len(rows))
        for start in range(0, len(rows), _PAIRS):
            part = slice(start, start + _PAIRS)
            distances[part] = self.distances(queries[rows[part]], view.vectors_at(positions[part]))
        shortlist.keep(Scored(rows, positions, view.orders_at(positions), distances, self.ranks(distances)))

    def _offer_few(self, view: IndexView, queries: FloatArray, shortlist: Shortlist) -> bool:
        """Offers what the int8 copy cannot exclude. False: the copy is no gain here, and nothing was offered."""
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
        """The place of each in its row, if they are sorted by row: [c], from 0."""
        return np.arange(len(self.rows)) - np.searchsorted(self.rows, self.rows)


class Shortlist:
    """The best k references of `rows` queries, from chunks of float32 products.

    `add` looks at the largest product of each cell of references first, so that cells which cannot enter cost no more.
    It keeps candidates that `products.cut` cannot exclude and that are not below `floor`; products of -inf are no
    candidates. The caller scores what it can `take`, and gives it back to `keep`.
    """

    def __init__(
        self, rows: int, k: int, products: ProductFilter, floor: float, vectors: HostVectors | DeviceVectors
    ) -> None:
        """`vectors`: what the chunks of products are of."""
        # Sorted by row and, within a row, best first.
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
        # At least four cells for each of k candidates: then their maxima give nearly the k largest products.
        width = max(1, min(_CELL, count // (4 * self.k)))
        end = count - count % width
        self._add_cells(offset, products[:, :end].reshape(rows, end // width, width))
        if end < count:
            self._add_cells(offset + end, products[:, None, end:])

    def offer(self, row: int, positions: IntArray, products: FloatArray) -> None:
        """Takes candidates of one row with their float32 products: at least all that may be among its best."""
        self._top[row] = _largest(np.concatenate([self._top[row], products]), self.k)
        self._pending.append((np.full(len(positions), row), positions, products))
        self.count += len(positions)

    def _add_cells(self, offset: int, cells: Any) -> None:
        """Takes products [rows, n, width]; looks only into cells whose largest product may enter."""
        highest = self._vectors.maxima(cells)
        # The maxima are of disjoint sets of candidates: at least k products reach the k-th largest.
        self._top = _largest(np.concatenate([self._top, highest], axis=1), self.k)
        cuts = self._cuts()
        row, cell = np.nonzero(highest >= cuts[:, None])
        if len(row) == 0:
            return
        kept, place, values = self._vectors.reaching(cells, row, cell, cuts[row])
        self._pending.append((row[kept], offset + cell[kept] * cells.shape[2] + place, values))
        self.count += len(values)

    def _cuts(self) -> FloatArray:
        """[rows] float32: products below are out."""
        kth = self._top.min(axis=1).astype(np.float64)
        return np.maximum(self.products.cut(kth), self.floor).astype(np.float32)

    def take(self) -> tuple[IntArray, IntArray]:
        """Rows and positions of the pending candidates that are not excluded by now; none is pending any more."""
        rows, positions, values = (np.concatenate(parts) for parts in zip(*self._pending, strict=True))
        self._pending, self.count = [], 0
        keep = values >= self._cuts()[rows]
        return rows[keep], positions[keep]

    def keep(self, scored: Scored) -> None:
        """Takes candidates with their scores, and keeps the best k of each row."""
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
