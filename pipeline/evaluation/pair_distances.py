"""The distances of pairs, of a list or of all photos of named people. Raw squared L2, 0 to 4.

The n (n - 1) / 2 pairs of n photos are computed in blocks, keeping only the distances.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from pipeline.errors import InputError
from pipeline.evaluation.labels import numbered
from pipeline.evaluation.pair_lists import Pair, PairList
from pipeline.evaluation.portraits import Portraits
from pipeline.evaluation.report import Skipped
from pipeline.evaluation.statistics import Trials, Unit, squared_distances, to_distance
from pipeline.types import BoolArray, DoubleArray, FloatArray, IntArray

# A distance takes 8 bytes, all of them 1.6 GB, and finding a threshold copies them once.
MAX_PAIRS: Final = 200_000_000
_BLOCK_ROWS: Final = 128
# The bootstrap needs only the closest impostor pairs: this many times as many as match at the highest FMR, and as many
# as are cheap to keep (24 bytes each), as each of few people may be drawn often or never.
_MARGIN: Final = 3.0
_AT_LEAST: Final = 2_000_000
_LISTED: Final = 10  # of the closest impostor pairs and of the farthest genuine ones


@dataclass(frozen=True)
class NamedDistance:
    """Two photos and their raw squared L2 distance, infinity if one shows no face."""

    first: str
    second: str
    squared_l2: float


@dataclass(frozen=True, kw_only=True)
class ScoredPairs(Trials):
    """Pairs with their distances, enough for rates and intervals; `genuine` are all genuine pairs."""

    photos: int
    impostor: DoubleArray  # [i]
    nearest_strangers: tuple[NamedDistance, ...]  # the closest impostor pairs: false matches, or wrong labels
    farthest_photos: tuple[NamedDistance, ...]  # the farthest genuine pairs

    @property
    def people(self) -> int | None:
        """None: their names are unknown."""
        return self.units if self.unit == "people" else None


@dataclass(frozen=True)
class ScoredList:
    """The usable pairs of a list, in its order."""

    pairs: Sequence[Pair]  # [n]
    distances: DoubleArray  # [n]
    same: BoolArray  # [n]
    fold: IntArray  # [n] 0, 1, ...
    unit: Unit
    units: int  # their number
    pair_units: IntArray  # [n, 2] the two people of each pair, or the pair itself twice

    @property
    def without_face(self) -> int:
        return int(np.isinf(self.distances).sum())


def score_list(listed: PairList, portraits: Portraits, skipped: Skipped) -> ScoredList:
    """Computes the distances of a list's pairs; pairs with a skipped photo are counted in `skipped`.

    Raises InputError if no pair remains.
    """
    kept = []
    for pair in listed.pairs:
        missing = next((path for path in (pair.first, pair.second) if path not in portraits.row), None)
        if missing is None:
            kept.append(pair)
        else:
            skipped.add(f"a photo of the pair: {portraits.skipped[missing]}", missing)
    if not kept:
        raise InputError(
            message=f"None of the {len(listed.pairs):,} pairs of {listed.source} can be used ({skipped.summary()})."
        )
    sides = [[portraits.row[path] for path in side] for side in zip(*((p.first, p.second) for p in kept), strict=True)]
    pair_units, count = _units(kept, listed.people)
    return ScoredList(
        pairs=kept,
        distances=squared_distances(portraits.embeddings[sides[0]], portraits.embeddings[sides[1]]),
        same=np.array([pair.same for pair in kept]),
        fold=np.unique([pair.fold for pair in kept], return_inverse=True)[1].astype(np.int64),
        unit="people" if listed.people else "pairs",
        units=count,
        pair_units=pair_units,
    )


def _units(pairs: Sequence[Pair], people: Mapping[str, str]) -> tuple[IntArray, int]:
    """The units of a bootstrap: [n, 2] people, or the pairs themselves if the list names nobody; and their count."""
    if not people:
        numbers = np.arange(len(pairs))
        return np.stack([numbers, numbers], axis=1), len(pairs)
    names, numbers = numbered([people[path] for p in pairs for path in (p.first, p.second)])
    return numbers.reshape(-1, 2), len(names)


def scored_of_list(scored: ScoredList) -> ScoredPairs:
    """The pairs of a list as ScoredPairs."""
    order = np.argsort(scored.distances, kind="stable")
    close, far = order[~scored.same[order]], order[scored.same[order]][::-1]
    paths = [path for pair in scored.pairs for path in (pair.first, pair.second)]
    rows = np.arange(len(paths)).reshape(-1, 2)
    return ScoredPairs(
        unit=scored.unit,
        units=scored.units,
        genuine=scored.distances[scored.same],
        genuine_units=scored.pair_units[scored.same],
        close=scored.distances[close],
        close_units=scored.pair_units[close],
        photos=len(set(paths)),
        impostor=scored.distances[~scored.same],
        nearest_strangers=_named(paths, rows[close[:_LISTED]], scored.distances[close[:_LISTED]]),
        farthest_photos=_named(paths, rows[far[:_LISTED]], scored.distances[far[:_LISTED]]),
    )


def score_everybody(portraits: Portraits, names: Mapping[str, str], highest_fmr: float) -> ScoredPairs:
    """Scores all pairs of the portraits whose paths are in `names` (path -> person).

    `highest_fmr`: the highest rate that needs an interval. Raises InputError for fewer than two people, and for more
    than MAX_PAIRS pairs.
    """
    rows = np.array([row for row, path in enumerate(portraits.paths) if path in names], dtype=np.int64)
    paths = [portraits.paths[row] for row in rows.tolist()]
    people_names, people = np.unique([names[path] for path in paths], return_inverse=True)
    if len(people_names) < 2:
        raise InputError(message=f"Pairs need photos of two people or more, not of {len(people_names)}.")
    vectors = portraits.embeddings[rows]
    genuine, impostor, pairs = all_distances(vectors, people.astype(np.int64))
    close, close_rows = closest_impostors(vectors, people.astype(np.int64), reach(impostor, highest_fmr))
    farthest = np.argsort(-genuine, kind="stable")[:_LISTED]
    return ScoredPairs(
        unit="people",
        units=len(people_names),
        genuine=genuine,
        genuine_units=people[pairs],
        close=close,
        close_units=people[close_rows],
        photos_of=np.bincount(people),
        photos=len(paths),
        impostor=impostor,
        nearest_strangers=_named(paths, close_rows[:_LISTED], close[:_LISTED]),
        farthest_photos=_named(paths, pairs[farthest], genuine[farthest]),
    )


def reach(impostor: DoubleArray, highest_fmr: float) -> float:
    """The largest distance for which the bootstrap needs the people of an impostor pair."""
    count = max(int(_MARGIN * highest_fmr * len(impostor)), _AT_LEAST)
    return np.inf if count >= len(impostor) else float(np.partition(impostor, count)[count])


def _named(paths: Sequence[str], rows: IntArray, distances: DoubleArray) -> tuple[NamedDistance, ...]:
    return tuple(
        NamedDistance(paths[first], paths[second], distance)
        for (first, second), distance in zip(rows.tolist(), distances.tolist(), strict=True)
    )


def all_distances(embeddings: FloatArray, people: IntArray) -> tuple[DoubleArray, DoubleArray, IntArray]:
    """Computes all pairs of the unit vectors [n, d] of the people [n].

    Returns the genuine distances [g], the impostor distances [i], and the rows [g, 2] of the genuine pairs. Raises
    InputError for more than MAX_PAIRS pairs.
    """
    count = len(people) * (len(people) - 1) // 2
    if count > MAX_PAIRS:
        raise InputError(
            message=f"{len(people):,} photos make {count:,} pairs, more than the {MAX_PAIRS:,} that fit into memory. "
            "Use fewer people."
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
    closest = np.concatenate(distances)
    order = np.argsort(closest, kind="stable")
    return closest[order], np.concatenate(rows)[order]


def _blocks(embeddings: FloatArray) -> Iterator[tuple[IntArray, IntArray, DoubleArray]]:
    """Yields pairs (first, second), first < second, with their squared L2, in the order of the first."""
    wide = embeddings.astype(np.float64)
    columns = np.arange(len(wide))
    for start in range(0, len(wide), _BLOCK_ROWS):
        block = columns[start : start + _BLOCK_ROWS]
        distances = to_distance(wide[block] @ wide[start:].T)
        first, second = np.nonzero(columns[start:][None, :] > block[:, None])
        yield block[first], columns[start:][second], distances[first, second]
