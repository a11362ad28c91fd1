"""The directory in memory: what a view keeps, and what the directory drops."""

from __future__ import annotations

import dataclasses
import time

import numpy as np

from pipeline.matching.calibration import Calibration
from pipeline.matching.match import Matcher
from pipeline.people.directory import Directories, Directory
from pipeline.store.local import LocalStore
from pipeline.store.records import References
from tests.identities.planted import BOX, SIZE, apply, person, put, somebody

MATCHER = Matcher(Calibration(), 0.54)


def best(directory: Directory, vector: np.ndarray) -> str | None:
    view = directory.view()
    position = MATCHER.nearest(view.index, vector[None], 1).positions[0, 0]
    return view.person_ids[position] if position >= 0 else None


def test_a_view_never_changes(directory: Directory) -> None:
    view = directory.view()
    put(directory, 1, somebody(7))
    put(directory, 9, somebody(9))
    apply(directory, deleted=["p0"])
    nearest = MATCHER.nearest(view.index, np.stack([somebody(k) for k in range(3)]), 1)
    person_ids = [view.person_ids[p] for p in nearest.positions[:, 0]]
    assert person_ids == ["p0", "p1", "p2"]
    assert (best(directory, somebody(7)), best(directory, somebody(9))) == ("p1", "p9")


def test_a_replaced_reference_keeps_its_place_in_the_order(directory: Directory) -> None:
    """p0 is older than p2: with equal scores it wins, though its reference is the newest."""
    put(directory, 2, somebody(5))
    put(directory, 0, somebody(5))
    assert best(directory, somebody(5)) == "p0"


def test_many_dead_references_are_dropped(directory: Directory) -> None:
    rng = np.random.default_rng(1)
    for number in range(40):
        put(directory, number + 10, somebody(number % SIZE))
    for _ in range(1200):
        vector = rng.normal(size=SIZE).astype(np.float32)
        put(directory, int(rng.integers(10, 50)), vector / np.linalg.norm(vector))
    apply(directory, deleted=[f"p{number}" for number in range(10, 50)])
    assert len(directory.view().index) < 300
    assert [best(directory, somebody(k)) for k in range(3)] == ["p0", "p1", "p2"]


def test_a_large_directory_is_cleared_in_a_moment() -> None:
    """Not in a time that grows with the square of its size: others wait meanwhile."""
    count = 20_000
    vectors = np.tile(somebody(0), (count, 1))
    persons = [person(k) for k in range(count)]
    made = Directory(1, "main", SIZE)
    boxes = np.tile(np.array(BOX, np.float32), (count, 1))
    made.load(References(vectors, np.arange(1, count + 1), persons, [("h",)] * count, boxes))
    begun = time.monotonic()
    made.clear()
    assert time.monotonic() - begun < 1
    assert (len(made), best(made, somebody(0)), made.records()) == (0, None, [])


def test_loading_again_replaces_what_was_there(directory: Directory) -> None:
    record = dataclasses.replace(directory.records()[1], external_id="e", image_guid="new")
    boxes = np.array([BOX], np.float32)
    directory.load(References(somebody(7)[None], np.array([2]), [record], [("h",)], boxes))
    assert best(directory, somebody(7)) == "p1"
    assert len(directory.view().index) == 1
    assert directory.records() == directory.with_external_id("e") == [record]
    assert not directory.has_image("p1-1")
    put(directory, 4, somebody(4))
    assert best(directory, somebody(4)) == "p4"


def test_a_directory_that_holds_nobody_is_forgotten(client: LocalStore, account: int) -> None:
    directories = Directories(client)
    with directories.using(account, "ghost") as first, directories.using(account, "ghost") as second:
        assert first is second
    assert directories.all() == []
