"""The directory in memory: what a view keeps, when a decision is outdated, and what is forgotten."""

from __future__ import annotations

import dataclasses
from datetime import datetime

import numpy as np
import pytest

from pipeline.directory import Directories, Directory, ReferenceFace
from pipeline.group import group_faces
from pipeline.match import Calibration, Matcher
from pipeline.store.client import StoreClient
from pipeline.store.records import PersonRecord
from pipeline.types import FaceBatch
from tests.service.planted import SIZE, near, somebody

NOW = datetime(2026, 1, 1)
MATCHER = Matcher(Calibration(), 0.54)
BOX = (0.0, 0.0, 40.0, 40.0)


def put(directory: Directory, number: int, vector: np.ndarray, *hashes: str) -> None:
    """A person "p<number>" with this reference; again: the reference is replaced."""
    person_id = f"p{number}"
    known = directory.get(person_id)
    record = known or PersonRecord(person_id, number + 1, None, None, None, (), False, 1, NOW, NOW, NOW, "")
    record = dataclasses.replace(record, image_guid=f"{person_id}-{len(directory.view().index)}")
    directory.apply([record], references=[ReferenceFace(person_id, vector, hashes, BOX)])


def batch(*vectors: np.ndarray, insertable: bool = True) -> FaceBatch:
    return FaceBatch(
        np.stack(vectors),
        np.full(len(vectors), insertable),
        [("h",)] * len(vectors),
        np.array([BOX] * len(vectors), np.float32),
    )


@pytest.fixture
def directory() -> Directory:
    made = Directory(1, "main", SIZE)
    for number in range(3):
        put(made, number, somebody(number), f"hash-{number}")
    return made


def best(directory: Directory, vector: np.ndarray) -> str | None:
    view = directory.view()
    position = MATCHER.best(view.index, vector[None])[0][0]
    return view.person_ids[position] if position >= 0 else None


def test_a_view_never_changes(directory: Directory) -> None:
    view = directory.view()
    put(directory, 1, somebody(7))
    put(directory, 9, somebody(9))
    directory.apply(deleted=["p0"])
    found = [view.person_ids[p] for p in MATCHER.best(view.index, np.stack([somebody(k) for k in range(3)]))[0]]
    assert found == ["p0", "p1", "p2"]
    assert (best(directory, somebody(7)), best(directory, somebody(9))) == ("p1", "p9")


def test_a_replaced_reference_keeps_its_place_in_the_order(directory: Directory) -> None:
    """p0 is older than p2: with equal scores it wins, though its reference is the newest."""
    put(directory, 2, somebody(5))
    put(directory, 0, somebody(5))
    assert best(directory, somebody(5)) == "p0"


@pytest.mark.parametrize(
    ("change", "outdated"),
    [
        ("nothing", False),
        ("somebody else came", False),
        ("somebody else went", False),
        ("the match went", True),
        ("the match has a new reference", True),
        ("a nearer one came", True),
        ("the identical image came", True),
    ],
)
def test_when_a_decision_must_be_made_again(directory: Directory, change: str, outdated: bool) -> None:
    faces = batch(near(0, 0.3), somebody(8))
    before = directory.view()
    decided = group_faces(faces, before.index, MATCHER)
    assert decided.position.tolist() == [0, 3]
    if change == "somebody else came":
        put(directory, 9, somebody(9))
    elif change == "somebody else went":
        directory.apply(deleted=["p2"])
    elif change == "the match went":
        directory.apply(deleted=["p0"])
    elif change == "the match has a new reference":
        put(directory, 0, somebody(9))
    elif change == "a nearer one came":
        put(directory, 9, near(8, 0.5))
    elif change == "the identical image came":
        put(directory, 9, somebody(9), "h")
    assert before.is_outdated_for(directory.view(), faces, decided.position, MATCHER) is outdated


def test_many_dead_references_are_dropped(directory: Directory) -> None:
    rng = np.random.default_rng(1)
    for number in range(40):
        put(directory, number + 10, somebody(number % SIZE))
    for _ in range(1200):
        vector = rng.normal(size=SIZE).astype(np.float32)
        put(directory, int(rng.integers(10, 50)), vector / np.linalg.norm(vector))
    directory.apply(deleted=[f"p{number}" for number in range(10, 50)])
    assert len(directory.view().index) < 300
    assert [best(directory, somebody(k)) for k in range(3)] == ["p0", "p1", "p2"]


def test_a_directory_that_holds_nobody_is_forgotten(client: StoreClient, account: int) -> None:
    directories = Directories(client)
    with directories.using(account, "ghost") as first, directories.using(account, "ghost") as second:
        assert first is second
    assert directories.all() == []
