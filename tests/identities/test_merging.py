"""Merge and unmerge are inverses, and deleting leaves the others merged."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.errors import PersonUnknown
from pipeline.people.merging import merged_parents, orphaned, unmerged
from pipeline.people.views import epoch_ms, person_views, root_views
from pipeline.store.records import FaceVector, PersonRecord
from tests.identities.planted import PlantedDirectory, apply

NOW = datetime(2026, 1, 1)
COUNT = 8


def eight_persons() -> PlantedDirectory:
    """Persons "0" to "7", in this order."""
    made = PlantedDirectory(COUNT)
    records = [
        PersonRecord.new(str(k), NOW, name=f"name {k}", image_guid=f"guid-{k}", seq=k + 1, occurrence=k + 1)
        for k in range(COUNT)
    ]
    vectors = np.eye(COUNT, dtype=np.float32)
    apply(made, records, {str(k): FaceVector(vectors[k], (), (0, 0, 1, 1)) for k in range(COUNT)})
    return made


@pytest.fixture
def made() -> PlantedDirectory:
    return eight_persons()


def parents(made: PlantedDirectory) -> dict[str, str | None]:
    return {record.person_id: record.parent_id for record in made.everybody()}


def set_parents(made: PlantedDirectory, parent_ids: Mapping[str, str | None]) -> None:
    known = {person_id: made.get(person_id) for person_id in parent_ids}
    apply(made, [replace(record, parent_id=parent_ids[p]) for p, record in known.items() if record is not None])


def merge(made: PlantedDirectory, *ids: str) -> None:
    set_parents(made, merged_parents(made, ids))


def unmerge(made: PlantedDirectory, *ids: str) -> None:
    set_parents(made, {record.person_id: None for record in unmerged(made, ids)})


@pytest.mark.parametrize(
    ("merges", "members"),
    [
        pytest.param(["534"], "345", id="the oldest is the root, whatever the order"),
        pytest.param(["34", "31"], "314", id="a root stays one"),
        pytest.param(["01", "23", "13"], "0123", id="merging children joins their sets"),
    ],
)
def test_who_is_the_root_of_a_merged_set(made: PlantedDirectory, merges: list[str], members: str) -> None:
    for persons in merges:
        merge(made, *persons)
    assert [member.person_id for member in made.merged_set(merges[-1][-1])] == list(members)


def test_two_merged_sets_become_one_and_come_apart_again(made: PlantedDirectory) -> None:
    merge(made, "0", "1")
    merge(made, "2", "3")
    before = parents(made)
    merge(made, "0", "2")
    assert [member.person_id for member in made.merged_set("3")] == ["0", "1", "2", "3"]
    unmerge(made, "0", "2")
    assert parents(made) == before


def test_a_chain_of_merges_may_be_longer_than_calls_can_be_nested() -> None:
    count = sys.getrecursionlimit() + 100
    made = PlantedDirectory(COUNT)
    parent_ids = [None, *(str(k) for k in range(count - 1))]
    apply(
        made,
        [
            PersonRecord.new(str(k), NOW, image_guid=f"guid-{k}", seq=k + 1, parent_id=parent)
            for k, parent in enumerate(parent_ids)
        ],
    )
    assert [member.person_id for member in made.merged_set(str(count // 2))] == [str(k) for k in range(count)]


def test_unmerging_a_root_frees_all_below_it(made: PlantedDirectory) -> None:
    merge(made, "0", "1", "2")
    unmerge(made, "0")
    assert set(parents(made).values()) == {None}


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sets(st.integers(0, COUNT - 1), min_size=2, max_size=4), min_size=1, max_size=4))
def test_unmerge_is_the_inverse_of_merge_for_roots(groups: list[set[int]]) -> None:
    """Merges that only name roots are undone, in the opposite order, exactly."""
    made = eight_persons()
    done: list[tuple[list[str], dict[str, str | None]]] = []
    for group in groups:
        ids = [str(k) for k in sorted(group) if made.get(str(k)).parent_id is None]  # type: ignore[union-attr]
        if len(ids) > 1:
            done.append((ids, parents(made)))
            merge(made, *ids)
    for ids, before in reversed(done):
        unmerge(made, *ids)
        assert parents(made) == before


def test_times_of_one_moment_are_shown_as_one(made: PlantedDirectory) -> None:
    late = datetime(2026, 1, 1, 0, 0, 0, 999_999)
    record = PersonRecord.new("new", late, image_guid="guid")
    (view,) = person_views(made, [record])
    assert view.last_occurrence_at_ms == epoch_ms(record.added_at) == 1_767_225_600_999


def test_merging_or_unmerging_an_unknown_person_is_refused(made: PlantedDirectory) -> None:
    for change in (merged_parents, unmerged):
        with pytest.raises(PersonUnknown):
            change(made, ["1", "none"])


def test_merging_one_person_or_one_set_again_changes_nothing(made: PlantedDirectory) -> None:
    assert merged_parents(made, ["1", "1"]) == {}
    merge(made, "1", "2")
    assert merged_parents(made, ["1", "2"]) == {}


def test_when_a_root_is_deleted_its_oldest_child_becomes_the_root(made: PlantedDirectory) -> None:
    merge(made, "0", "1", "2")
    root = made.get("0")
    assert root is not None
    set_parents(made, orphaned(made, root))
    apply(made, deleted=["0"])
    assert parents(made) == {**{str(k): None for k in range(1, COUNT)}, "2": "1"}


def test_when_one_in_the_middle_is_deleted_its_children_go_to_its_parent(made: PlantedDirectory) -> None:
    merge(made, "2", "3")
    merge(made, "1", "4")
    merge(made, "1", "2")
    middle = made.get("2")
    assert middle is not None
    set_parents(made, orphaned(made, middle))
    apply(made, deleted=["2"])
    assert parents(made) == {"0": None, "1": None, "3": "1", "4": "1", "5": None, "6": None, "7": None}


def test_views_show_the_root_with_the_sum_and_the_others_images(made: PlantedDirectory) -> None:
    merge(made, "0", "1", "2")
    root = root_views(made, ["2"])["2"]
    assert (root.record.person_id, root.occurrence, root.children_images) == ("0", 6, ("guid-1", "guid-2"))
    views = {view.record.person_id: view for view in person_views(made, [*made.everybody()])}
    assert views["0"] == root
    assert (views["2"].root.person_id, views["2"].occurrence, views["2"].children_images) == ("0", 3, ())
    assert all([view] == person_views(made, [view.record]) for view in views.values())
    assert root_views(made, ["none"]) == {}
