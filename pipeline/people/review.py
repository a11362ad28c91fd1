"""Finds people who may be the same: their references are similar, but do not match.

People are walked in a given order. A page searches the index for the next ones at a wider threshold, and ranks the
pairs by several faces of both.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

import numpy as np

from pipeline.config import EVERYBODY, MAX_THRESHOLD
from pipeline.matching.calibration import Calibration
from pipeline.matching.match import Matcher
from pipeline.people.directory import Directory, DirectoryView
from pipeline.people.rules import NOT_SAME
from pipeline.store import LocalStore, PersonRecord, overview
from pipeline.types import IntArray

WALKED: Final = 512  # people walked per page, at most
WIDER_FMR: Final = 1e-3
_WIDER: Final = 1.25  # times T, if no table has the rate
FACES: Final = 4  # compared per person
_NEIGHBOURS: Final = 16  # per reference; with more it is not distinctive
_REFERENCES: Final = 4  # searched per merged set


@dataclass(frozen=True)
class LikelyPair:
    """Two people (roots) who may be the same."""

    one: str
    other: str
    score: float  # mean over the compared pairs of faces
    best: float
    compared: int  # pairs of faces
    together: int  # photos that show both
    faces: tuple[list[dict[str, Any]], list[dict[str, Any]]]  # compared, as rows of `best_faces`


def wider_threshold(calibration: Calibration, threshold: float, fmr: float = WIDER_FMR) -> float:
    """The T of a false match rate, as far as the calibration has it, and at least the threshold."""
    wide = calibration.threshold_near(fmr)
    if wide is None or threshold == EVERYBODY:
        wide = _WIDER * threshold
    return max(threshold, min(wide, MAX_THRESHOLD))


def review(
    client: LocalStore,
    directory: Directory,
    people: Sequence[str],
    others: Mapping[str, int],
    *,
    narrow: Matcher,
    wide: Matcher,
    count: int,
) -> tuple[list[LikelyPair], int]:
    """The pairs of `people` (roots) with people later in the order, without not-same pairs, the most likely first; and
    the number of walked people: at most WALKED, until `count` pairs are found. `others`: root -> place in the order, of
    all people that count. `narrow`: the matcher that scores; `wide`: the one that finds similar people."""
    found, walked = _alike(directory, people[:WALKED], others, wide, count)
    there = directory.merged_sets(dict.fromkeys(itertools.chain(*found)))
    members = {root: [record.person_id for record in records] for root, records in there.items()}
    apart = _stated(client, directory, members)
    pairs = [pair for pair in found if frozenset(pair) not in apart and members.keys() >= {*pair}]
    return _ranked(client, pairs, members, narrow, wide), walked


def compared(
    client: LocalStore, directory: Directory, pairs: Sequence[tuple[str, str]], matcher: Matcher
) -> list[LikelyPair]:
    """These pairs of people (roots) if both have faces, most likely first. `client`: the store of the vectors."""
    there = directory.merged_sets(dict.fromkeys(itertools.chain(*pairs)))
    members = {root: [record.person_id for record in records] for root, records in there.items()}
    return _ranked(client, [pair for pair in pairs if members.keys() >= {*pair}], members, matcher)


def most_similar(directory: Directory, people: Sequence[str], matcher: Matcher) -> Iterator[tuple[str, str, float]]:
    """Pairs of each of these people (roots) with the roots of the most similar references, and contract distances.
    Without hidden people."""
    shown = [root for root, record in directory.of(people).items() if not record.ignored]
    view, owners, positions = _references_of(directory, shown)
    near = matcher.nearest(view.index, view.index.vectors_at(positions), _NEIGHBOURS)
    roots = directory.roots({view.person_ids[place] for place in near.positions.ravel().tolist() if place >= 0})
    for root, places, distances in zip(owners, near.positions.tolist(), near.distances.tolist(), strict=True):
        for place, distance in zip(places, distances, strict=True):
            other = roots.get(view.person_ids[place]) if place >= 0 else None
            if other is not None and other.person_id != root and not other.ignored:
                yield root, other.person_id, distance


def _references_of(directory: Directory, people: Sequence[str]) -> tuple[DirectoryView, list[str], IntArray]:
    """A view; the root and the position of each reference to search."""
    view, owners, positions = directory.view(), [], []
    for root, records in directory.merged_sets(people).items():
        for position in islice(_references(directory, view, records), _REFERENCES):
            owners.append(root)
            positions.append(position)
    return view, owners, np.array(positions, dtype=np.int64)


def _alike(
    directory: Directory, people: Sequence[str], others: Mapping[str, int], wide: Matcher, count: int
) -> tuple[list[tuple[str, str]], int]:
    """Pairs of roots, the walked one first; and the number of walked people."""
    view, owners, positions = _references_of(directory, people)
    near = wide.nearest(view.index, view.index.vectors_at(positions), _NEIGHBOURS, matching=True).positions
    found: dict[tuple[str, str], None] = {}
    neighbours: dict[str, list[int]] = {}
    for root, row in zip(owners, near.tolist(), strict=True):
        neighbours.setdefault(root, []).extend(place for place in row if place >= 0)
    for walked, root in enumerate(people, 1):
        for place in neighbours.get(root, ()):
            other = directory.root_id(view.person_ids[place])
            if others.get(other, -1) > others[root]:
                found[root, other] = None
        if len(found) >= count:
            return list(found), walked
    return list(found), len(people)


def _references(directory: Directory, view: DirectoryView, records: Sequence[PersonRecord]) -> Iterator[int]:
    """A merged set's reference positions in the view."""
    for record in records:
        seen, position = directory.reference_of(record.person_id)
        if position is not None and seen.index.lineage is view.index.lineage and position < len(view.index):
            yield position


def _stated(client: LocalStore, directory: Directory, members: Mapping[str, Sequence[str]]) -> set[frozenset[str]]:
    """The pairs of roots with a not-same constraint."""
    everybody = [person_id for ids in members.values() for person_id in ids]
    apart = set()
    for fact in client.facts_about([], everybody):
        if fact.kind == NOT_SAME:
            apart.add(frozenset(directory.root_id(str(person_id)) for person_id in (fact.person_id, fact.other_id)))
    return apart


def _ranked(
    client: LocalStore,
    pairs: Sequence[tuple[str, str]],
    members: Mapping[str, Sequence[str]],
    narrow: Matcher,
    wide: Matcher | None = None,
) -> list[LikelyPair]:
    """Scores the pairs by several faces; drops those whose mean distance does not match `wide`, if given."""
    wanted = {root for pair in pairs for root in pair}
    root_of = {person_id: root for root in wanted for person_id in members[root]}
    faces: dict[str, list[dict[str, Any]]] = {root: [] for root in wanted}
    for row in client.best_faces(sorted(root_of), FACES).to_pylist():
        if len(own := faces[root_of[row["person_id"]]]) < FACES:
            own.append(row)
    vectors = client.face_vectors([row["face_id"] for rows in faces.values() for row in rows])
    known = client.ask(overview.known_of_pairs, [one for one, _ in pairs], [other for _, other in pairs])
    ranked = []
    for (one, other), photos in zip(pairs, known["photos"].to_pylist(), strict=True):
        both = [(a["face_id"], b["face_id"]) for a in faces[one] for b in faces[other]]
        if not both or not all(face_id in vectors for pair in both for face_id in pair):  # deleted meanwhile
            continue
        first, second = (np.stack([vectors[pair[side]].embedding for pair in both]) for side in (0, 1))
        distances = narrow.distances(first, second)
        if wide is None or wide.matches(distances.mean(keepdims=True)).all():
            scores = narrow.scores(distances)
            shown = faces[one], faces[other]
            ranked.append(LikelyPair(one, other, float(scores.mean()), float(scores.max()), len(both), photos, shown))
    return sorted(ranked, key=lambda pair: -pair.score)
