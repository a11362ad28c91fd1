"""The measures of a clustering, by hand and against their definitions, written down as slowly as they read."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import asdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import InputError
from pipeline.evaluation.clustering import Contingency, evaluate_clustering

LABELS = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=30)


def table(people: Sequence[str | int], identities: Sequence[str | int]) -> Contingency:
    """From the person and the identity of each face."""
    return Contingency.of(*(np.unique(names, return_inverse=True)[1] for names in (list(people), list(identities))))


def test_a_case_worked_out_by_hand() -> None:
    # Person a in x, x, y; person b in y.
    found = table("aaab", "xxyy")
    # In one identity: xx (a a, right) and yy (a b, wrong); of one person: three pairs, one of them together.
    assert found.pairwise().precision == pytest.approx(1 / 2)
    assert found.pairwise().recall == pytest.approx(1 / 3)
    assert found.pairwise().f == pytest.approx(2 / 5)
    # BCubed precision of the faces: 1, 1, 1/2, 1/2; recall: 2/3, 2/3, 1/3, 1.
    assert found.bcubed().precision == pytest.approx(3 / 4)
    assert found.bcubed().recall == pytest.approx(2 / 3)
    assert found.bcubed().f == pytest.approx(2 * (3 / 4) * (2 / 3) / (3 / 4 + 2 / 3))


def test_the_published_example_of_bcubed() -> None:
    # Bagga and Baldwin 1998: chains of 5, 2 and 5. Joining the 2 with a 5 leaves a precision of 76 %, joining the
    # two 5 one of 58 %, though both are a single wrong link.
    small, large = table("aaaaabbccccc", "xxxxxyyyyyyy"), table("aaaaabbccccc", "xxxxxyyxxxxx")
    assert small.bcubed().precision == pytest.approx(16 / 21)
    assert large.bcubed().precision == pytest.approx(7 / 12)
    assert small.bcubed().recall == large.bcubed().recall == 1


def test_counts_of_whole_people_and_identities() -> None:
    # a is split; b is whole but shares its identity; c is exactly one identity.
    assert table("aaabcc", "xxyyzz").counted() == {
        "people": 3,
        "identities": 3,
        "people_in_one_identity": 2,
        "identities_of_one_person": 2,
        "people_found_exactly": 1,
    }


def test_nothing_joined_has_no_pairwise_precision() -> None:
    found = table("aab", "xyz").pairwise()
    assert math.isnan(found.precision)
    assert math.isnan(found.f)
    assert found.recall == 0


def test_everything_wrong_has_an_f_of_zero() -> None:
    assert table("aabb", "xyxy").pairwise().f == 0


def test_the_worst_are_listed_with_their_images() -> None:
    people = ["ann"] * 4 + ["bob"] * 3 + ["cyd"] * 2 + ["dan"]
    identities = ["1", "1", "1", "2", "1", "2", "2", "3", "3", "3"]
    found = evaluate_clustering([f"/{i}.jpg" for i in range(10)], people, identities)
    mixed = found.worst_mixed[0]
    assert (mixed.name, mixed.faces, mixed.wrong_pairs, mixed.parts_in_all) == ("1", 4, 3, 2)
    assert [(part.name, part.faces) for part in mixed.parts] == [("ann", 3), ("bob", 1)]
    assert mixed.parts[0].images == ("/0.jpg", "/1.jpg", "/2.jpg")
    split = found.worst_split[0]
    assert (split.name, split.faces, split.wrong_pairs) == ("ann", 4, 3)
    assert [(part.name, part.faces, part.images) for part in split.parts][1] == ("2", 1, ("/3.jpg",))
    assert [fault.name for fault in found.worst_split] == ["ann", "bob"]


def test_a_clustering_without_faults_lists_none() -> None:
    found = evaluate_clustering(["/a", "/b", "/c"], ["ann", "ann", "bob"], ["1", "1", "2"])
    assert found.worst_mixed == found.worst_split == ()


def test_faces_in_no_identity_are_left_out_and_then_counted_as_alone() -> None:
    found = evaluate_clustering(["/a", "/b", "/c", "/d"], ["ann", "ann", "ann", "bob"], ["1", "1", None, None])
    assert (found.faces, found.ungrouped) == (2, 2)
    assert found.pairwise.recall == 1
    assert found.pairwise_with_ungrouped is not None
    assert found.pairwise_with_ungrouped.recall == pytest.approx(1 / 3)
    assert found.bcubed_with_ungrouped is not None
    assert found.bcubed_with_ungrouped.recall == pytest.approx((2 / 3 + 2 / 3 + 1 / 3 + 1) / 4)
    assert asdict(found.pairwise) == {"precision": 1.0, "recall": 1.0, "f": 1.0}
    assert found.counts["people"] == 1


def test_where_all_are_in_an_identity_nothing_is_said_of_others() -> None:
    found = evaluate_clustering(["/a"], ["ann"], ["1"])
    assert found.pairwise_with_ungrouped is found.bcubed_with_ungrouped is None


@pytest.mark.parametrize("identities", [[], [None, None]])
def test_no_identity_at_all_is_an_error(identities: list[None]) -> None:
    with pytest.raises(InputError, match="nothing to compare"):
        evaluate_clustering(["/a", "/b"][: len(identities)], ["ann", "ann"][: len(identities)], identities)


def test_a_million_faces_take_moments_and_are_exact() -> None:
    # One identity of all: 5e11 pairs, which no float32 and no n^2 holds.
    count = 1_000_000
    people = np.arange(count) // 2
    found = Contingency.of(people, np.zeros(count, np.int64))
    assert found.wrongly_joined().tolist() == [count * (count - 1) // 2 - count // 2]
    assert found.pairwise().precision == pytest.approx((count // 2) / (count * (count - 1) // 2))
    assert found.bcubed().recall == 1


@given(LABELS)
def test_the_measures_are_their_definitions(pairs: list[tuple[int, int]]) -> None:
    people, identities = np.array(pairs).T
    same_person, together = people[:, None] == people, identities[:, None] == identities
    found, right = table(*zip(*pairs, strict=True)), (same_person & together).sum(axis=1)
    assert found.bcubed().precision == pytest.approx((right / together.sum(axis=1)).mean())
    assert found.bcubed().recall == pytest.approx((right / same_person.sum(axis=1)).mean())
    assert 0 < found.bcubed().f <= 1 + 1e-12
    upper = np.triu(np.ones((len(pairs), len(pairs)), np.bool_), k=1)
    joined, of_one = together & upper, same_person & upper
    assert np.isnan(found.pairwise().precision) == (not joined.any())
    if joined.any():
        assert found.pairwise().precision == pytest.approx((joined & of_one).sum() / joined.sum())
    if of_one.any():
        assert found.pairwise().recall == pytest.approx((joined & of_one).sum() / of_one.sum())
    assert found.wrongly_joined().sum() == (joined & ~of_one).sum()
    assert found.wrongly_parted().sum() == (of_one & ~joined).sum()


@given(LABELS, st.permutations(range(5)), st.randoms(use_true_random=False))
def test_neither_the_names_nor_the_order_matter(
    pairs: list[tuple[int, int]], names: list[int], random: random.Random
) -> None:
    renamed = [(names[person], names[-1 - identity]) for person, identity in pairs]
    random.shuffle(renamed)
    assert table(*zip(*pairs, strict=True)).counted() == table(*zip(*renamed, strict=True)).counted()
