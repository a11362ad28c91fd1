"""decisions.md, "Scores"."""

from __future__ import annotations

import math

import pytest

from tests.serve.conformance.client import Directory
from tests.serve.conformance.conftest import Gallery
from tests.serve.conformance.photos import other, photo

DEFAULT = 2 - math.sqrt(0.54)
SMALLEST_DENOMINATOR = 2.5e-4


def similar_scores(directory: Directory, image: bytes, threshold: str) -> dict[str, float]:
    (face,) = directory.recognise(image, threshold=threshold, similar_limit=10)
    return {similar["personId"]: similar["similarityScore"] for similar in face["similar"]}


def test_scores_one_function_everywhere(gallery: Gallery) -> None:
    """One function computes it everywhere: the match, the ranking and the second call give the same bits."""
    for person in ("hopper", "collins"):
        for which in range(3):
            first = gallery.directory.recognise(other(person, which), similar_limit=2)[0]
            second = gallery.directory.recognise(other(person, which))[0]
            assert first["similarityScore"] == first["similar"][0]["similarityScore"] == second["similarityScore"]


def test_scores_do_not_depend_on_who_else_is_there(directory: Directory) -> None:
    """... of the products of the stored vectors: more references change no score."""
    first = directory.insert(photo("hopper"))["personId"]
    alone = similar_scores(directory, other("hopper"), "0.54")[first]
    for which in range(1, 4):
        directory.force(other("hopper", which), f"P{which}", f"P-{which}")
        assert similar_scores(directory, other("hopper"), "0.54")[first] == alone


def test_scores_are_sent_unrounded(gallery: Gallery) -> None:
    """It is sent unrounded: the digits of a float64."""
    scores = similar_scores(gallery.directory, other("hopper"), "0.54")
    assert all(round(score, 12) != score for score in scores.values())


@pytest.mark.parametrize("threshold", ["0.001", "0.1", "0.54", "1.2", "2.2", "3.9"])
def test_scores_a_face_matches_iff_its_score_is_at_least_1(gallery: Gallery, threshold: str) -> None:
    """A face matches iff that number >= 1.0."""
    for image in (other("hopper"), other("hopper", 4), other("collins")):
        (face,) = gallery.directory.recognise(image, threshold=threshold, similar_limit=1)
        best = face["similar"][0]
        assert ("personId" in face) == (best["similarityScore"] >= 1.0)
        if "personId" in face:
            assert face["personId"] == best["personId"]


def test_scores_at_t_4_every_identity_matches(directory: Directory) -> None:
    """At T = 4 every identity matches, the reported score is max(1, formula), ranking is by d."""
    for number, image in enumerate((photo("collins"), other("collins", 1), photo("hopper"))):
        directory.force(image, f"P{number}", f"P-{number}")
    default = similar_scores(directory, other("hopper"), "0.54")
    widest = similar_scores(directory, other("hopper"), "4")
    assert list(widest) == list(default)
    for person_id, score in widest.items():
        expected = max(1.0, default[person_id] * DEFAULT / SMALLEST_DENOMINATOR)
        assert math.isclose(score, expected, rel_tol=1e-12)
        assert score >= 1.0


def test_scores_at_t_4_nothing_is_inserted_beside_an_identity(directory: Directory) -> None:
    person_id = directory.insert(photo("collins"))["personId"]
    (face,) = directory.faces(photo("hopper"), name="Bea", external_id="B-2", threshold=4, update="false")
    assert face["personId"] == person_id
    assert "newId" not in face


@pytest.mark.parametrize("threshold", ["3.9999", "3.99999999", "4"])
def test_scores_denominator_has_a_smallest_value(gallery: Gallery, threshold: str) -> None:
    """The denominator is at least 2.5e-4, so the formula serves up to T = 4."""
    scores = similar_scores(gallery.directory, photo("hopper"), threshold)
    expected = 2 / max(2 - math.sqrt(float(threshold)), SMALLEST_DENOMINATOR)
    assert scores[gallery.hopper["personId"]] == expected


def test_scores_reproduce_the_published_table() -> None:
    """The formula reproduces the published table at T = 0.54: squared distance 0.68 -> 93 % ... 1.00 -> 79 %."""
    for squared, percent in ((0.68, 93), (0.84, 86), (0.92, 82), (1.00, 79)):
        assert round(100 * (2 - math.sqrt(squared)) / DEFAULT) == percent


def test_scores_of_a_stranger_are_well_below_1(gallery: Gallery) -> None:
    """T = 0.54 has a meaning: two photos of one person match, two people do not."""
    for person, stranger in (("hopper", gallery.collins), ("collins", gallery.hopper)):
        for which in range(7):
            scores = similar_scores(gallery.directory, other(person, which), "0.54")
            assert scores.pop(stranger["personId"]) < 0.85
            assert all(score > 1.3 for score in scores.values())
