"""Persons in answers: with their root and merged set, and the most similar ones of a face."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Final

import numpy as np

from pipeline.people.decide import Decision
from pipeline.people.directory import Directory
from pipeline.people.types import PersonView, SimilarPerson
from pipeline.store import PersonRecord

_EPOCH: Final = datetime(1970, 1, 1)
_MS: Final = timedelta(milliseconds=1)


def epoch_ms(moment: datetime) -> int:
    """Whole epoch milliseconds of a naive UTC time."""
    return (moment - _EPOCH) // _MS


def root_views(directory: Directory, person_ids: Iterable[str]) -> dict[str, PersonView]:
    """The roots' views, by person, without unknown ones."""
    return {person_id: _view(members[0], members) for person_id, members in directory.merged_sets(person_ids).items()}


def person_views(directory: Directory, records: Sequence[PersonRecord]) -> list[PersonView]:
    """The views of these records."""
    roots = [directory.root_id(record.person_id) for record in records]
    sets = directory.merged_sets(set(roots))  # each once: it may have thousands of members
    return [_view(record, sets.get(root) or [record]) for record, root in zip(records, roots, strict=True)]


def _view(record: PersonRecord, members: Sequence[PersonRecord]) -> PersonView:
    """`members`: the record's merged set, root first."""
    root = members[0]
    counted = members if record.person_id == root.person_id else [record]
    return PersonView(
        record=record,
        root=root,
        children_images=tuple(member.image_guid for member in counted[1:] if member.image_guid is not None),
        occurrence=sum(member.occurrence for member in counted),
        last_occurrence_at_ms=epoch_ms(max(member.last_occurrence_at for member in counted)),
    )


def most_similar(decision: Decision, limit: int) -> list[list[SimilarPerson]]:
    """For each decided face at most `limit` roots, best first, one entry per root (contract, 4.3 rule 3), on the
    decision's view. An identity with a reference of the same image comes first, at distance 0."""
    index, count = decision.view.index, limit
    identical = [index.find_identical(s.image_hashes, s.face.box) for s in decision.detected_faces]
    while True:
        positions, scores = decision.matcher.top_k(index, decision.faces.embeddings, count)
        people = [
            _by_root(decision, same, row.tolist(), values.tolist())
            for same, row, values in zip(identical, positions, scores, strict=True)
        ]
        # Records of one merged set share an entry, so there may be too few: search more references.
        if count >= len(index) or all(len(roots) >= limit for roots in people):
            return [roots[:limit] for roots in people]
        count *= 2


def _by_root(
    decision: Decision, identical: int | None, positions: Sequence[int], scores: Sequence[float]
) -> list[SimilarPerson]:
    candidates = [(p, s) for p, s in zip(positions, scores, strict=True) if p >= 0]
    if identical is not None:
        candidates.insert(0, (identical, float(decision.matcher.scores(np.zeros(1))[0])))
    person_ids = [decision.view.person_ids[position] for position, _ in candidates]
    views = root_views(decision.directory, person_ids)
    roots: dict[str, SimilarPerson] = {}
    for person_id, (_, score) in zip(person_ids, candidates, strict=True):
        if person_id in views:  # else deleted since the view was taken
            person = views[person_id]
            roots.setdefault(person.root.person_id, SimilarPerson(person, score))
    return list(roots.values())
