"""When a decision made without the lock must be made again, and how photos count."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.extraction.rows import ExtractedFace
from pipeline.matching.calibration import Calibration
from pipeline.matching.match import Matcher
from pipeline.people.decide import Decision, DetectedFace, decide_faces, occurrences
from tests.identities.planted import BOX, PlantedDirectory, apply, near, put, somebody

MATCHER = Matcher(Calibration(), 0.54)


def detected(
    photo: int, vector: np.ndarray, image: str = "h", *, ordinal: int = 0, allowed: bool = True
) -> DetectedFace:
    """A face of good quality; as a new identity it is "new <photo>.<ordinal>"."""
    face = ExtractedFace(dict(zip(("x1", "y1", "x2", "y2"), BOX, strict=True)), vector, None)
    return DetectedFace(photo, ordinal, face, (image,), allowed, (), True, f"new {photo}.{ordinal}")


def outcomes(decision: Decision) -> list[tuple[str, str | None, float | None]]:
    return [(s.outcome, s.person_id, s.score) for s in decision.detected_faces]


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
        ("all was read again", True),
    ],
)
def test_when_a_decision_must_be_made_again(directory: PlantedDirectory, change: str, outdated: bool) -> None:
    decision = decide_faces(directory, [detected(0, near(0, 0.3)), detected(1, somebody(8))], MATCHER)
    assert [(s.outcome, s.person_id) for s in decision.detected_faces] == [("matched", "p0"), ("inserted", "new 1.0")]
    if change == "somebody else came":
        put(directory, 9, somebody(9))
    elif change == "somebody else went":
        apply(directory, deleted=["p2"])
    elif change == "the match went":
        apply(directory, deleted=["p0"])
    elif change == "the match has a new reference":
        put(directory, 0, somebody(9))
    elif change == "a nearer one came":
        put(directory, 9, near(8, 0.5))
    elif change == "the identical image came":
        put(directory, 9, somebody(9), "h")
    elif change == "all was read again":
        directory.load()
    assert decision.is_outdated() is outdated


# What may happen to person `number`: a (new) reference, of a vector and an image, or deletion.
_VECTORS = [near(person, distance) for person in range(3) for distance in (0.0, 0.3, 0.7, 1.1)]
_changes = st.tuples(
    st.integers(0, 5), st.none() | st.tuples(st.sampled_from(range(len(_VECTORS))), st.sampled_from("abc"))
)
_faces = st.lists(st.tuples(st.sampled_from(range(len(_VECTORS))), st.sampled_from("abc"), st.booleans()), min_size=1)


def follow(directory: PlantedDirectory, change: tuple[int, tuple[int, str] | None]) -> None:
    number, reference = change
    if reference is not None:
        put(directory, number, _VECTORS[reference[0]], reference[1])
    elif directory.get(f"p{number}") is not None:
        apply(directory, deleted=[f"p{number}"])


@settings(max_examples=200, deadline=None)
@given(
    st.lists(_changes, max_size=8),
    st.lists(_changes, max_size=4),
    _faces,
    st.sampled_from([0.0, 0.09, 0.54, 1.5, 4.0]),
)
def test_what_is_not_outdated_would_be_decided_alike(
    before: Sequence[tuple[int, tuple[int, str] | None]],
    since: Sequence[tuple[int, tuple[int, str] | None]],
    faces: Sequence[tuple[int, str, bool]],
    threshold: float,
) -> None:
    directory, matcher = PlantedDirectory(), Matcher(Calibration(), threshold)
    for change in before:
        follow(directory, change)
    detected_faces = [
        detected(photo, _VECTORS[vector], image, allowed=allowed)
        for photo, (vector, image, allowed) in enumerate(faces)
    ]
    decision = decide_faces(directory, detected_faces, matcher)
    for change in since:
        follow(directory, change)
    if not decision.is_outdated():
        assert outcomes(decide_faces(directory, detected_faces, matcher)) == outcomes(decision)


def boxed(s: DetectedFace, x: float) -> DetectedFace:
    box = {"x1": x, "y1": 0.0, "x2": x + 10, "y2": 10.0}
    return replace(s, face=replace(s.face, fields={**s.face.fields, **box}))


@pytest.mark.parametrize(("merged", "second"), [(False, ("matched", "p1")), (True, ("inserted", "new 0.1"))])
def test_nobody_is_twice_on_a_photo_and_a_merge_outdates_that(merged: bool, second: tuple[str, str]) -> None:
    directory = PlantedDirectory()
    put(directory, 0, somebody(0), "a")
    put(directory, 1, near(0, 0.3), "b")
    if merged:
        apply(directory, [replace(directory.record("p1"), parent_id="p0")])
    faces = [boxed(detected(0, near(0, d), ordinal=k), 20.0 * k) for k, d in enumerate((0.05, 0.1))]
    usual = decide_faces(directory, faces, MATCHER)
    assert [s.person_id for s in usual.detected_faces] == ["p0", "p0"]
    decision = decide_faces(directory, faces, MATCHER, once_per_photo=True)
    assert [(s.outcome, s.person_id) for s in decision.detected_faces] == [("matched", "p0"), second]
    assert not decision.is_outdated()
    for allowed, hashes in (({0}, set()), ({1}, {"h"})):  # by its number, and by its bytes
        directory.planted.allowed = hashes
        found = decide_faces(directory, faces, MATCHER, once_per_photo=True, twice_allowed=allowed)
        assert outcomes(found) == outcomes(usual)
    apply(directory, [replace(directory.record("p1"), parent_id=None if merged else "p0")])
    assert decision.is_outdated()
    assert not usual.is_outdated()


def test_people_of_settled_faces_are_on_the_photo_already(directory: PlantedDirectory) -> None:
    undecided = boxed(detected(0, near(0, 0.1), ordinal=1), 20.0)
    settled = replace(boxed(detected(0, somebody(7)), 0.0), settled=True, person_id="p0")
    for s, expected in ((settled, "new 0.1"), (replace(settled, photo=1), "p0"), (boxed(settled, 22.0), "p0")):
        decision = decide_faces(directory, [undecided], MATCHER, once_per_photo=True, settled=[s])
        assert [s.person_id for s in decision.detected_faces] == [expected]


def test_a_photo_counts_a_person_once_and_not_at_all_where_it_made_the_person(directory: PlantedDirectory) -> None:
    shown = [
        (0, somebody(5)),
        (0, near(5, 0.1)),
        (0, near(0, 0.1)),
        (1, near(0, 0.2)),
        (1, near(0, 0.3)),
        (1, near(5, 0.2)),
    ]
    faces = [detected(photo, vector, f"image {k}", ordinal=k) for k, (photo, vector) in enumerate(shown)]
    decided = decide_faces(directory, faces, MATCHER).detected_faces
    assert occurrences(directory, decided) == {"p0": 2, "new 0.0": 1}
