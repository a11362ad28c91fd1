"""Pairs of people who may be one: their references are a little farther apart than a match."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np

from pipeline.config import EVERYBODY, MAX_THRESHOLD
from pipeline.errors import StoreDamaged
from pipeline.matching.calibration import Calibration
from pipeline.matching.score import contract_distance, dot_at, exact_dots, similarity_score
from pipeline.store import LocalStore, overview, read_embeddings
from pipeline.types import FloatArray, IntArray

WIDER_FMR: Final = 1e-3
_BLOCK: Final = 512  # rows per product: 10 MB with 5,000 others
_SLACK: Final = 1e-4  # of a float32 product, which is only a filter
_CANDIDATES: Final = 400  # per query to the catalog

Alike: TypeAlias = tuple[str, str, float]  # two people (roots) of one directory, and their contract distance


@dataclass(frozen=True)
class Pair:
    """Two people."""

    score: float
    one: Mapping[str, Any]  # a row of the table `pictures`
    other: Mapping[str, Any]
    photos: int  # that show both


@dataclass(frozen=True)
class Doubts:
    """The result of `doubtful_pairs`."""

    pairs: Sequence[Pair]  # the highest score first
    nearest: Sequence[float]  # [n] for each person asked about, the score with the most similar other
    wider_score: float  # lowest score of a doubtful pair


NO_DOUBTS: Final = Doubts((), (), 0.0)


def doubtful_pairs(
    store: LocalStore, account_id: int, alike: Iterable[Alike], threshold: float, *, limit: int
) -> Doubts:
    """The `limit` most similar pairs in `alike`, down to the score at which WIDER_FMR of two people's faces match,
    except cannot-link pairs. The first of a pair was asked about. `alike` is not read if the threshold has no
    doubts."""
    calibration = Calibration.from_dict(store.identity.calibration)
    wider_score = float(similarity_score(np.array(math.sqrt(_wider(calibration, threshold))), threshold))
    if threshold in (0, EVERYBODY):
        return Doubts((), (), wider_score)
    found = [*alike]
    scores = similarity_score(np.array([distance for *_, distance in found]), threshold).tolist()
    nearest, pairs = dict[str, float](), dict[frozenset[str], tuple[float, str, str]]()
    for score, (one, other, _) in sorted(zip(scores, found, strict=True)):  # the best of each overwrites the others
        nearest[one] = score
        if score >= wider_score:
            pairs[frozenset((one, other))] = score, one, other
    chosen = sorted(pairs.values(), reverse=True)[:_CANDIDATES]
    ones, others = [one for _, one, _ in chosen], [other for *_, other in chosen]
    rows = store.ask(overview.page_table, "pictures", account_id, ids=[*ones, *others]).to_pylist()
    people = {row["person_id"]: row for row in rows}
    known = store.ask(overview.known_of_pairs, ones, others).to_pylist()
    told = [
        Pair(score, people[one], people[other], said["photos"])
        for (score, one, other), said in zip(chosen, known, strict=True)
        if not said["stated"] and {one, other} <= people.keys()
    ]
    return Doubts(told[:limit], [*nearest.values()], wider_score)


def _wider(calibration: Calibration, threshold: float) -> float:
    """The T of WIDER_FMR or of the nearest calibrated rate, or `threshold` if that is wider."""
    wider = calibration.threshold_near(WIDER_FMR)
    return min(threshold if wider is None else max(wider, threshold), MAX_THRESHOLD)


def compared(store: LocalStore, account_id: int, person_ids: Sequence[str], threshold: float) -> Iterator[Alike]:
    """Yields each of these people (roots) with the most similar other, and all doubtful pairs at `threshold`."""
    calibration = Calibration.from_dict(store.identity.calibration)
    least = dot_at(_wider(calibration, threshold), calibration) - _SLACK
    references = store.ask(overview.page_table, "references", account_id, ids=person_ids)
    rows, vectors = _with_vectors(store, references.to_pylist())
    people = np.unique([row["person_id"] for row in rows], return_inverse=True)[1].reshape(-1)
    directories = np.array([row["directory_id"] for row in rows])
    for start in range(0, len(rows), _BLOCK):
        block = slice(start, start + _BLOCK)
        dots = vectors[block] @ vectors.T
        dots[(people[block][:, None] == people) | (directories[block][:, None] != directories)] = -1
        ones, others = _highest(dots, least)
        distances = contract_distance(exact_dots(vectors[start + ones], vectors[others]), calibration)
        for one, other, distance in zip(ones.tolist(), others.tolist(), distances.tolist(), strict=True):
            yield rows[start + one]["person_id"], rows[other]["person_id"], distance


def _with_vectors(store: LocalStore, rows: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], FloatArray]:
    """The rows with existing embeddings, and these [n, d]: a server may have compacted a file meanwhile."""
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


def _highest(dots: FloatArray, cut: float) -> tuple[IntArray, IntArray]:
    """Rows and columns of each row's largest product, and of those above the cut; at most the highest 8 * _CANDIDATES
    of them."""
    rows: IntArray
    rows, columns = np.nonzero(dots >= cut)
    order = np.argsort(-dots[rows, columns], kind="stable")[: 8 * _CANDIDATES]
    rows = np.concatenate([np.arange(len(dots)), rows[order]])
    columns = np.concatenate([dots.argmax(axis=1), columns[order]])
    others = dots[rows, columns] > -1
    return rows[others], columns[others]
