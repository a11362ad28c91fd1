"""Pairs of people who may be one, the likeliest first. Review, reports and `people suggest` ask for them.

People of one name come first. Others are proposed by similar references, and ranked by what an average-link regroup
compares: the mean dot product of all pairs of their faces. Nobody is suggested with somebody who is on the same photo,
who has another name or external id, or of whom a user said that they are two.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Final

import numpy as np

from pipeline.config import AVERAGE_LINK, EVERYBODY, MAX_THRESHOLD
from pipeline.matching.calibration import Calibration
from pipeline.matching.match import Matcher
from pipeline.matching.score import contract_distance, dot_at, similarity_score
from pipeline.people.directory import Directory, DirectoryView
from pipeline.people.records import of_generation
from pipeline.store import LocalStore, PersonRecord, Suggestion, Suggestions, overview, people
from pipeline.texts import same_name

WIDER_FMR: Final = 1e-3
FACES: Final = 16  # compared of each person, the best
_SHOWN: Final = 4  # of them
_WIDER: Final = 1.25  # times T, if no table has the rate
_NEIGHBOURS: Final = 16  # per reference; with more it is not distinctive
_REFERENCES: Final = 4  # searched per merged set
_LOOKED: Final = 512  # people at least; more if that takes no more than so many dot products
_PRODUCTS: Final = 2 * 10**8
_RANKED: Final = 4_000  # pairs, those of the most similar references


def wider_threshold(calibration: Calibration, threshold: float, fmr: float = WIDER_FMR) -> float:
    """The T of a false match rate, as far as the calibration has it, and at least the threshold."""
    wide = calibration.threshold_near(fmr)
    return max(threshold, min(_WIDER * threshold if wide is None else wide, MAX_THRESHOLD))


def suggestions(
    store: LocalStore,
    directory: Directory,
    threshold: float,
    person_ids: Sequence[str],
    places: Mapping[str, int] | None = None,
    *,
    fmr: float | None = None,
    every_nearest: bool = False,
) -> Suggestions:
    """Pairs of the first of these people (roots), as many as take a few seconds, with all people who are not hidden.
    With `places` (of all that count, in some order) only with those behind each, so that every pair has one place.
    `every_nearest` fills `Suggestions.nearest`, which takes longer. `fmr` None: WIDER_FMR, and what a regroup by the
    directory's cut would join."""
    calibration = Calibration.from_dict(store.identity.calibration)
    wide = wider_threshold(calibration, threshold, fmr or WIDER_FMR)
    remembered = of_generation(directory.remembered, store.generation)
    if fmr is None and remembered.method == AVERAGE_LINK and remembered.cut is not None:
        wide = max(wide, min(remembered.cut, MAX_THRESHOLD))
    if threshold in (0, EVERYBODY):
        return Suggestions([], threshold, wide, len(person_ids), len(person_ids))
    view, matcher = directory.view(), Matcher(calibration, threshold)
    least = float(similarity_score(np.array(math.sqrt(wide)), threshold))
    looked = person_ids[: max(_LOOKED, _PRODUCTS // max(1, len(view.index)))]
    within = EVERYBODY if every_nearest else wide
    similar = sorted(_most_similar(directory, view, looked, matcher, within), reverse=True)
    alike = ((one, other) for score, one, other in similar if score >= least)
    found: dict[frozenset[str], tuple[str, str]] = {}
    namesakes = store.ask(people.namesakes, directory.account_id, directory.name, looked)
    for one, other in chain(namesakes, islice(alike, _RANKED)):
        if places is None or places.get(other, -1) > places[one]:
            found.setdefault(frozenset((one, other)), (one, other))
    pairs = compared(store, directory, _possible(store, directory, [*found.values()]), matcher, wide)
    nearest = {one: score for score, one, _ in reversed(similar)}  # the best of each overwrites the others
    return Suggestions(
        [pair for pair in pairs if pair.same_name or pair.score >= least],
        threshold,
        wide,
        len(person_ids),
        len(looked),
        [*nearest.values()] if every_nearest else [],
    )


def compared(
    store: LocalStore, directory: Directory, pairs: Sequence[tuple[str, str]], matcher: Matcher, wide: float
) -> list[Suggestion]:
    """These pairs of people (roots) if both have faces, the likeliest first. `store`: of the vectors."""
    members = directory.merged_sets(dict.fromkeys(chain(*pairs)))
    root_of = {record.person_id: root for root, records in members.items() for record in records}
    faces: dict[str, list[int]] = {root: [] for root in members}
    for row in store.best_faces(sorted(root_of), FACES).select(["person_id", "face_id"]).to_pylist():
        if len(own := faces[root_of[row["person_id"]]]) < FACES:
            own.append(row["face_id"])
    vectors = store.face_vectors([*chain(*faces.values())])
    known = {
        root: np.stack([vectors[face].embedding for face in own]).astype(np.float64)
        for root, own in faces.items()
        if own and vectors.keys() >= {*own}  # else deleted meanwhile
    }
    near = dot_at(wide, matcher.calibration)
    made = []
    for one, other in pairs:
        if one not in known or other not in known:
            continue
        products = known[one] @ known[other].T
        (score,) = matcher.scores(contract_distance(products.mean(keepdims=True).ravel(), matcher.calibration)).tolist()
        named = members[one][0].name, members[other][0].name
        made.append(
            Suggestion(
                *(one, other, score, int((products >= near).sum()), products.size),
                same_name=bool(named[0]) and same_name(*named),
                names=named,
                faces=(faces[one][:_SHOWN], faces[other][:_SHOWN]),
            )
        )
    return sorted(made, key=lambda pair: (not pair.same_name, -pair.score, pair.one, pair.other))


def _most_similar(
    directory: Directory, view: DirectoryView, people: Sequence[str], matcher: Matcher, within: float
) -> Iterator[tuple[float, str, str]]:
    """The score of references, each of these people (roots), and the root of a similar reference, which matches at the
    T `within`; without hidden people."""
    sets = {root: records for root, records in directory.merged_sets(people).items() if not records[0].ignored}
    references = [(root, place) for root, records in sets.items() for place in _references(directory, view, records)]
    positions = np.array([place for _, place in references], dtype=np.int64)
    searching = Matcher(matcher.calibration, within)
    near = searching.nearest(view.index, view.index.vectors_at(positions), _NEIGHBOURS, matching=True)
    person_ids = {place: view.person_ids[place] for place in np.unique(near.positions).tolist() if place >= 0}
    roots = directory.roots({*person_ids.values()})
    root_at = {place: roots.get(person_id) for place, person_id in person_ids.items()}
    scores = matcher.scores(near.distances).tolist()
    for (root, _), row, of_row in zip(references, near.positions.tolist(), scores, strict=True):
        for place, score in zip(row, of_row, strict=True):
            other = root_at.get(place)
            if other is not None and other.person_id != root and not other.ignored:
                yield score, root, other.person_id


def _references(directory: Directory, view: DirectoryView, records: Sequence[PersonRecord]) -> Iterator[int]:
    """A merged set's first reference positions in the view."""
    found = (directory.reference_of(record.person_id) for record in records)
    here = (p for seen, p in found if p is not None and seen.index.lineage is view.index.lineage)
    return islice((place for place in here if place < len(view.index)), _REFERENCES)


def _possible(store: LocalStore, directory: Directory, pairs: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Without pairs of different names or external ids, on one photo, or with a not-same constraint; named people
    first in each."""
    records = directory.of(dict.fromkeys(chain(*pairs)))
    pairs = [pair for pair in pairs if records.keys() >= {*pair} and not _differ(*(records[each] for each in pair))]
    known = store.ask(overview.known_of_pairs, [one for one, _ in pairs], [other for _, other in pairs]).to_pylist()
    return [
        (one, other) if records[one].name or not records[other].name else (other, one)
        for (one, other), said in zip(pairs, known, strict=True)
        if not said["stated"] and not said["photos"]
    ]


def _differ(one: PersonRecord, other: PersonRecord) -> bool:
    if one.external_id and other.external_id and one.external_id != other.external_id:
        return True
    return bool(one.name and other.name and not same_name(one.name, other.name))
