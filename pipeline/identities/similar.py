"""The most similar identities of a face, one entry per root (contract, 4.3 rule 3)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pipeline.identities.directory import Directory, DirectoryView
from pipeline.identities.types import SimilarPerson
from pipeline.identities.views import root_view
from pipeline.matching.match import Matcher
from pipeline.types import FloatArray


def most_similar(
    directory: Directory,
    view: DirectoryView,
    embeddings: FloatArray,
    identical: Sequence[int | None],
    matcher: Matcher,
    limit: int,
) -> list[list[SimilarPerson]]:
    """For each face [m, d] at most `limit` roots, best first. `identical`: by face, the position whose very image
    it is; that identity stands before any other, at distance 0."""
    wanted = limit
    while True:
        positions, scores = matcher.top_k(view.index, embeddings, wanted)
        found = [
            _by_root(directory, view, same, row.tolist(), values.tolist(), matcher)
            for same, row, values in zip(identical, positions, scores, strict=True)
        ]
        # Several records of one merged set make one entry: then there must be more to choose from.
        if wanted >= len(view.index) or all(len(each) >= limit for each in found):
            return [each[:limit] for each in found]
        wanted *= 2


def _by_root(
    directory: Directory,
    view: DirectoryView,
    identical: int | None,
    positions: Sequence[int],
    scores: Sequence[float],
    matcher: Matcher,
) -> list[SimilarPerson]:
    candidates = [(p, s) for p, s in zip(positions, scores, strict=True) if p >= 0]
    if identical is not None:
        candidates.insert(0, (identical, float(matcher.scores(np.zeros(1))[0])))
    found: dict[str, SimilarPerson] = {}
    for position, score in candidates:
        person = root_view(directory, view.person_ids[position])
        if person is not None:  # deleted since the view was taken
            found.setdefault(person.root.person_id, SimilarPerson(person, score))
    return list(found.values())
