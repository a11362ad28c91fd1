"""Which candidates of a chunked search are still worth an exact score, and the best k of those that got one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch

from pipeline.matching.error_bound import ProductFilter
from pipeline.types import DoubleArray, FloatArray, IntArray

# Candidates kept before they are scored: 24 MB. Only archives of near-copies reach it.
_PENDING: Final = 2**20
# References whose largest product is looked at before any of them.
_CELL: Final = 512


@dataclass(frozen=True)
class Scored:
    """Candidates with their exact distance, sorted by row and, within a row, best first."""

    rows: IntArray  # [c] the query
    positions: IntArray  # [c] the reference
    orders: IntArray  # [c] its order number
    distances: DoubleArray  # [c] contract distance
    ranks: DoubleArray  # [c] higher is better
    columns: IntArray  # [c] place within its row: 0 is the best


class Shortlist:
    """The best k references of `rows` queries, from chunks of float32 products.

    `add` looks at the largest product of each run of references first, so that those which cannot enter cost no
    more; it keeps what `products.cut` cannot exclude and what is not below `floor`. Products of -inf are no
    candidates.
    `settle` scores what was kept.
    """

    def __init__(self, rows: int, k: int, products: ProductFilter, floor: float) -> None:
        self.best = Scored(*(np.empty(0, dtype=t) for t in (np.int64, np.int64, np.int64, float, float, np.int64)))
        self.k = k
        self.products = products
        self.floor = max(floor, float(np.finfo(np.float32).min))
        self._top = np.full((rows, k), -np.inf, dtype=np.float32)  # each row's k largest maxima so far
        self._pending: list[tuple[IntArray, IntArray, FloatArray]] = []
        self._count = 0

    @property
    def full(self) -> bool:
        """Whether enough is pending that it should be settled now."""
        return self._count >= _PENDING

    def add(self, offset: int, products: torch.Tensor) -> None:
        """Takes the float32 products [rows, c] of the references at positions offset .. offset + c - 1."""
        rows, count = products.shape
        # At least four cells per wanted candidate: their maxima then give nearly the k largest products.
        width = max(1, min(_CELL, count // (4 * self.k)))
        whole = count - count % width
        self._add_cells(offset, products[:, :whole].view(rows, whole // width, width))
        if whole < count:
            self._add_cells(offset + whole, products[:, None, whole:])

    def offer(self, row: int, positions: IntArray, products: FloatArray) -> None:
        """Takes single candidates of one row and their float32 products: at least all that may be among its best."""
        both = np.concatenate([self._top[row], products])
        self._top[row] = np.partition(both, len(both) - self.k)[-self.k :]
        self._pending.append((np.full(len(positions), row), positions, products))
        self._count += len(positions)

    def _add_cells(self, offset: int, cells: torch.Tensor) -> None:
        """Takes products [rows, n, width]; only cells whose largest product may enter are looked into."""
        highest = cells.amax(dim=2)
        self._raise_top(highest)
        cuts = self._cuts()
        row, cell = np.nonzero(highest.cpu().numpy() >= cuts[:, None])
        if len(row) == 0:
            return
        device, width = cells.device, cells.shape[2]
        chosen = cells[torch.from_numpy(row).to(device), torch.from_numpy(cell).to(device)]
        limits = torch.from_numpy(cuts[row]).to(device)
        which, place = torch.nonzero(chosen >= limits[:, None], as_tuple=True)
        values = chosen[which, place].cpu().numpy()
        found = which.cpu().numpy()
        self._pending.append((row[found], offset + cell[found] * width + place.cpu().numpy(), values))
        self._count += len(values)

    def _raise_top(self, highest: torch.Tensor) -> None:
        """Takes the maxima [rows, n] of disjoint sets of candidates: at least k products reach the k-th largest."""
        top = torch.topk(highest, min(self.k, highest.shape[1]), dim=1).values
        both = np.concatenate([self._top, top.cpu().numpy()], axis=1)
        self._top = np.partition(both, both.shape[1] - self.k, axis=1)[:, -self.k :]

    def _cuts(self) -> FloatArray:
        """[rows] float32: products below are out."""
        kth = self._top.min(axis=1).astype(np.float64)
        return np.maximum(self.products.cut(kth), self.floor).astype(np.float32)

    def settle(
        self,
        score: Callable[[IntArray, IntArray], tuple[DoubleArray, IntArray]],
        rank: Callable[[DoubleArray], DoubleArray],
    ) -> None:
        """Scores what is pending and not yet excluded, and keeps the best k of each row in `best`.

        `score` gives distances and order numbers of (rows, positions); `rank` what to order distances by.
        """
        if not self._pending:
            return
        rows, positions, values = (np.concatenate(parts) for parts in zip(*self._pending, strict=True))
        self._pending, self._count = [], 0
        keep = values >= self._cuts()[rows]
        rows, positions = rows[keep], positions[keep]
        distances, orders = score(rows, positions)
        self._merge(rows, positions, orders, distances, rank(distances))

    def _merge(
        self, rows: IntArray, positions: IntArray, orders: IntArray, distances: DoubleArray, ranks: DoubleArray
    ) -> None:
        old = self.best
        rows = np.concatenate([old.rows, rows])
        positions = np.concatenate([old.positions, positions])
        orders = np.concatenate([old.orders, orders])
        distances = np.concatenate([old.distances, distances])
        ranks = np.concatenate([old.ranks, ranks])
        sort = np.lexsort((positions, orders, -ranks, rows))
        columns = np.arange(len(sort)) - np.searchsorted(rows[sort], rows[sort])
        sort, columns = sort[columns < self.k], columns[columns < self.k]
        self.best = Scored(rows[sort], positions[sort], orders[sort], distances[sort], ranks[sort], columns)
