"""Which posts may be committed at the same time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pipeline.identities.claims import Claim
from pipeline.matching.match import Calibration, Matcher

# At distance 0.6 of the first, and sqrt(2) of the second.
FIRST, NEAR_FIRST, SECOND = np.array([[1, 0, 0], [0.82, 0.57236, 0], [0, 0, 1]], np.float32)


def post(*faces: np.ndarray, becoming: list[int], threshold: float = 0.54, **more: Any) -> Claim:
    matcher, none = Matcher(Calibration(), threshold), frozenset[str]()
    return replace(Claim(none, none, none, np.array(faces, np.float32), becoming, matcher), **more)


def conflict(a: Claim, b: Claim) -> bool:
    assert a.conflicts(b) == b.conflicts(a)
    return a.conflicts(b)


def test_new_faces_of_two_people_don_t_conflict() -> None:
    assert not conflict(post(FIRST, becoming=[0]), post(SECOND, becoming=[0]))


def test_a_face_that_would_match_the_other_s_new_reference_conflicts() -> None:
    assert conflict(post(FIRST, becoming=[0]), post(NEAR_FIRST, becoming=[0]))
    assert conflict(post(FIRST, becoming=[0]), post(SECOND, NEAR_FIRST, becoming=[0])), "any face, not only the new one"
    assert not conflict(post(FIRST, becoming=[]), post(NEAR_FIRST, becoming=[])), "nobody's reference changes"


def test_each_post_sees_the_other_at_its_own_threshold() -> None:
    strict = post(FIRST, becoming=[0], threshold=0.3)
    assert not conflict(strict, post(NEAR_FIRST, becoming=[0], threshold=0.3))
    assert conflict(strict, post(NEAR_FIRST, becoming=[0], threshold=0.54))


def test_of_one_image_a_new_reference_is_identical_at_any_threshold() -> None:
    image = {"hashes": frozenset({"bytes", "pixels"})}
    copy = {"hashes": frozenset({"other bytes", "pixels"})}
    assert conflict(post(FIRST, becoming=[0], threshold=0, **image), post(FIRST, becoming=[0], threshold=0, **copy))


@pytest.mark.parametrize("what", ["persons", "external_ids"])
def test_the_same_person_or_external_id_conflicts(what: str) -> None:
    one, other = {what: frozenset({"x", "y"})}, {what: frozenset({"y", "z"})}
    assert conflict(post(FIRST, becoming=[], **one), post(SECOND, becoming=[], **other))
    assert not conflict(post(FIRST, becoming=[], **one), post(SECOND, becoming=[], **{what: frozenset({"z"})}))
