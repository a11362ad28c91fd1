"""Pairs of people who may be one: their references are farther from each other than a match, yet not by much."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from pipeline.config import EVERYBODY, MAX_THRESHOLD
from pipeline.errors import StoreDamaged
from pipeline.matching.calibration import Calibration
from pipeline.matching.score import contract_distance, exact_dots, similarity_score
from pipeline.store import LocalStore, overview, read_embeddings
from pipeline.types import BoolArray, DoubleArray, FloatArray, IntArray

WIDER_FMR: Final = 1e-3
_BLOCK: Final = 512  # rows in one product: 10 MB with 5,000 others
_SLACK: Final = 1e-4  # of a float32 product, which is only a filter
_CANDIDATES: Final = 400  # that the catalog is asked about


@dataclass(frozen=True)
class Pair:
    """Two people. The first is one of those who were asked about."""

    score: float
    one: Mapping[str, Any]  # as the table `compared_people` has them
    other: Mapping[str, Any]
    photos: int  # that show both


@dataclass(frozen=True)
class Doubts:
    """What `doubtful_pairs` found."""

    pairs: Sequence[Pair]  # the highest score first
    nearest: Sequence[float]  # [n] of each who was asked about the score of whoever is most similar
    wider_score: float  # from which on a pair is doubtful


NO_DOUBTS: Final = Doubts((), (), 0.0)


def doubtful_pairs(
    store: LocalStore, account_id: int, person_ids: Sequence[str], threshold: float, *, most: int, limit: int
) -> Doubts:
    """The `limit` most similar pairs of these people with each other and with the `most` who were seen most often, from
    the score on at which WIDER_FMR of two people's faces match. Not those who are stated to be two."""
    calibration = Calibration.from_dict(store.identity.calibration)
    wider = _wider(calibration, threshold)
    wider_score = similarity_score(math.sqrt(wider), threshold)
    if threshold in (0, EVERYBODY) or not person_ids:
        return Doubts((), (), wider_score)
    compared = store.ask(overview.page_table, "compared_people", account_id, ids=person_ids, most=most)
    rows, vectors = _with_vectors(store, compared.to_pylist())
    asked = np.isin([row["person_id"] for row in rows], list(person_ids))
    nearest, places = _similar(rows, vectors, asked, calibration, wider)
    distances = contract_distance(exact_dots(vectors[places[:, 0]], vectors[places[:, 1]]), calibration)
    sides = ([rows[place]["person_id"] for place in side] for side in places.T.tolist())
    known = store.ask(overview.known_of_pairs, *sides).to_pylist()
    scores = similarity_score(distances, threshold).tolist()
    pairs = [
        Pair(score, rows[one], rows[other], said["photos"])
        for (one, other), score, said in zip(places.tolist(), scores, known, strict=True)
        if not said["stated"] and score >= wider_score
    ]
    pairs.sort(key=lambda pair: -pair.score)
    return Doubts(pairs[:limit], similarity_score(nearest, threshold).tolist(), wider_score)


def _wider(calibration: Calibration, threshold: float) -> float:
    """The T of WIDER_FMR, of the nearest rate that the calibration knows, or `threshold` where that is wider."""
    wider = calibration.threshold_near(WIDER_FMR)
    return min(threshold if wider is None else max(wider, threshold), MAX_THRESHOLD)


def _with_vectors(store: LocalStore, rows: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], FloatArray]:
    """The rows whose embeddings are there, and these [n, d]: a server may have folded a file meanwhile."""
    size = store.identity.embedding_size
    wanted = {row["face_id"]: row for row in rows}
    kept, vectors = list[dict[str, Any]](), [np.zeros((0, size), np.float32)]
    for file in sorted({row["file"] for row in rows}):
        try:
            ids, stored = read_embeddings(store.folder, file, size)
        except StoreDamaged:
            continue
        places = [place for place, face in enumerate(ids.tolist()) if face in wanted]
        kept += [wanted[face] for face in ids[places].tolist()]
        vectors.append(stored[places])
    return kept, np.concatenate(vectors)


def _similar(
    rows: Sequence[Mapping[str, Any]], vectors: FloatArray, asked: BoolArray, calibration: Calibration, wider: float
) -> tuple[DoubleArray, IntArray]:
    """The distance of each asked row to the nearest row of somebody else in the directory, and the places [p, 2] of
    the most similar rows of two people, a pair of people once."""
    people = np.unique([row["person_id"] for row in rows], return_inverse=True)[1].reshape(-1)
    directories = np.array([row["directory_id"] for row in rows])
    raw = 2 * (math.sqrt(wider) / 2) ** (1 / calibration.exponent)
    cut = 1 - raw * raw / 2 - _SLACK
    nearest, best = list[DoubleArray](), dict[tuple[int, int], tuple[float, int, int]]()
    places = np.flatnonzero(asked)
    for start in range(0, len(places), _BLOCK):
        block = places[start : start + _BLOCK]
        dots = vectors[block] @ vectors.T
        dots[(people[block][:, None] == people) | (directories[block][:, None] != directories)] = -1
        top = dots.max(axis=1)
        nearest.append(contract_distance(top[top > -1].astype(np.float64), calibration))
        for a, b, dot in _highest(dots, cut):
            one, other = int(block[a]), b
            low, high = sorted((int(people[one]), int(people[other])))
            if (low, high) not in best or best[low, high][0] < dot:
                best[low, high] = (dot, one, other)
    chosen = sorted(best.values(), key=lambda pair: (-pair[0], pair[1:]))[:_CANDIDATES]
    pairs = np.array([pair[1:] for pair in chosen], np.int64).reshape(-1, 2)
    return np.concatenate([np.zeros(0), *nearest]), pairs


def _highest(dots: FloatArray, cut: float) -> list[tuple[int, int, float]]:
    """Row, column and product of those above the cut; of a great many the highest."""
    rows: IntArray
    rows, columns = np.nonzero(dots >= cut)
    values = dots[rows, columns]
    order = np.argsort(-values, kind="stable")[: 8 * _CANDIDATES]
    return list(zip(rows[order].tolist(), columns[order].tolist(), values[order].tolist(), strict=True))
