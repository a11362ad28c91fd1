"""Which faces of a changed photo are earlier ones."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.matching.calibration import Calibration
from pipeline.matching.match import Matcher
from pipeline.models.registry import REGISTRY
from pipeline.people.changed_photos import PlacedFace, place_bound, same_faces

CALIBRATION = Calibration()
LIKE, BOUND = Matcher(CALIBRATION, 0.54), Matcher(CALIBRATION, 1.08)
LEFT, RIGHT, ALMOST_LEFT = (0.1, 0.1, 0.3, 0.5), (0.6, 0.1, 0.8, 0.5), (0.12, 0.1, 0.32, 0.5)
FAR = (0.5, 0.6, 0.7, 0.9)


def vector(distance: float = 0.0) -> np.ndarray:
    """[2] of norm 1, at this squared distance from `vector()`."""
    angle = np.arccos(1 - distance / 2)
    return np.array([np.cos(angle), np.sin(angle)], np.float32)


def found(earlier: list[PlacedFace], later: list[PlacedFace]) -> dict[int, int]:
    return same_faces(earlier, later, LIKE, BOUND)


@pytest.mark.parametrize(
    ("box", "distance", "same"),
    [
        (LEFT, 0.01, True),
        (ALMOST_LEFT, 0.9, True),  # poor, at the same place
        (LEFT, 1.5, False),  # a stranger
        (FAR, 0.3, True),  # elsewhere, and like it
        (FAR, 0.9, False),
        (None, 0.3, True),
        (None, 0.9, False),
        (LEFT, None, True),  # of which no vector is stored
        (FAR, None, False),
    ],
)
def test_a_face_is_the_earlier_one(box: tuple[float, ...] | None, distance: float | None, same: bool) -> None:
    later = PlacedFace(box, None if distance is None else vector(distance))  # type: ignore[arg-type]
    assert found([PlacedFace(LEFT, vector())], [later]) == ({0: 0} if same else {})


def test_the_surest_come_first() -> None:
    """Twins, alike to the matcher, stay where they are; a face that moved goes before one that came in its place."""
    twins = [PlacedFace(LEFT, vector()), PlacedFace(RIGHT, vector(0.02))]
    assert found(twins, [PlacedFace(RIGHT, vector()), PlacedFace(LEFT, vector(0.02))]) == {0: 1, 1: 0}
    moved = [PlacedFace(LEFT, vector(0.9)), PlacedFace(FAR, vector(0.1))]
    assert found([PlacedFace(LEFT, vector())], moved) == {1: 0}


def test_the_bound_is_that_of_one_in_a_hundred() -> None:
    for weights in REGISTRY.values():
        facts = getattr(weights, "calibration", None)
        if facts is not None and facts.thresholds:
            calibration = Calibration.from_dict(facts.as_dict())
            assert place_bound(calibration, 0.54) == calibration.threshold_at(1e-2) > 0.54
            assert place_bound(calibration, 3.0) == 3.0
    assert place_bound(CALIBRATION, 0.54) == pytest.approx(1.08)
    assert place_bound(Calibration(thresholds=((1e-6, 0.3), (1e-4, 0.6))), 0.54) == 0.6


@st.composite
def faces(draw: st.DrawFn) -> list[PlacedFace]:
    count = draw(st.integers(0, 5))
    numbers = st.floats(0, 0.9)
    made = []
    for _ in range(count):
        x, y, side = draw(numbers), draw(numbers), draw(st.floats(0.02, 0.5))
        known = draw(st.booleans())
        distance = draw(st.floats(0, 3.9))
        box = (x, y, x + side, y + side) if draw(st.booleans()) else None
        made.append(PlacedFace(box, vector(distance) if known else None))
    return made


@given(faces(), faces())
def test_each_is_one_at_most_and_none_is_left_that_could_be(earlier: list[PlacedFace], later: list[PlacedFace]) -> None:
    pairs = found(earlier, later)
    assert len(set(pairs.values())) == len(pairs)
    rest = [n for n in range(len(later)) if n not in pairs], [k for k in range(len(earlier)) if k not in pairs.values()]
    assert found([earlier[k] for k in rest[1]], [later[n] for n in rest[0]]) == {}
    for new, old in pairs.items():
        assert found([earlier[old]], [later[new]]) == {0: 0}


@given(faces())
def test_an_unchanged_photo_has_the_faces_that_it_had(earlier: list[PlacedFace]) -> None:
    known = [face for face in earlier if face.embedding is not None or face.box is not None]
    assert len(found(known, known)) == len(known)
