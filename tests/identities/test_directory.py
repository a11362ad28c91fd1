"""The directory in memory: what a view keeps, and what the directory drops."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from datetime import datetime

import numpy as np
import pytest

from pipeline.matching.calibration import Calibration
from pipeline.matching.match import Matcher
from pipeline.people import records
from pipeline.people.directory import Directories
from pipeline.people.records import by_age
from pipeline.store.local import LocalStore
from pipeline.store.records import Change, Committed, FaceVector, PersonRows, References
from tests.identities.planted import BOX, SIZE, PlantedDirectory, apply, put, somebody

MATCHER = Matcher(Calibration(), 0.54)
LATER = datetime(2026, 2, 1)


def best(directory: PlantedDirectory, vector: np.ndarray) -> str | None:
    view = directory.view()
    position = MATCHER.nearest(view.index, vector[None], 1).positions[0, 0]
    return view.person_ids[position] if position >= 0 else None


def test_a_view_never_changes(directory: PlantedDirectory) -> None:
    view = directory.view()
    put(directory, 1, somebody(7))
    put(directory, 9, somebody(9))
    apply(directory, deleted=["p0"])
    nearest = MATCHER.nearest(view.index, np.stack([somebody(k) for k in range(3)]), 1)
    person_ids = [view.person_ids[p] for p in nearest.positions[:, 0]]
    assert person_ids == ["p0", "p1", "p2"]
    assert (best(directory, somebody(7)), best(directory, somebody(9))) == ("p1", "p9")


def test_a_replaced_reference_keeps_its_place_in_the_order(directory: PlantedDirectory) -> None:
    """p0 is older than p2: with equal scores it wins, though its reference is the newest."""
    put(directory, 2, somebody(5))
    put(directory, 0, somebody(5))
    assert best(directory, somebody(5)) == "p0"


def test_many_dead_references_are_dropped(directory: PlantedDirectory) -> None:
    rng = np.random.default_rng(1)
    for number in range(40):
        put(directory, number + 10, somebody(number % SIZE))
    for _ in range(1200):
        vector = rng.normal(size=SIZE).astype(np.float32)
        put(directory, int(rng.integers(10, 50)), vector / np.linalg.norm(vector))
    apply(directory, deleted=[f"p{number}" for number in range(10, 50)])
    assert len(directory.view().index) < 300
    assert [best(directory, somebody(k)) for k in range(3)] == ["p0", "p1", "p2"]


def test_loading_again_replaces_what_was_there(directory: PlantedDirectory) -> None:
    planted, view = directory.planted, directory.view()
    record = dataclasses.replace(planted.people["p1"], external_id="e", image_guid="new")
    planted.people, planted.faces = {"p1": record}, {"p1": FaceVector(somebody(7), ("h",), BOX)}
    directory.load()
    assert best(directory, somebody(7)) == "p1"
    assert directory.view() is not view
    assert (len(directory), len(directory.view().index)) == (1, 1)
    assert [*directory.everybody()] == directory.with_external_id("e") == [record]
    assert not directory.has_picture("p1-1")
    put(directory, 4, somebody(4))
    assert best(directory, somebody(4)) == "p4"


class TestRecords:
    """A command keeps whom it asked for, a server everybody: both answer what the store holds."""

    @pytest.mark.parametrize("everybody", [False, True])
    def test_they_follow_changes(self, directory: PlantedDirectory, everybody: bool) -> None:
        directory = PlantedDirectory(planted=directory.planted)
        if everybody:
            directory.keep_all()
        assert directory.get("p1") == directory.planted.people["p1"]
        put(directory, 1, somebody(9))
        put(directory, 5, somebody(5))
        apply(directory, [dataclasses.replace(directory.planted.people["p2"], parent_id="p5", external_id="x")])
        apply(directory, deleted=["p0"])
        stored = directory.planted.people
        assert directory.of(["p0", "p1", "p2", "p5", "nobody"]) == stored
        assert [*directory.everybody()] == by_age(stored.values())
        assert [record.person_id for record in directory.merged_set("p2")] == ["p5", "p2"]
        assert directory.merged_set("p0") == []
        assert (len(directory), directory.people) == (3, 2)
        assert directory.with_external_id("x") == [stored["p2"]]
        assert directory.has_picture(str(stored["p5"].image_guid))
        assert not directory.has_picture("guid-1")

    def test_what_already_shows_a_commit_is_not_changed_by_it_again(self, directory: PlantedDirectory) -> None:
        """Between a commit and `apply` another thread may read: a person seen once more must not count twice."""
        seen = dataclasses.replace(directory.planted.people["p1"], occurrence=2, last_occurrence_at=LATER)
        directory = PlantedDirectory(planted=directory.planted)
        directory.planted.people["p1"] = seen
        directory.planted.number += 1
        assert directory.get("p1") == seen
        change = Change(1, "main", seen={"p1": 1}, seqs={"p1": 2})
        directory.apply(change, Committed(directory.planted.number, LATER, {}, None))
        assert directory.get("p1") == seen

    def test_an_answer_from_before_a_change_is_not_kept(self, directory: PlantedDirectory) -> None:
        planted = directory.planted
        answer = planted.persons

        def late(person_ids: Sequence[str]) -> PersonRows:
            before = answer(person_ids)
            planted.persons = answer  # type: ignore[method-assign]
            put(directory, 1, somebody(9))
            return before

        directory = PlantedDirectory(planted=planted)
        planted.persons = late  # type: ignore[method-assign]
        assert directory.get("p1") is not None
        assert directory.get("p1") == planted.people["p1"]

    def test_more_than_are_kept_are_asked_for(
        self, directory: PlantedDirectory, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(records, "KEPT", 2)
        directory.keep_all()
        put(directory, 8, somebody(8))
        for _ in range(2):
            assert directory.of(["p0", "p1", "p2", "p8"]) == directory.planted.people
        assert [*directory.everybody()] == by_age(directory.planted.people.values())
        assert directory.has_picture("p2-2")
        assert not directory.has_picture("gone")


def test_an_index_that_is_read_while_a_change_is_applied_shows_it(directory: PlantedDirectory) -> None:
    planted = directory.planted
    answer = planted.references

    def slow() -> References:
        before = answer()
        apply(directory, [planted.people["p1"]], {"p1": FaceVector(somebody(9), ("h",), BOX)})
        apply(directory, deleted=["p2"])
        return before

    directory = PlantedDirectory(planted=planted)
    planted.references = slow  # type: ignore[method-assign]
    assert best(directory, somebody(9)) == "p1"
    assert directory.reference_of("p2")[1] is None


def test_a_directory_that_holds_nobody_is_forgotten(client: LocalStore, account: int) -> None:
    directories = Directories(client)
    with directories.using(account, "ghost") as first, directories.using(account, "ghost") as second:
        assert first is second
    assert directories.all() == []
