"""Measures of a clustering against labels: how well identities fit people.

All measures come from the contingency table (how many faces of person i are in identity j), never from the pairs
themselves. It has at most as many cells as there are faces, so a million faces take seconds.

Pairwise: of the pairs of faces in one identity, the share that shows one person (precision), and of the pairs that
show one person, the share in one identity (recall). BCubed: the same shares for each face and its own identity or
person, itself included, averaged over the faces (Bagga and Baldwin 1998, "Entity-based cross-document coreferencing
using the vector space model"; Amigó et al. 2009, "A comparison of extrinsic clustering evaluation metrics based on
formal constraints"). Pairwise measures weigh a person by the square of their photos, BCubed by their number.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Final

import numpy as np

from pipeline.errors import InputError
from pipeline.evaluation.photos.labels import numbered
from pipeline.types import IntArray

LISTED: Final = 10  # worst identities and people
PARTS: Final = 6  # of each, with up to
IMAGES: Final = 3  # images each


@dataclass(frozen=True)
class Agreement:
    """Precision and recall in [0, 1]; NaN where no pair exists."""

    precision: float
    recall: float

    @property
    def f(self) -> float:
        """Their harmonic mean."""
        total = self.precision + self.recall
        return 2 * self.precision * self.recall / total if total else 0.0

    def as_dict(self) -> dict[str, float]:
        return {**asdict(self), "f": self.f}


@dataclass(frozen=True)
class Contingency:
    """The contingency table of people and identities: its non-empty cells, and its margins."""

    people: IntArray  # [c] the cell's person
    identities: IntArray  # [c] the cell's identity
    counts: IntArray  # [c] faces in it, 1 or more
    person_sizes: IntArray  # [p] faces of each person
    identity_sizes: IntArray  # [k] faces in each identity

    @classmethod
    def of(cls, people: IntArray, identities: IntArray) -> Contingency:
        """From n faces, n >= 1: the number of each one's person [n] and identity [n], both from 0 without gaps."""
        width = int(identities.max()) + 1
        cells, counts = np.unique(people * width + identities, return_counts=True)
        return cls(cells // width, cells % width, counts, np.bincount(people), np.bincount(identities))

    @property
    def faces(self) -> int:
        return int(self.counts.sum())

    def pairwise(self) -> Agreement:
        """Precision is NaN where no two faces are in one identity, recall where no two show one person."""
        both = _pairs(self.counts).sum()
        return Agreement(_share(both, _pairs(self.identity_sizes).sum()), _share(both, _pairs(self.person_sizes).sum()))

    def bcubed(self) -> Agreement:
        squares = self.counts.astype(np.float64) ** 2
        precision = (squares / self.identity_sizes[self.identities]).sum() / self.faces
        recall = (squares / self.person_sizes[self.people]).sum() / self.faces
        return Agreement(float(precision), float(recall))

    def counted(self) -> dict[str, int]:
        """The numbers of people and of identities, and how many of them match exactly or in one direction."""
        pure = np.bincount(self.identities) == 1
        together = np.bincount(self.people) == 1
        return {
            "people": len(self.person_sizes),
            "identities": len(self.identity_sizes),
            "people_in_one_identity": int(together.sum()),
            "identities_of_one_person": int(pure.sum()),
            "people_found_exactly": int((together[self.people] & pure[self.identities]).sum()),
        }

    def wrongly_joined(self) -> IntArray:
        """[k] for each identity, the pairs of faces that show two people."""
        return _pairs(self.identity_sizes) - _summed(self.identities, _pairs(self.counts))

    def wrongly_parted(self) -> IntArray:
        """[p] for each person, the pairs of faces that are in two identities."""
        return _pairs(self.person_sizes) - _summed(self.people, _pairs(self.counts))


def _pairs(counts: IntArray) -> IntArray:
    return counts * (counts - 1) // 2


def _summed(groups: IntArray, values: IntArray) -> IntArray:
    """The sum of `values` in each group. `bincount` would add as float64, which is not exact beyond 2^53."""
    sums = np.zeros(int(groups.max()) + 1, dtype=np.int64)
    np.add.at(sums, groups, values)
    return sums


def _share(part: float, total: float) -> float:
    return float(part / total) if total else math.nan


@dataclass(frozen=True)
class Part:
    """Faces of one person in one identity; `name` is the person in a mixed identity, the identity of a split person."""

    name: str
    faces: int
    images: tuple[str, ...]  # the first few paths


@dataclass(frozen=True)
class Fault:
    """An identity that mixes people, or a person who is split over identities."""

    name: str
    faces: int
    wrong_pairs: int  # of faces, wrongly joined or wrongly parted
    parts_in_all: int
    parts: tuple[Part, ...]  # the largest first


@dataclass(frozen=True)
class ClusteringResult:
    """The result of `evaluate_clustering`."""

    faces: int  # labelled, in an identity
    pairwise: Agreement
    bcubed: Agreement
    counts: dict[str, int]  # `Contingency.counted`
    ungrouped: int  # labelled faces in none
    # The same, with each ungrouped face as an identity of its own; None without ungrouped faces.
    pairwise_with_ungrouped: Agreement | None
    bcubed_with_ungrouped: Agreement | None
    worst_mixed: tuple[Fault, ...]
    worst_split: tuple[Fault, ...]


def evaluate_clustering(
    paths: Sequence[str], people: Sequence[str], identities: Sequence[str | None]
) -> ClusteringResult:
    """Compares n labelled faces: the path [n] of the image, the person [n], and the identity [n] (None: in none).

    Raises InputError where no labelled face is in an identity.
    """
    grouped = [row for row, identity in enumerate(identities) if identity is not None]
    if not grouped:
        raise InputError(message="No labelled face is in an identity, so there is nothing to compare.")
    names, person = numbered([people[i] for i in grouped])
    keys, identity = numbered([str(identities[i]) for i in grouped])
    table = Contingency.of(person, identity)
    ungrouped = len(people) - len(grouped)
    with_ungrouped = _with_singletons(people, identities) if ungrouped else None
    images = [paths[i] for i in grouped]
    return ClusteringResult(
        faces=len(grouped),
        pairwise=table.pairwise(),
        bcubed=table.bcubed(),
        counts=table.counted(),
        ungrouped=ungrouped,
        pairwise_with_ungrouped=with_ungrouped.pairwise() if with_ungrouped else None,
        bcubed_with_ungrouped=with_ungrouped.bcubed() if with_ungrouped else None,
        worst_mixed=_worst(table.wrongly_joined(), identity, keys, person, names, images),
        worst_split=_worst(table.wrongly_parted(), person, names, identity, keys, images),
    )


def _with_singletons(people: Sequence[str], identities: Sequence[str | None]) -> Contingency:
    keys = [row if identity is None else identity for row, identity in enumerate(identities)]
    return Contingency.of(numbered(people)[1], numbered(keys)[1])


def _worst(
    wrong: IntArray, groups: IntArray, group_names: list[str], parts: IntArray, part_names: list[str], paths: list[str]
) -> tuple[Fault, ...]:
    """The groups with the most wrong pairs, without those that have none."""
    order = np.argsort(-wrong, kind="stable")[:LISTED]
    return tuple(
        _fault(group_names[group], int(wrong[group]), np.flatnonzero(groups == group), parts, part_names, paths)
        for group in order[wrong[order] > 0].tolist()
    )


def _fault(name: str, wrong: int, members: IntArray, parts: IntArray, part_names: list[str], paths: list[str]) -> Fault:
    distinct, counts = np.unique(parts[members], return_counts=True)
    largest = np.argsort(-counts, kind="stable")[:PARTS]
    listed = (
        Part(
            part_names[distinct[k]],
            int(counts[k]),
            tuple(paths[i] for i in members[parts[members] == distinct[k]][:IMAGES]),
        )
        for k in largest
    )
    return Fault(name, len(members), wrong, len(distinct), tuple(listed))
