"""Scored pairs: those of a list, or all pairs of the photos of known people. Distances are raw squared L2, 0 to 4."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from pipeline.errors import InputError
from pipeline.evaluation.pairs.every_pair import all_distances, closest_impostors
from pipeline.evaluation.pairs.pair_lists import ListedPair, PairList
from pipeline.evaluation.photos.skipped import Skipped
from pipeline.evaluation.photos.subjects import Portraits
from pipeline.evaluation.statistics.rates import squared_distances
from pipeline.evaluation.statistics.resampling import Trials
from pipeline.types import BoolArray, DoubleArray, IntArray

# The bootstrap needs the closest impostor pairs only: so many times more than match at the highest FMR, and of few
# people, who may be drawn often or never, as many as are cheap to keep (24 bytes each).
_MARGIN: Final = 3.0
_AT_LEAST: Final = 2_000_000
_SHOWN: Final = 10


@dataclass(frozen=True)
class NamedDistance:
    """Two photos and their raw squared L2 distance, infinity where one shows no face."""

    first: str
    second: str
    squared_l2: float


@dataclass(frozen=True)
class ScoredPairs:
    """Pairs with their distances, enough for rates and for their intervals."""

    photos: int
    people: int | None  # None: nobody says who they are
    impostor: DoubleArray  # [i]
    trials: Trials  # its `genuine` are all genuine pairs
    nearest_strangers: tuple[NamedDistance, ...]  # the closest impostor pairs: false matches, or wrong labels
    farthest_photos: tuple[NamedDistance, ...]  # the farthest genuine pairs

    @property
    def genuine(self) -> DoubleArray:
        return self.trials.genuine


@dataclass(frozen=True)
class ScoredList:
    """The usable pairs of a list, in its order."""

    pairs: Sequence[ListedPair]  # [n]
    distances: DoubleArray  # [n]
    same: BoolArray  # [n]
    fold: IntArray  # [n] 0, 1, ...
    units: IntArray  # [n, 2] of which people, or of which pair, each consists
    unit_count: int

    @property
    def without_face(self) -> int:
        return int(np.isinf(self.distances).sum())


def score_list(listed: PairList, portraits: Portraits, skipped: Skipped) -> ScoredList:
    """The distances of a list's pairs. A pair with a photo of which nothing is known is counted in `skipped`.

    Raises InputError where no pair is left.
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
            message=f"None of the {len(listed):,} pairs of {listed.source} can be used ({skipped.summary()})."
        )
    sides = [[portraits.row[path] for path in side] for side in zip(*((p.first, p.second) for p in kept), strict=True)]
    units, count = _units(kept, listed.people)
    return ScoredList(
        pairs=kept,
        distances=squared_distances(portraits.embeddings[sides[0]], portraits.embeddings[sides[1]]),
        same=np.array([pair.same for pair in kept]),
        fold=np.unique([pair.fold for pair in kept], return_inverse=True)[1].astype(np.int64),
        units=units,
        unit_count=count,
    )


def _units(pairs: Sequence[ListedPair], people: Mapping[str, str]) -> tuple[IntArray, int]:
    """What is drawn in a bootstrap: [n, 2] people, or where nobody names them the pairs themselves."""
    if not people:
        own = np.arange(len(pairs))
        return np.stack([own, own], axis=1), len(pairs)
    number: dict[str, int] = {}
    sides = [[number.setdefault(people[path], len(number)) for path in (p.first, p.second)] for p in pairs]
    return np.array(sides, dtype=np.int64), len(number)


def scored_of_list(scored: ScoredList, named: bool) -> ScoredPairs:
    """The pairs of a list as ScoredPairs; `named`: it says who is on the photos."""
    same = scored.same
    order = np.argsort(scored.distances[~same], kind="stable")
    trials = Trials(
        unit="people" if named else "pairs",
        units=scored.unit_count,
        genuine=scored.distances[same],
        genuine_units=scored.units[same],
        close=scored.distances[~same][order],
        close_units=scored.units[~same][order],
    )
    named_pairs = [
        NamedDistance(pair.first, pair.second, float(distance))
        for pair, distance in zip(scored.pairs, scored.distances, strict=True)
    ]
    ascending = sorted(named_pairs, key=lambda pair: pair.squared_l2)
    kind = {(pair.first, pair.second): pair.same for pair in scored.pairs}
    return ScoredPairs(
        photos=len({path for pair in scored.pairs for path in (pair.first, pair.second)}),
        people=scored.unit_count if named else None,
        impostor=scored.distances[~same],
        trials=trials,
        nearest_strangers=tuple(p for p in ascending if not kind[p.first, p.second])[:_SHOWN],
        farthest_photos=tuple(p for p in reversed(ascending) if kind[p.first, p.second])[:_SHOWN],
    )


def score_everybody(portraits: Portraits, names: Mapping[str, str], highest_fmr: float) -> ScoredPairs:
    """All pairs of those portraits that `names` (path -> person) knows.

    `highest_fmr`: the bootstrap reaches up to it. Raises InputError where fewer than two people are left, or where
    there are more pairs than fit into memory.
    """
    rows = np.array([row for row, path in enumerate(portraits.paths) if path in names], dtype=np.int64)
    paths = [portraits.paths[row] for row in rows.tolist()]
    people_names, people = np.unique([names[path] for path in paths], return_inverse=True)
    if len(people_names) < 2:
        raise InputError(message=f"Pairs need photos of two people or more, and there are {len(people_names)}.")
    vectors = portraits.embeddings[rows]
    genuine, impostor, pairs = all_distances(vectors, people.astype(np.int64))
    close, close_rows = closest_impostors(vectors, people.astype(np.int64), _reach(impostor, highest_fmr))
    trials = Trials(
        unit="people",
        units=len(people_names),
        genuine=genuine,
        genuine_units=people[pairs],
        close=close,
        close_units=people[close_rows],
        photos=np.bincount(people),
    )
    farthest = np.argsort(-genuine, kind="stable")[:_SHOWN]
    return ScoredPairs(
        photos=len(paths),
        people=len(people_names),
        impostor=impostor,
        trials=trials,
        nearest_strangers=_named(paths, close_rows[:_SHOWN], close[:_SHOWN]),
        farthest_photos=_named(paths, pairs[farthest], genuine[farthest]),
    )


def _reach(impostor: DoubleArray, highest_fmr: float) -> float:
    """The distance up to which impostor pairs are kept with whom they show."""
    wanted = max(int(_MARGIN * highest_fmr * len(impostor)), _AT_LEAST)
    return np.inf if wanted >= len(impostor) else float(np.partition(impostor, wanted)[wanted])


def _named(paths: Sequence[str], rows: IntArray, distances: DoubleArray) -> tuple[NamedDistance, ...]:
    return tuple(
        NamedDistance(paths[first], paths[second], distance)
        for (first, second), distance in zip(rows.tolist(), distances.tolist(), strict=True)
    )
