"""Posts about some faces of a photo: the others are neither processed nor answered."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline.errors import SeveralFaces
from tests.identities.planted import Face, PostHandler, person_of, somebody

# In a photo of 400 x 100: centres at (45, 45), (125, 25) and (220, 20).
FACES = (Face(somebody(0), side=90), Face(somebody(1), side=50, x=100), Face(somebody(2), side=40, x=200))
ALL = {"insert_all": True, "name": "Ann"}


@pytest.mark.parametrize(
    ("request_parts", "selected"),
    [
        ({}, [0, 1, 2]),
        ({"largest_only": True}, [0]),
        ({"closest_x": 0.0}, [0]),
        ({"closest_x": 0.5}, [2]),
        ({"closest_x": 0.3}, [1]),
        ({"closest_y": 0.0}, [2]),
        ({"closest_y": 1.0}, [0]),
        ({"closest_x": 0.4, "closest_y": 0.3}, [1]),  # 35.4 px from the second, 61.0 px from the third
        ({"closest_x": 0.5, "largest_only": True}, [2]),  # a point says more than a size
        ({"larger_than": 0.5}, [0, 1]),
        ({"larger_than": 0.51}, [0]),
        ({"larger_than": 0.91}, []),
        ({"larger_than": 0.5, "closest_x": 1.0}, [1]),
    ],
)
def test_only_selected_faces_are_processed_and_answered(
    post_handler: PostHandler, request_parts: dict[str, Any], selected: list[int]
) -> None:
    result = post_handler.post(*FACES, **ALL, **request_parts)
    assert [face.face.box[0] for face in result.faces] == [FACES[place].x for place in selected]
    assert [face.inserted for face in result.faces] == [True] * len(selected)
    assert len(post_handler.all()) == len(selected)


def test_the_headers_describe_the_selected_face(post_handler: PostHandler) -> None:
    post_handler.one(somebody(2), name="Cleo")
    face = post_handler.post(*FACES, closest_x=0.3, name="Bob", external_id="b").faces[0]
    assert (face.inserted, person_of(face).record.name) == (True, "Bob")
    assert post_handler.post(*FACES, closest_x=0.5, name="Cleo", external_id="c").account_updated
    assert [(record.name, record.external_id) for record in post_handler.records()] == [("Cleo", "c"), ("Bob", "b")]
    assert post_handler.post(*FACES, closest_x=0.5, name="Dora").faces[0].conflict == "name"


def test_without_the_largest_face_the_headers_describe_nobody(post_handler: PostHandler) -> None:
    """There is never a fallback to the next face. The faces are given in the order of their sizes: the first one is low
    and wide."""
    low, high = Face(somebody(0), side=50), Face(somebody(1), x=100, side=90)
    (face,) = post_handler.post(low, high, larger_than=0.8, name="Ann").faces
    assert (face.inserted, face.person) == (False, None)
    post_handler.one(somebody(1))
    assert post_handler.post(low, high, larger_than=0.8, name="Ann").account_updated
    assert [record.name for record in post_handler.records()] == [None]


def test_faces_that_are_not_selected_are_not_counted(post_handler: PostHandler) -> None:
    for vector in (somebody(0), somebody(1)):
        post_handler.one(vector)
    post_handler.post(*FACES, largest_only=True)
    post_handler.post(*FACES, closest_x=0.0)
    assert [record.occurrence for record in post_handler.records()] == [3, 1]


@pytest.mark.parametrize("about", ["update_person_id", "merge_with"])
def test_a_request_about_one_face_must_select_it(post_handler: PostHandler, about: str) -> None:
    person_id = person_of(post_handler.one(somebody(0))).record.person_id
    before = post_handler.records()
    with pytest.raises(SeveralFaces):
        post_handler.post(*FACES, **{about: person_id})
    assert post_handler.records() == before
    assert post_handler.post(*FACES, **{about: person_id}, largest_only=True).account_updated
    assert post_handler.post(**{about: person_id}).faces == []
