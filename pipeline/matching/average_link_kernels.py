"""The loops of `average_link`: compiled with numba, without the interpreter's lock; else plain Python, which gives the
same, a hundred times more slowly."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any

import numpy as np

try:
    from pipeline.runtime.compiled import compiled
except (ImportError, OSError):  # no numba, or its library is missing

    def compiled(_: str | None = None) -> Callable[[Any], Any]:  # type: ignore[misc]
        return lambda function: function


@compiled()
def _dot(a: Any, i: int, b: Any, j: int) -> float:
    """The dot product of the rows a[i] and b[j]: float64, in index order."""
    total = 0.0
    for k in range(a.shape[1]):
        total += np.float64(a[i, k]) * np.float64(b[j, k])
    return total


@compiled(
    "i8(Array(f4, 2, 'C', readonly=True), Array(i8, 1, 'C', readonly=True), i8, i8[::1], i8[::1], i8[::1], i8[::1], f8,"
    " i8, i8[::1], i8[::1], i8[::1], i8[::1], i8)"
)
def join_tight_groups(
    vectors: Any,
    photos: Any,
    start: int,
    earlier_starts: Any,
    earlier: Any,
    pair_starts: Any,
    partners: Any,
    tight: float,
    most: int,
    group_of: Any,
    previous: Any,
    last: Any,
    sizes: Any,
    groups: int,
) -> int:
    """Decides the block of b faces from `start` on: each joins the first group of fewer than `most` faces, all of which
    have a dot >= `tight` with it and are of other photos; else it founds one. Returns the number of groups.

    `vectors` [n, d], `photos` [n] (-1: shares its photo with no other). Face start + r may join the groups earlier[i],
    ascending, for i in earlier_starts[r] : earlier_starts[r + 1], founded before the block; and those founded by faces
    start + partners[i], ascending, for i in pair_starts[r] : pair_starts[r + 1]. Fills group_of [n], previous [n]: the
    member before each, or -1; last and sizes [n] of each group.
    """
    for row in range(len(earlier_starts) - 1):
        face, joined = start + row, -1
        before = earlier_starts[row + 1] - earlier_starts[row]
        for i in range(before + pair_starts[row + 1] - pair_starts[row]):
            if i < before:
                group = earlier[earlier_starts[row] + i]
            else:
                founder = start + partners[pair_starts[row] + i - before]
                if previous[founder] >= 0:  # it joined
                    continue
                group = group_of[founder]
            if sizes[group] >= most:
                continue
            member, fits = last[group], True
            while fits and member >= 0:
                fits = (photos[face] < 0 or photos[face] != photos[member]) and _dot(
                    vectors, face, vectors, member
                ) >= tight
                member = previous[member]
            if fits:
                joined = group
                break
        if joined < 0:
            joined = groups
            groups += 1
            last[joined], sizes[joined] = -1, 0
        group_of[face], previous[face], last[joined] = joined, last[joined], face
        sizes[joined] += 1
    return groups


@compiled()
def _keep(kept: Any, similarities: Any, fill: Any, row: int, other: int, similarity: float) -> None:
    """Inserts into a row's k most similar, sorted; of equals the lower number is first."""
    k = kept.shape[1]
    place = fill[row]
    if place == k:
        place -= 1
        lowest = similarities[row, place]
        if similarity < lowest or (similarity == lowest and other > kept[row, place]):
            return
    else:
        fill[row] += 1
    while place > 0 and (
        similarities[row, place - 1] < similarity
        or (similarities[row, place - 1] == similarity and kept[row, place - 1] > other)
    ):
        kept[row, place], similarities[row, place] = kept[row, place - 1], similarities[row, place - 1]
        place -= 1
    kept[row, place], similarities[row, place] = other, similarity


@compiled("void(f8[:,::1], i8[::1], f8[::1], i8, i8[::1], i8[::1], f4[::1], f8, f8, i4[:,::1], f8[:,::1], i8[::1])")
def keep_nearest(
    sums: Any,
    counts: Any,
    norms: Any,
    start: int,
    rows: Any,
    others: Any,
    products: Any,
    slack: float,
    least: float,
    kept: Any,
    similarities: Any,
    fill: Any,
) -> None:
    """Keeps for each of m clusters the k others of the highest mean dot product, at least `least`.

    `sums` [m, d] and `counts` [m] of each cluster's vectors, `norms` [m] of their means. `products` [c]: float32,
    within `slack`, of the unit means of the clusters start + rows[i] and others[i]; those with others[i] below
    start + rows[i] are used. Updates kept [m, k] and similarities [m, k], the most similar first, and fill [m], the
    number kept.
    """
    k = kept.shape[1]
    for i in range(len(rows)):
        one, two = start + rows[i], others[i]
        if two >= one:
            continue
        highest = (products[i] + slack) * norms[one] * norms[two] + slack
        if fill[one] < k or highest >= similarities[one, k - 1] or fill[two] < k or highest >= similarities[two, k - 1]:
            similarity = _dot(sums, one, sums, two) / (counts[one] * counts[two])
            if similarity >= least:
                _keep(kept, similarities, fill, one, two, similarity)
                _keep(kept, similarities, fill, two, one, similarity)


@compiled()
def _cluster_of(owner: Any, cluster: int) -> int:
    """The cluster that this one is part of by now."""
    while owner[cluster] != cluster:
        owner[cluster] = owner[owner[cluster]]
        cluster = owner[cluster]
    return cluster


@compiled()
def _add(first: Any, last: Any, after: Any, cluster: int, item: int) -> None:
    """Appends an item to a cluster's linked list."""
    if first[cluster] < 0:
        first[cluster] = item
    else:
        after[last[cluster]] = item
    last[cluster] = item


@compiled()
def _append(first: Any, last: Any, after: Any, one: int, two: int) -> None:
    """Appends the list of cluster `two` to that of `one`."""
    if first[two] >= 0:
        end = last[two]
        _add(first, last, after, one, first[two])
        last[one] = end


@compiled("i8(f8[:,::1], i8[::1], i8[:,::1], i8[:,::1], i8[::1], i8[::1], i8[::1], f8, i8[:,::1], f8[::1])")
def agglomerate(
    sums: Any,
    counts: Any,
    labels: Any,
    edges: Any,
    excluded: Any,
    starts: Any,
    ends: Any,
    least: float,
    joins: Any,
    similarities: Any,
) -> int:
    """Joins the two most similar of m clusters, of equals those of the lowest numbers, while their similarity is at
    least `least`. Returns the number of joins, and fills `joins` [m - 1, 2] and `similarities` [m - 1].

    `sums` [m, d] and `counts` [m] of each cluster's vectors; overwritten. `edges` [e, 2]: the pairs that are compared,
    each once, lower number first. Two clusters with different `labels` [m, l], both not -1, in a column stay separate;
    so do those that share a photo: the clusters excluded[starts[i] : ends[i]] show one photo with excluded[i]. A joined
    cluster has the lower number.
    """
    m = len(counts)
    owner, version, seen = np.arange(m), np.zeros(m, np.int64), np.full(m, -1)
    first_edge, last_edge, next_edge = np.full(m, -1), np.full(m, -1), np.full(2 * len(edges), -1)
    target = np.empty(2 * len(edges), np.int64)
    first_face, last_face, next_face = np.full(m, -1), np.full(m, -1), np.full(len(excluded), -1)
    faces = np.zeros(m, np.int64)
    heap = [(0.0, 0, 0, 0) for _ in range(0)]
    for edge in range(len(edges)):
        a, b = edges[edge, 0], edges[edge, 1]
        target[2 * edge], target[2 * edge + 1] = b, a
        _add(first_edge, last_edge, next_edge, a, 2 * edge)
        _add(first_edge, last_edge, next_edge, b, 2 * edge + 1)
        similarity = _dot(sums, a, sums, b) / (counts[a] * counts[b])
        if similarity >= least:
            heap.append((-similarity, a, b, 0))
    for face in range(len(excluded)):
        _add(first_face, last_face, next_face, excluded[face], face)
        faces[excluded[face]] += 1
    heapq.heapify(heap)
    made = 0
    while len(heap) > 0:
        negative, a, b, versions = heapq.heappop(heap)
        if owner[a] != a or owner[b] != b or version[a] + version[b] != versions:
            continue
        apart = False
        for column in range(labels.shape[1]):
            one, two = labels[a, column], labels[b, column]
            apart |= one >= 0 and two >= 0 and one != two
        fewer, more = (a, b) if faces[a] <= faces[b] else (b, a)
        face = first_face[fewer]
        while not apart and face >= 0:
            for other in range(starts[face], ends[face]):
                apart |= _cluster_of(owner, excluded[other]) == more
            face = next_face[face]
        if apart:
            continue
        joins[made, 0], joins[made, 1], similarities[made] = a, b, -negative
        made += 1
        owner[b] = a
        version[a] += 1
        counts[a] += counts[b]
        faces[a] += faces[b]
        for i in range(sums.shape[1]):
            sums[a, i] += sums[b, i]
        for column in range(labels.shape[1]):
            labels[a, column] = max(labels[a, column], labels[b, column])
        _append(first_face, last_face, next_face, a, b)
        _append(first_edge, last_edge, next_edge, a, b)
        edge, kept = first_edge[a], -1
        while edge >= 0:
            other = _cluster_of(owner, target[edge])
            if other != a and seen[other] != made:
                seen[other] = made
                similarity = _dot(sums, a, sums, other) / (counts[a] * counts[other])
                if similarity >= least:
                    heapq.heappush(heap, (-similarity, min(a, other), max(a, other), version[a] + version[other]))
                if kept < 0:
                    first_edge[a] = edge
                else:
                    next_edge[kept] = edge
                kept = edge
            edge = next_edge[edge]
        if kept < 0:
            first_edge[a] = -1
        else:
            next_edge[kept] = -1
        last_edge[a] = kept
    return made
