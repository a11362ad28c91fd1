"""The directory in memory: what a view keeps, when a decision is outdated, and what is forgotten."""

from __future__ import annotations

import dataclasses
import time
from datetime import datetime

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.identities.directory import Directories, Directory, DirectoryView, ReferenceFace
from pipeline.matching.group import group_faces
from pipeline.matching.match import Calibration, Matcher
from pipeline.store.client import StoreClient
from pipeline.store.records import PersonRecord, References
from pipeline.types import Decisions, FaceBatch
from tests.identities.planted import SIZE, near, somebody

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


# What may happen to person `number`: a (new) reference, of a vector and an image, or deletion.
_VECTORS = [near(person, distance) for person in range(3) for distance in (0.0, 0.3, 0.7, 1.1)]
_changes = st.tuples(
    st.integers(0, 5), st.none() | st.tuples(st.sampled_from(range(len(_VECTORS))), st.sampled_from("abc"))
)
_faces = st.lists(st.tuples(st.sampled_from(range(len(_VECTORS))), st.sampled_from("abc"), st.booleans()), min_size=1)


def follow(directory: Directory, change: tuple[int, tuple[int, str] | None]) -> None:
    number, reference = change
    if reference is not None:
        put(directory, number, _VECTORS[reference[0]], reference[1])
    elif directory.get(f"p{number}") is not None:
        directory.apply(deleted=[f"p{number}"])


def whom(view: DirectoryView, faces: FaceBatch, matcher: Matcher) -> tuple[Decisions, list[str | int]]:
    """The decisions, and whose each face is: a person's, or the k-th new one's."""
    decided = group_faces(faces, view.index, matcher)
    new = len(view.index)
    return decided, [p if p < 0 else view.person_ids[p] if p < new else p - new for p in decided.position.tolist()]


@settings(max_examples=200, deadline=None)
@given(
    st.lists(_changes, max_size=8),
    st.lists(_changes, max_size=4),
    _faces,
    st.sampled_from([0.0, 0.09, 0.54, 1.5, 4.0]),
)
def test_what_is_not_outdated_would_be_decided_alike(
    before: list[tuple[int, tuple[int, str] | None]],
    since: list[tuple[int, tuple[int, str] | None]],
    shown: list[tuple[int, str, bool]],
    threshold: float,
) -> None:
    directory, matcher = Directory(1, "main", SIZE), Matcher(Calibration(), threshold)
    for change in before:
        follow(directory, change)
    faces = FaceBatch(
        np.stack([_VECTORS[vector] for vector, _, _ in shown]),
        np.array([insertable for _, _, insertable in shown]),
        [(image,) for _, image, _ in shown],
        np.array([BOX] * len(shown), np.float32),
    )
    view = directory.view()
    decided, persons = whom(view, faces, matcher)
    for change in since:
        follow(directory, change)
    if not view.is_outdated_for(directory.view(), faces, decided.position, matcher):
        again, same_persons = whom(directory.view(), faces, matcher)
        assert same_persons == persons
        assert again.inserted.tolist() == decided.inserted.tolist()
        assert np.array_equal(again.score, decided.score, equal_nan=True)


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


def test_a_large_directory_is_cleared_in_a_moment() -> None:
    """Not in a time that grows with the square of its size: others wait meanwhile."""
    count = 20_000
    vectors = np.tile(somebody(0), (count, 1))
    persons = [
        PersonRecord(f"p{k}", k + 1, None, None, None, (), False, 1, NOW, NOW, NOW, f"g{k}") for k in range(count)
    ]
    made = Directory(1, "main", SIZE)
    boxes = np.tile(np.array(BOX, np.float32), (count, 1))
    made.load(References(vectors, np.arange(1, count + 1), persons, [("h",)] * count, boxes))
    begun = time.monotonic()
    made.clear()
    assert time.monotonic() - begun < 1
    assert (len(made), best(made, somebody(0)), made.records()) == (0, None, [])


def test_loading_again_replaces_what_was_there(directory: Directory) -> None:
    before = directory.view()
    record = dataclasses.replace(directory.records()[1], external_id="e", image_guid="new")
    boxes = np.array([BOX], np.float32)
    directory.load(References(somebody(7)[None], np.array([2]), [record], [("h",)], boxes))
    assert best(directory, somebody(7)) == "p1"
    assert len(directory.view().index) == 1
    assert directory.records() == directory.with_external_id("e") == [record]
    assert directory.person_of_image("p1-1") is None
    faces = batch(somebody(1))
    assert before.is_outdated_for(directory.view(), faces, np.array([1]), MATCHER)
    put(directory, 4, somebody(4))
    assert best(directory, somebody(4)) == "p4"


def test_a_directory_that_holds_nobody_is_forgotten(client: StoreClient, account: int) -> None:
    directories = Directories(client)
    with directories.using(account, "ghost") as first, directories.using(account, "ghost") as second:
        assert first is second
    assert directories.all() == []
