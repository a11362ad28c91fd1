"""Section 4.3 of the contract: POST /people, recognition."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from tests.serve.conformance.client import Directory, Json
from tests.serve.conformance.conftest import Gallery
from tests.serve.conformance.photos import other, pair, photo

IDENTITY_KEYS = {"personId", "name", "personExternalId"}


def denominator(threshold: float) -> float:
    return 2 - math.sqrt(threshold)


def score_of(directory: Directory, image: bytes, threshold: float) -> Json:
    """The most similar identity, at this threshold."""
    (face,) = directory.recognise(image, threshold=repr(threshold), similar_limit=1)
    return dict(face["similar"][0])


def test_4_3_nothing_is_inserted_or_updated(directory: Directory) -> None:
    """insert=false and update=false, so that nothing is inserted or updated. Response: accountUpdated false."""
    person_id = directory.insert(photo("hopper"), "Anna", "A-1")["personId"]
    before = directory.people()
    for image in (photo("hopper"), other("hopper"), photo("collins")):
        answer = directory.answer(image, name="Bea", external_id="B-2", insert="false", update="false")
        assert answer["accountUpdated"] is False
    assert directory.people() == before
    assert directory.face_image(person_id).status_code == 200


def test_4_3_rule_1_one_entry_per_detected_face(gallery: Gallery) -> None:
    """One entry of identifiedFaces per detected face."""
    assert len(gallery.directory.recognise(photo("hopper"))) == 1
    assert len(gallery.directory.recognise(pair("collins", "hopper"))) == 2


def test_4_3_rule_2_only_an_identified_face_has_an_identity(directory: Directory) -> None:
    """Only a positively identified face (similarityScore >= 1.0) has personId (and name, personExternalId)."""
    directory.insert(photo("hopper"))
    faces = directory.recognise(pair("hopper", "collins"), similar_limit=1)
    for face in faces:
        identified = face["similar"][0]["similarityScore"] >= 1.0
        assert set(face) & IDENTITY_KEYS == (IDENTITY_KEYS if identified else set())
    assert sum("personId" in face for face in faces) == 1


def test_4_3_rule_2_the_identity_is_the_best_match(directory: Directory) -> None:
    """That identity is the best match with similarityScore >= 1.0, if any."""
    inserted = [directory.force(other("hopper", n), f"P{n}", f"P-{n}") for n in range(4)]
    for image in (photo("hopper"), other("hopper", 5), other("hopper", 6)):
        (face,) = directory.recognise(image, similar_limit=4)
        assert len(face["similar"]) == len(inserted)
        best = max(face["similar"], key=lambda similar: float(similar["similarityScore"]))
        assert face["personId"] == best["personId"]
        assert face["name"] == best["name"]
        assert face["personExternalId"] == best["externalId"]


def test_4_3_rule_3_n_most_similar_of_all(directory: Directory) -> None:
    """With similar_limit=N, each detected face carries a similar array with the N most similar identities."""
    for n in range(4):
        directory.force(other("hopper", n), f"P{n}", f"P-{n}")
    directory.force(photo("collins"), "C", "C-1")
    (whole,) = directory.recognise(photo("hopper"), similar_limit=10)
    assert len(whole["similar"]) == 5
    for limit in (1, 2, 3, 4, 5):
        (face,) = directory.recognise(photo("hopper"), similar_limit=limit)
        assert face["similar"] == whole["similar"][:limit]


def test_4_3_rule_3_highest_first(directory: Directory) -> None:
    """... ordered by similarityScore descending (highest first)."""
    for n, image in enumerate([photo("collins"), other("hopper", 2), other("collins", 1), other("hopper", 4)]):
        directory.force(image, f"P{n}", f"P-{n}")
    for person in ("hopper", "collins"):
        (face,) = directory.recognise(photo(person), similar_limit=10)
        scores = [similar["similarityScore"] for similar in face["similar"]]
        assert scores == sorted(scores, reverse=True)
        assert len(set(scores)) == 4


def test_4_3_rule_3_similar_holds_those_below_the_threshold_too(gallery: Gallery) -> None:
    """The N most similar, whether they match or not."""
    (face,) = gallery.directory.recognise(other("hopper"), similar_limit=2)
    assert face["similar"][0]["similarityScore"] >= 1.0 > face["similar"][1]["similarityScore"]


@pytest.mark.parametrize("threshold", [0.0, 0.1, 0.54, 1.0, 2.5])
def test_4_3_rule_4_scores_stay_in_their_bounds(gallery: Gallery, threshold: float) -> None:
    """similarityScore: lower bound 0; upper bound 2 / (2 - sqrt(T)). An identical image reaches the upper one."""
    (face,) = gallery.directory.recognise(photo("hopper"), threshold=threshold, similar_limit=2)
    scores = [similar["similarityScore"] for similar in face["similar"]]
    assert all(0 <= score <= 2 / denominator(threshold) for score in scores)
    assert scores[0] == 2 / denominator(threshold)


def test_4_3_rule_4_upper_bound_is_1_581_by_default(gallery: Gallery) -> None:
    """With the default T of 0.54 the upper bound is 1.581."""
    (face,) = gallery.directory.recognise(photo("hopper"), similar_limit=1)
    assert round(face["similar"][0]["similarityScore"], 3) == 1.581


def test_4_3_rule_4_a_face_exactly_at_the_threshold_scores_1(gallery: Gallery) -> None:
    """A face matching exactly at the threshold scores 1.0; better ones score above, weaker ones below."""
    image = other("hopper")
    distance = 2 - score_of(gallery.directory, image, 0.54)["similarityScore"] * denominator(0.54)
    at = score_of(gallery.directory, image, distance**2)["similarityScore"]
    below = score_of(gallery.directory, image, distance**2 * (1 - 1e-6))["similarityScore"]
    above = score_of(gallery.directory, image, distance**2 * (1 + 1e-6))["similarityScore"]
    assert math.isclose(at, 1.0, abs_tol=1e-9)
    assert below < 1.0 < above


@pytest.mark.parametrize("threshold", [0.0, 0.25, 0.54, 0.84, 1.5, 3.0])
def test_4_3_rule_4_scores_at_different_thresholds_follow_the_formula(gallery: Gallery, threshold: float) -> None:
    """[decided] similarityScore = (2 - d) / (2 - sqrt(T)): one pair of photos, so one d, at any T."""
    for image in (other("hopper"), other("collins", 3)):
        (default,) = gallery.directory.recognise(image, similar_limit=2)
        (face,) = gallery.directory.recognise(image, threshold=threshold, similar_limit=2)
        for here, there in zip(face["similar"], default["similar"], strict=True):
            expected = there["similarityScore"] * denominator(0.54) / denominator(threshold)
            assert math.isclose(here["similarityScore"], expected, rel_tol=1e-12)


def test_4_3_rule_5_the_threshold_governs_identification(gallery: Gallery) -> None:
    """Positive identification is governed by X-RPC-FACES-GROUPING-THRESHOLD, which may be passed in each request."""
    image = other("hopper")
    distance = 2 - score_of(gallery.directory, image, 0.54)["similarityScore"] * denominator(0.54)
    (narrow,) = gallery.directory.recognise(image, threshold=repr(distance**2 * 0.99))
    (wide,) = gallery.directory.recognise(image, threshold=repr(distance**2 * 1.01))
    assert "personId" not in narrow
    assert wide["personId"] == gallery.hopper["personId"]


def test_4_3_rule_5_a_wide_threshold_identifies_a_stranger(directory: Directory) -> None:
    """... to override the default, upwards too."""
    person_id = directory.insert(photo("collins"))["personId"]
    assert "personId" not in directory.recognise(photo("hopper"))[0]
    assert directory.recognise(photo("hopper"), threshold=3.5)[0]["personId"] == person_id


@pytest.mark.faces
def test_4_3_photos_years_apart_are_most_similar_to_their_own_person(directory: Directory, faces_dir: Path) -> None:
    """Real people, years between their photos; two strangers are identified as nobody."""
    photos = {path.stem: path.read_bytes() for path in (faces_dir / "portraits-cc").glob("*.jpg")}
    inserted = {who: directory.insert(photos[f"person_{who}_2"], who, who)["personId"] for who in ("a", "b")}
    for who, person_id in inserted.items():
        (face,) = directory.recognise(photos[f"person_{who}_1"], similar_limit=1)
        assert face["similar"][0]["personId"] == person_id
    for stranger in ("impostor_1", "impostor_2"):
        (face,) = directory.recognise(photos[stranger])
        assert "personId" not in face
