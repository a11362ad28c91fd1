"""All pairs of the photos of known people: of n photos n (n - 1) / 2, in blocks, so that only the distances stay."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from pipeline.errors import InputError
from pipeline.evaluation.statistics.rates import to_distance
from pipeline.types import BoolArray, DoubleArray, FloatArray, IntArray

# Their distances take 8 bytes each, 1.6 GB; to find a threshold among them they are copied once.
MAX_PAIRS: Final = 200_000_000
_BLOCK_ROWS: Final = 128


def all_distances(embeddings: FloatArray, people: IntArray) -> tuple[DoubleArray, DoubleArray, IntArray]:
    """All pairs of [n, d] unit vectors of known people [n]: genuine and impostor distances, and which genuine pairs.

    Returns the genuine distances [g], the impostor distances [i], and the genuine pairs' rows [g, 2]. Raises
    InputError for more than MAX_PAIRS pairs.
    """
    count = len(people) * (len(people) - 1) // 2
    if count > MAX_PAIRS:
        raise InputError(
            message=f"{len(people):,} photos make {count:,} pairs, more than the {MAX_PAIRS:,} that fit into memory. "
            "Give a part of the people."
        )
    genuine, rows = [np.zeros(0)], [np.zeros((0, 2), np.int64)]
    photos = np.unique(people, return_counts=True)[1]
    impostor = np.empty(count - int((photos * (photos - 1) // 2).sum()))
    filled = 0
    for first, second, distances in _blocks(embeddings):
        same = people[first] == people[second]
        genuine.append(distances[same])
        rows.append(np.stack([first[same], second[same]], axis=1))
        others = distances[~same]
        impostor[filled : filled + len(others)] = others
        filled += len(others)
    return np.concatenate(genuine), impostor, np.concatenate(rows)


def closest_impostors(embeddings: FloatArray, people: IntArray, within: float) -> tuple[DoubleArray, IntArray]:
    """The impostor pairs of `all_distances` no farther than `within`, ascending: distances [t] and rows [t, 2]."""
    distances, rows = [np.zeros(0)], [np.zeros((0, 2), np.int64)]
    for first, second, block in _blocks(embeddings):
        chosen: BoolArray = (block <= within) & (people[first] != people[second])
        distances.append(block[chosen])
        rows.append(np.stack([first[chosen], second[chosen]], axis=1))
    found = np.concatenate(distances)
    order = np.argsort(found, kind="stable")
    return found[order], np.concatenate(rows)[order]


def _blocks(embeddings: FloatArray) -> Iterator[tuple[IntArray, IntArray, DoubleArray]]:
    """Pairs (first, second), first < second, with their squared L2, in the order of the first."""
    wide = embeddings.astype(np.float64)
    columns = np.arange(len(wide))
    for start in range(0, len(wide), _BLOCK_ROWS):
        block = columns[start : start + _BLOCK_ROWS]
        distances = to_distance(wide[block] @ wide[start:].T)
        first, second = np.nonzero(columns[start:][None, :] > block[:, None])
        yield block[first], columns[start:][second], distances[first, second]
