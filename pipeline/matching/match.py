"""Exact search: the references that score highest against a face.

Float32 matrix products on the device only filter, and for few queries an int8 copy (`quantized`) before them;
whatever they cannot exclude (`bound.ProductFilter`) is scored by the exact function on the host, and ties go to
the lower order number. So the answer depends neither on the device nor on batch or chunk sizes. The
identical-image rule stands before any search: `IndexView.find_identical`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch

from pipeline.errors import UsageError
from pipeline.matching.error_bound import ProductFilter, check_full_precision
from pipeline.matching.int8_filter import candidates
from pipeline.matching.references import IndexView, ReferenceIndex, check_embeddings
from pipeline.matching.score import (
    MAX_THRESHOLD,
    Calibration,
    check_threshold,
    contract_distance,
    exact_dots,
    similarity_score,
)
from pipeline.matching.shortlist import Shortlist
from pipeline.types import BoolArray, DoubleArray, FloatArray, IntArray

__all__ = [
    "Calibration",
    "IndexView",
    "Matcher",
    "Nearest",
    "ReferenceIndex",
    "contract_distance",
    "exact_dots",
    "similarity_score",
]

QUERY_ROWS: Final = 1024  # queries in one product
# A product has at least so many references, and more when the queries are few: up to so many elements. On the CPU
# 8 MB of products stay in the cache for the row maximum; on CUDA each chunk costs a synchronisation.
_CHUNK: Final = 2048
# Queries that the int8 copy, if there is one, answers faster than a matrix product: at most so many, and one for
# every so many references.
_FEW: Final = 16
_FEW_ROWS: Final = 256
_ELEMENTS: Final = {"cpu": 2**21, "cuda": 2**25}
# Candidates gathered for exact scoring at once: 16 MB at 512 dimensions.
_PAIRS: Final = 4096


@dataclass(frozen=True)
class Nearest:
    """The k nearest references of m queries, nearest first; where there are fewer, -1, NaN and -inf."""

    positions: IntArray  # [m, k] in the index
    distances: DoubleArray  # [m, k] contract distance
    ranks: DoubleArray  # [m, k] what they are ordered by, higher first (`Matcher.ranks`)


class Matcher:
    """Scores and searches with one calibration and one threshold T in [0, 4]. Raises BadValue for another T."""

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
        """What candidates are ordered by, higher first: the score, and at T = 4, where scores are levelled, -d."""
        return -distances if self.threshold == MAX_THRESHOLD else self.scores(distances)

    def matches(self, distances: DoubleArray) -> BoolArray:
        """Which contract distances are a match: score >= 1.0; NaN is none. At T = 0 none is, not even 0: only an
        identical image still matches there (contract, 4.1 and 4.2 rule 5), and that is no matter of distance."""
        return np.asarray((self.scores(distances) >= 1.0) & (self.threshold > 0))

    def top_k(self, index: ReferenceIndex | IndexView, queries: FloatArray, k: int) -> tuple[IntArray, DoubleArray]:
        """The k best references of each query [m, d] (norm 1): positions and scores [m, min(k, len(index))].

        Exact: highest score first, equal scores in the order of their order numbers; -1 and NaN where fewer are
        alive. Raises UsageError for k < 1, EmbeddingInvalid, and DeviceError where the device's float32 products
        are not float32.
        """
        if k < 1:
            raise UsageError(message=f"The number of references to find must be at least 1, not {k}.")
        view = index.view()
        nearest = self.nearest(view, queries, min(k, len(view)))
        return nearest.positions, self.scores(nearest.distances)

    def best(self, index: ReferenceIndex | IndexView, queries: FloatArray) -> tuple[IntArray, DoubleArray]:
        """The best reference of each query [m, d]: positions and scores [m]; -1 and NaN where none is alive."""
        nearest = self.nearest(index, queries, 1)
        return nearest.positions[:, 0], self.scores(nearest.distances[:, 0])

    def nearest(
        self, index: ReferenceIndex | IndexView, queries: FloatArray, k: int, *, matching: bool = False
    ) -> Nearest:
        """As `top_k`, padded to k columns; `matching` leaves out references with a score below 1.0 (cheaper:
        most queries of a new archive then have no candidate at all)."""
        view = index.view()
        norm = check_embeddings(queries, view.embedding_size)
        check_full_precision(view.device)
        found = Nearest(
            np.full((len(queries), k), -1, dtype=np.int64),
            np.full((len(queries), k), np.nan),
            np.full((len(queries), k), -np.inf),
        )
        if k == 0 or len(view) == 0:
            return found
        products = ProductFilter(view.embedding_size, norm * view.max_norm, self.calibration)
        floor = products.match_cut(self.threshold) if matching else -np.inf
        for start in range(0, len(queries), QUERY_ROWS):
            rows = slice(start, start + QUERY_ROWS)
            shortlist = Shortlist(len(queries[rows]), k, products, floor)
            self._scan(view, queries[rows], shortlist)
            self._fill(found, rows, shortlist, matching)
        return found

    def _scan(self, view: IndexView, queries: FloatArray, shortlist: Shortlist) -> None:
        def score(rows: IntArray, positions: IntArray) -> tuple[DoubleArray, IntArray]:
            distances = self._pair_distances(queries, view, rows, positions)
            return distances, view.order[positions]

        if self._offer_few(view, queries, shortlist):
            shortlist.settle(score, self.ranks)
            return
        for offset, products in _products(view, queries):
            shortlist.add(offset, products)
            if shortlist.full:
                shortlist.settle(score, self.ranks)
        shortlist.settle(score, self.ranks)

    def _offer_few(self, view: IndexView, queries: FloatArray, shortlist: Shortlist) -> bool:
        """Offers what the int8 copy cannot exclude. False: it does not pay here, and nothing was offered."""
        if view.codes is None or len(queries) > min(_FEW, 2 + len(view) // _FEW_ROWS):
            return False
        products = shortlist.products
        found = candidates(view.codes, view.dead, queries, shortlist.k, view.max_norm, products.ties, shortlist.floor)
        for row, positions in enumerate(found or ()):
            shortlist.offer(row, positions, _gathered_products(view, queries[row], positions))
        return found is not None

    def _fill(self, found: Nearest, rows: slice, shortlist: Shortlist, matching: bool) -> None:
        best = shortlist.best
        keep = self.matches(best.distances) if matching else slice(None)
        where = best.rows[keep] + rows.start, best.columns[keep]
        found.positions[where] = best.positions[keep]
        found.distances[where] = best.distances[keep]
        found.ranks[where] = best.ranks[keep]

    def _pair_distances(self, queries: FloatArray, view: IndexView, rows: IntArray, positions: IntArray) -> DoubleArray:
        distances = np.empty(len(rows))
        for start in range(0, len(rows), _PAIRS):
            part = slice(start, start + _PAIRS)
            distances[part] = self.distances(queries[rows[part]], view.host_vectors[positions[part]])
        return distances


def _products(view: IndexView, queries: FloatArray) -> Iterator[tuple[int, torch.Tensor]]:
    """Float32 products of `queries` [m, d] with chunks of the references: (first position, [m, chunk]) on the
    device, in a buffer that the next chunk overwrites; -inf for the dead."""
    rows = len(queries)
    chunk = max(_CHUNK, _ELEMENTS[view.device.type] // rows)
    on_device = torch.from_numpy(np.ascontiguousarray(queries)).to(view.device)
    buffer = torch.empty(rows * min(chunk, len(view)), dtype=torch.float32, device=view.device)
    for start in range(0, len(view), chunk):
        references = view.vectors[start : start + chunk]
        products = buffer[: rows * len(references)].view(rows, len(references))
        torch.mm(on_device, references.T, out=products)
        dead = view.dead[slice(*np.searchsorted(view.dead, (start, start + len(references))))] - start
        if len(dead):
            products[:, torch.from_numpy(dead).to(view.device)] = -torch.inf
        yield start, products


def _gathered_products(view: IndexView, query: FloatArray, positions: IntArray) -> FloatArray:
    """Float32 products [c] of `query` [d] with the references at `positions` [c]."""
    products = np.empty(len(positions), dtype=np.float32)
    for start in range(0, len(positions), _PAIRS):
        part = slice(start, start + _PAIRS)
        products[part] = view.host_vectors[positions[part]] @ query
    return products
