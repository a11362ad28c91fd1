"""Average-link grouping: all faces of a directory at once, by all pairs of their faces.

1. Tight groups: a face joins the first group all of whose members have at least a tight dot product with it (greedy
   complete link); else it founds one. This makes the second step 20 to 60 times faster (Apple, "Recognizing People in
   Photos Through Private On-Device Machine Learning", 2021).
2. Agglomeration (UPGMA: Sokal and Michener 1958, "A statistical method for evaluating systematic relationships"): the
   two most similar clusters are joined until none reach the cut. The similarity of two clusters is the mean dot product
   of all pairs of their faces, computed as S_a . S_b / (n_a n_b) from the sums S and counts n of their vectors.

Only clusters that an edge joins are compared; edges unite if their clusters do. Each cluster of step 1 has edges to its
k most similar that reach the cut. A mean of pairs reaches it only if some pair does, so with k = all the result is that
of comparing all clusters. Edges are between groups, not faces: all nearest neighbours of a face can be in its own
group, which then would have no edge to other groups of the same person.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any, Final

import numpy as np

from pipeline.errors import UsageError
from pipeline.matching.calibration import Calibration
from pipeline.matching.error_bound import ProductFilter
from pipeline.matching.references import IndexView, ReferenceIndex, check_embeddings, with_room
from pipeline.matching.score import contract_distance, dot_at
from pipeline.runtime.device import HOST
from pipeline.runtime.optional_kernels import if_compiled
from pipeline.types import DoubleArray, FloatArray, IntArray

GROUP_FACES: Final = 64  # at most, in a tight group
TIGHT_FMR: Final = 1e-6
_EQUAL: Final = 1 - 1e-6  # dot product of vectors that only rounding tells apart
NEIGHBOURS: Final = 50  # edges of a cluster to its nearest
_BLOCK: Final = 1024  # faces compared at once
_ROUNDING: Final = 1e-6  # of means to float32


@dataclass(frozen=True)
class FacesToLink:
    """n faces in the order of the store, with their constraints."""

    embeddings: FloatArray  # [n, d] float32 of norm 1
    photos: IntArray  # [n] two faces of one photo are of two people; -1: no constraint
    linked: IntArray  # [n] the set of faces of one person that it is in, numbered from 0 without gaps; -1: none
    labels: IntArray  # [sets, l] sets with different labels in a column are of two people; -1: no label
    apart: IntArray  # [p, 2] pairs of sets of two people

    @classmethod
    def without_constraints(cls, embeddings: FloatArray) -> FacesToLink:
        none, pairs = np.full(len(embeddings), -1), np.empty((0, 2), np.int64)
        return cls(embeddings, none, none, pairs, pairs)


@dataclass(frozen=True)
class Linkage:
    """Clusters to begin with, and j joins of them, the most similar first."""

    first: IntArray  # [n] of each face
    joins: IntArray  # [j, 2] the second becomes part of the first
    similarities: DoubleArray  # [j] mean dot product of their faces

    def clusters(self, least: float = -np.inf) -> IntArray:
        """[n] The cluster of each face if joins end at the first one below `least`."""
        owner = np.arange(int(self.first.max(initial=-1)) + 1)
        below = np.flatnonzero(self.similarities < least)
        # From the last: then what a cluster became part of has its final owner.
        for one, two in self.joins[: below[0] if len(below) else None][::-1].tolist():
            owner[two] = owner[one]
        return owner[self.first]


def average_link(
    faces: FacesToLink,
    calibration: Calibration,
    *,
    cut: float,
    tight: float | None = None,
    device: str = HOST,
    group_faces: int = GROUP_FACES,
    neighbours: int = NEIGHBOURS,
) -> Linkage:
    """Links n faces. `cut` and `tight`, in [0, 4], are the thresholds T whose dot products the two steps require;
    `tight` None: that of the false match rate 1e-6, or without a table of rates of nearly equal vectors, such as copies
    of a photo have.

    Linked sets are clusters from the start; constraints hold for all joins. Memory: 12 n d bytes, and 60 bytes for each
    of up to n `neighbours` edges. Raises UsageError, EmbeddingInvalid, and DeviceError if the device's float32 products
    have reduced precision.
    """
    if neighbours < 1 or group_faces < 1:
        raise UsageError(message=f"Neighbours and faces of a group are at least 1, not {neighbours}, {group_faces}.")
    size = faces.embeddings.shape[1]
    norm = check_embeddings(faces.embeddings, size)
    products = ProductFilter(size, norm * norm, calibration)
    if tight is None:
        tight = calibration.threshold_near(TIGHT_FMR)
    if tight is None:
        tight = float(contract_distance(np.array(_EQUAL), calibration)) ** 2
    sets = int(faces.linked.max(initial=-1)) + 1
    free = np.flatnonzero(faces.linked < 0)
    first = faces.linked.copy()
    first[free] = sets + tight_groups(
        faces.embeddings[free], faces.photos[free], products, min(tight, cut), group_faces, device
    )
    sums, counts = _sums(faces.embeddings, first)
    joins = np.empty((max(0, len(counts) - 1), 2), np.int64)
    similarities = np.empty(len(joins))
    labels = np.full((len(counts), faces.labels.shape[1]), -1)
    labels[:sets] = faces.labels
    made = _kernels().agglomerate(
        sums,
        counts,
        labels,
        _edges(sums, counts, products, cut, neighbours, device),
        *_excluded(faces, first),
        dot_at(cut, calibration),
        joins,
        similarities,
    )
    return Linkage(first, joins[:made].copy(), similarities[:made].copy())


def _load() -> ModuleType:
    from pipeline.matching import average_link_kernels

    return average_link_kernels


_compiled = if_compiled(_load)


def _kernels() -> ModuleType:
    return _compiled() or _load()


def tight_groups(
    vectors: FloatArray, photos: IntArray, products: ProductFilter, tight: float, most: int, device: str
) -> IntArray:
    """[n] The number of each face's group, in order of their first faces. In order, each face joins the first group of
    fewer than `most` faces all of which are of other photos and have a dot of at least that of T = `tight` with it."""
    count = len(vectors)
    if most == 1:
        return np.arange(count)
    founders = ReferenceIndex(vectors.shape[1], device)
    group_of, previous = np.full(count, -1), np.full(count, -1)
    last, sizes = np.full(count, -1), np.zeros(count, np.int64)
    cut, dot, kernels = products.match_cut(tight), dot_at(tight, products.calibration), _kernels()
    groups = 0
    for start in range(0, count, _BLOCK):
        block = vectors[start : start + _BLOCK]
        rows, earlier, _ = _reaching(founders.view(), block, cut)
        pair_rows, partners, _ = founders.view().vectors.pairs(block, np.arange(len(block)), cut)
        places = np.arange(len(block) + 1)
        before = groups
        groups = kernels.join_tight_groups(
            vectors,
            photos,
            start,
            np.searchsorted(rows, places),
            earlier,
            np.searchsorted(pair_rows, places),
            partners,
            dot,
            most,
            group_of,
            previous,
            last,
            sizes,
            groups,
        )
        own = group_of[start : start + len(block)]
        new = start + np.flatnonzero((own >= before) & (previous[start : start + len(block)] < 0))
        founders.append(vectors[new], np.arange(before, groups), [()] * len(new), np.zeros((len(new), 4), np.float32))
        full = np.flatnonzero(sizes[:groups] >= most)
        founders.remove(np.setdiff1d(full, founders.view().dead))
    return group_of


def _reaching(view: IndexView, queries: FloatArray, cut: float) -> tuple[IntArray, IntArray, FloatArray]:
    """Row, position and product of the live references whose float32 product with a query is at least `cut`; by row,
    ascending."""
    least = np.float32(max(cut, float(np.finfo(np.float32).min)))

    def of_part(view: IndexView, part: slice) -> list[tuple[IntArray, IntArray, FloatArray]]:
        found = [(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.float32))]
        for offset, products in view.vectors.chunks(queries[part], view.dead) if len(view) else ():
            cells: Any = products[:, None]  # of one width
            rows, cell = np.nonzero(view.vectors.maxima(cells) >= least)
            kept, place, values = view.vectors.reaching(cells, rows, cell, np.full(len(rows), least))
            found.append((part.start + rows[kept], offset + place, values))
        return found

    def search(view: IndexView) -> tuple[IntArray, IntArray, FloatArray]:
        found = [each for _, part in view.vectors.in_parts(partial(of_part, view), len(queries)) for each in part]
        rows, positions, values = (np.concatenate(parts) for parts in zip(*found, strict=True))
        order = np.lexsort((positions, rows))
        return rows[order], positions[order], values[order]

    return with_room(search, view)


def _sums(vectors: FloatArray, first: IntArray) -> tuple[DoubleArray, IntArray]:
    """The float64 sum [m, d] and number [m] of the vectors of each cluster."""
    counts = np.bincount(first)
    sums = np.zeros((len(counts), vectors.shape[1]))
    np.add.at(sums, first, vectors)
    return sums, counts


def _edges(
    sums: DoubleArray, counts: IntArray, products: ProductFilter, cut: float, neighbours: int, device: str
) -> IntArray:
    """[e, 2] Each of m clusters and its nearest: pairs of numbers, the lower first, each once, ascending."""
    count, k = len(counts), max(1, min(neighbours, len(counts) - 1))
    lengths = np.linalg.norm(sums, axis=1, keepdims=True)
    means = (sums / lengths).astype(np.float32)
    index = ReferenceIndex(means.shape[1], device)
    index.append(means, np.arange(count), [()] * count, np.zeros((count, 4), np.float32))
    kept, similarities = np.empty((count, k), np.int32), np.empty((count, k))
    fill = np.zeros(count, np.int64)
    kernels = _kernels()
    slack, dot = products.bound + _ROUNDING, dot_at(cut, products.calibration)
    # The cosine of two means is at least their mean dot product, unless that is negative.
    least = products.match_cut(cut) - _ROUNDING if dot >= 0 else -np.inf
    for start in range(0, count, _BLOCK):
        block = means[start : start + _BLOCK]
        earlier = index.view().part(range(start + len(block)))
        rows, others, values = _reaching(earlier, block, least)
        kernels.keep_nearest(
            sums,
            counts,
            lengths[:, 0] / counts,
            start,
            rows,
            others,
            values,
            slack,
            dot,
            kept,
            similarities,
            fill,
        )
    one, column = np.nonzero(np.arange(k) < fill[:, None])
    two = kept[one, column]
    pairs = np.unique(np.minimum(one, two) * count + np.maximum(one, two))
    return np.stack(np.divmod(pairs, max(1, count)), axis=1)


def _excluded(faces: FacesToLink, first: IntArray) -> tuple[IntArray, IntArray, IntArray]:
    """Clusters [q], and for each the range of those that show the same photo. A pair that is apart counts as one."""
    shared = faces.photos >= 0
    pairs = len(faces.apart)
    photos = np.concatenate([faces.photos[shared], -1 - np.repeat(np.arange(pairs), 2)])
    order = np.argsort(photos, kind="stable")
    clusters = np.concatenate([first[shared], faces.apart.reshape(-1)])[order]
    photos = photos[order]
    return clusters, np.searchsorted(photos, photos), np.searchsorted(photos, photos, side="right")
