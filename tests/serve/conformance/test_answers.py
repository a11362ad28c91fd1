"""The answer to POST /people: section 2.3 of the contract, and the decisions about status, absence and extra fields."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from tests.serve.conformance.client import ANNA, READ_ONLY, Directory, Json
from tests.serve.conformance.conftest import Gallery
from tests.serve.conformance.photos import encoded, faceless, other, padded, pair, paired, photo, poor, portrait

HOUR_MS = 3_600_000
IDENTITY_KEYS = {
    "personId",
    "name",
    "personExternalId",
    "externalId",
    "similarityScore",
    "occurrence",
    "lastOccurrenceDate",
    "rootPersonAddDate",
}
POINTS = ("left-eye-center", "right-eye-center", "nose-tip", "left-mouth-corner", "right-mouth-corner")


def is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def assert_recent(value: object) -> None:
    """A date is an integer, in epoch milliseconds."""
    assert is_integer(value)
    assert abs(int(str(value)) - time.time() * 1000) < HOUR_MS


def assert_fractions(entry: Json, *keys: str) -> None:
    for key in keys:
        assert type(entry[key]) in (int, float), key
        assert 0 <= entry[key] <= 1, key


def assert_entry(face: Json) -> None:
    """Checks what every entry has, recognised or not."""
    assert_fractions(face, "offsetX", "offsetY", "relativeWidth", "relativeHeight")
    assert face["offsetX"] + face["relativeWidth"] <= 1 + 1e-6
    assert face["offsetY"] + face["relativeHeight"] <= 1 + 1e-6
    assert isinstance(face["mediaId"], str)
    assert face["tags"] == []  # `tags` always
    assert isinstance(face["attributes"], dict)


# The top-level object


def test_2_3_top_level_object(gallery: Gallery) -> None:
    """accountUpdated: boolean. detectionTime: integer, milliseconds. identifiedFaces: array."""
    answer = gallery.directory.answer(other("hopper"), **READ_ONLY)
    assert set(answer) == {"accountUpdated", "detectionTime", "identifiedFaces"}
    assert answer["accountUpdated"] is False
    assert is_integer(answer["detectionTime"])
    assert 0 <= answer["detectionTime"] < 60_000
    assert isinstance(answer["identifiedFaces"], list)


@pytest.mark.parametrize(
    ("image", "query"),
    [
        (photo("collins"), {}),
        (other("hopper"), {"update": "false"}),
        (other("hopper"), READ_ONLY),
        (poor("collins", "sharpness"), {}),
        (faceless(), {}),
    ],
    ids=["insertion", "match", "recognition", "quality rejection", "no face"],
)
def test_requests_status_is_always_201(directory: Directory, image: bytes, query: dict[str, str]) -> None:
    """`201` always."""
    directory.insert(photo("hopper"))
    assert directory.post(image, **ANNA, **query).status_code == 201


def test_requests_an_image_without_a_face_has_no_entry(directory: Directory) -> None:
    """No face at all: `identifiedFaces: []`."""
    answer = directory.answer(faceless(), **ANNA)
    assert answer["identifiedFaces"] == []
    assert answer["accountUpdated"] is False
    assert directory.people() == []


# Entries


def test_2_3_entry_of_an_inserted_face(directory: Directory) -> None:
    """personId, personExternalId, name, newId true, attributes, dates in epoch milliseconds, occurrence, tags.
    accountUpdated is true. `externalId` repeats `personExternalId`; `similarityScore` is the score at d = 0."""
    answer = directory.answer(photo("hopper"), **ANNA)
    (face,) = answer["identifiedFaces"]
    assert answer["accountUpdated"] is True
    assert_entry(face)
    assert face["newId"] is True
    assert face["name"] == "Anna"
    assert face["personExternalId"] == face["externalId"] == "A-1"
    assert_recent(face["lastOccurrenceDate"])
    assert_recent(face["rootPersonAddDate"])
    assert face["occurrence"] == 1
    assert face["similarityScore"] == 2 / (2 - 0.54**0.5)


def test_2_3_entry_of_a_recognised_face(gallery: Gallery) -> None:
    """personId is present for a positively identified face; newId only if this call inserted the face."""
    (face,) = gallery.directory.recognise(other("collins"), similar_limit=1)
    assert_entry(face)
    assert set(face) >= IDENTITY_KEYS
    assert face["personId"] == gallery.collins["personId"]
    assert face["name"] == "Eileen Collins"
    assert face["personExternalId"] == face["externalId"] == "N-1956"
    assert "newId" not in face
    assert_recent(face["lastOccurrenceDate"])
    assert face["rootPersonAddDate"] == gallery.collins["rootPersonAddDate"]
    assert is_integer(face["occurrence"])
    assert face["similarityScore"] == face["similar"][0]["similarityScore"]


def test_2_3_entry_of_an_unknown_face(gallery: Gallery, directory: Directory) -> None:
    """personId, and all that describes an identity, only on a recognised or inserted face."""
    for (face,) in (directory.recognise(photo("hopper")), gallery.directory.recognise(other("hopper"), threshold=1e-9)):
        assert_entry(face)
        assert not {*IDENTITY_KEYS, "newId"} & set(face)


def _has_null(value: Any) -> bool:
    if isinstance(value, dict):
        return any(_has_null(item) for item in value.values())
    if isinstance(value, list):
        return any(_has_null(item) for item in value)
    return value is None


def test_requests_a_key_without_a_value_is_absent_in_answers(directory: Directory) -> None:
    """A key without a value is absent, never null. `newId` only as `true`."""
    inserted, *others = [
        directory.answer(photo("hopper"), **ANNA),
        directory.answer(other("hopper"), **ANNA, update="false"),
        directory.answer(photo("hopper"), **READ_ONLY, similar_limit=3),
        directory.answer(photo("collins"), **READ_ONLY, similar_limit=3),
        directory.answer(poor("collins", "contrast"), **ANNA),
    ]
    assert not any(_has_null(answer) for answer in (inserted, *others))
    assert not any("newId" in answer["identifiedFaces"][0] for answer in others)


def test_requests_a_key_without_a_value_is_absent_in_records(lenient_directory: Directory) -> None:
    """A person without name and external id: neither key, in the answer and in the record."""
    (face,) = lenient_directory.faces(photo("hopper"))
    assert face["newId"] is True
    record = lenient_directory.record(face["personId"])
    assert not {"name", "personExternalId", "externalId"} & set(face)
    assert not {"name", "externalId", "unmergedImageURIs", "unmergedImageURI"} & set(record)
    assert not _has_null(face)
    assert not _has_null(record)


def test_2_3_offsets_are_fractions_of_the_image(directory: Directory) -> None:
    """offsetX, offsetY: position of the face in the image, relative. A border around the photo moves the face."""
    image = portrait("hopper")
    (plain,) = directory.recognise(photo("hopper"))
    framed = padded(image, 120, 60, 40, 20)
    (moved,) = directory.recognise(encoded(framed))
    close = 0.07 * image.width
    assert abs(moved["offsetX"] * framed.width - plain["offsetX"] * image.width - 120) < close
    assert abs(moved["offsetY"] * framed.height - plain["offsetY"] * image.height - 60) < close
    assert abs(moved["relativeWidth"] * framed.width - plain["relativeWidth"] * image.width) < close
    assert abs(moved["relativeHeight"] * framed.height - plain["relativeHeight"] * image.height) < close


def test_2_3_attributes_object(gallery: Gallery) -> None:
    """Qualities, confidence, detectionVersion, dimension (height and width, integers in pixels), provider."""
    (face,) = gallery.directory.recognise(photo("hopper"))
    attributes, dimension = face["attributes"], face["attributes"]["dimension"]
    assert_fractions(attributes, "centerPoseQuality", "sharpnessQuality", "contrastQuality", "confidence")
    assert is_integer(attributes["detectionVersion"])
    assert isinstance(attributes["provider"], str)
    assert attributes["provider"]
    assert set(dimension) == {"height", "width"}
    assert is_integer(dimension["height"])
    assert is_integer(dimension["width"])
    image = portrait("hopper")
    assert abs(dimension["width"] - face["relativeWidth"] * image.width) <= 1
    assert abs(dimension["height"] - face["relativeHeight"] * image.height) <= 1


def test_2_3_landmarks_have_five_points(gallery: Gallery) -> None:
    """landmarks: keys left-eye-center ... right-mouth-corner; each an object with x and y, numbers, relative."""
    (face,) = gallery.directory.recognise(photo("hopper"))
    landmarks = face["attributes"]["landmarks"]
    assert set(landmarks) == set(POINTS)
    for point in landmarks.values():
        assert set(point) == {"x", "y"}
        assert {type(point["x"]), type(point["y"])} <= {int, float}
    eyes, mouth = landmarks["left-eye-center"], landmarks["left-mouth-corner"]
    assert eyes["y"] < landmarks["nose-tip"]["y"] < mouth["y"]
    assert landmarks["left-eye-center"]["x"] < landmarks["right-eye-center"]["x"]


def test_2_3_landmarks_are_relative_to_the_face_box(gallery: Gallery) -> None:
    """[decided] Fractions of the clipped face box, origin upper left: a border around the photo does not move them."""
    (plain,) = gallery.directory.recognise(photo("hopper"))
    (framed,) = gallery.directory.recognise(encoded(padded(portrait("hopper"), 200, 160, 40, 20)))
    for name in POINTS:
        for axis in ("x", "y"):
            place = plain["attributes"]["landmarks"][name][axis]
            assert abs(place - framed["attributes"]["landmarks"][name][axis]) < 0.08
    assert 0.1 < plain["attributes"]["landmarks"]["left-eye-center"]["x"] < 0.5
    assert 0.5 < plain["attributes"]["landmarks"]["right-eye-center"]["x"] < 0.9


def test_2_3_entry_of_similar(gallery: Gallery) -> None:
    """personId, name, externalId, similarityScore, ignore, occurrence, lastOccurrenceDate."""
    (face,) = gallery.directory.recognise(other("hopper"), similar_limit=2)
    first = face["similar"][0]
    assert first["personId"] == gallery.hopper["personId"]
    assert (first["name"], first["externalId"]) == ("Grace Hopper", "N-1906")
    assert type(first["similarityScore"]) in (int, float)
    assert first["ignore"] is False
    assert is_integer(first["occurrence"])
    assert_recent(first["lastOccurrenceDate"])


def test_2_3_one_entry_per_detected_face(gallery: Gallery) -> None:
    """One entry of identifiedFaces per detected face (4.3 rule 1)."""
    (face,) = gallery.directory.recognise(photo("hopper"))
    first, second = gallery.directory.recognise(pair("collins", "hopper"))
    assert face["personId"] == second["personId"] == gallery.hopper["personId"]
    assert first["personId"] == gallery.collins["personId"]


@pytest.mark.faces
@pytest.mark.parametrize(("file", "minimum"), [("2007_007763.jpg", 1), ("bald_guys.jpg", 5)])
def test_2_3_every_face_of_a_crowd_has_an_entry(directory: Directory, faces_dir: Path, file: str, minimum: int) -> None:
    """One entry per detected face, also for unknown ones."""
    faces = directory.recognise((faces_dir / "groups-with-boxes" / file).read_bytes())
    assert len(faces) >= minimum
    for face in faces:
        assert_entry(face)


@pytest.mark.parametrize("share", [0.7, 1.6])
@pytest.mark.parametrize(("left", "right"), [("hopper", "collins"), ("collins", "hopper")])
def test_requests_largest_face_first(gallery: Gallery, left: str, right: str, share: float) -> None:
    """Entries largest face first."""
    first, second = gallery.directory.recognise(encoded(paired(portrait(left), portrait(right), share)))
    assert first["relativeWidth"] * first["relativeHeight"] >= second["relativeWidth"] * second["relativeHeight"]


def test_requests_largest_only_returns_only_the_largest(gallery: Gallery) -> None:
    """`largest-only=true` returns only the largest."""
    image = encoded(paired(portrait("hopper"), portrait("collins"), 1.6))
    (face,) = gallery.directory.recognise(image, **{"largest-only": "true"})
    assert face["personId"] == gallery.collins["personId"]


# mediaId, detectionVersion, provider


def test_identities_media_id_is_derived_from_the_image(directory: Directory, second_directory: Directory) -> None:
    """`mediaId`: derived from the posted image's SHA-256, so it is the same for the same bytes, anywhere and always."""
    ids = {
        directory.recognise(photo("hopper"))[0]["mediaId"],
        directory.insert(photo("hopper"))["mediaId"],
        second_directory.recognise(photo("hopper"))[0]["mediaId"],
    }
    assert len(ids) == 1
    assert directory.recognise(other("hopper"))[0]["mediaId"] not in ids
    first, second = directory.recognise(pair("hopper", "collins"))
    assert first["mediaId"] == second["mediaId"]


def test_identities_provider_and_version_are_the_models(gallery: Gallery) -> None:
    """All faces of a server come from one model."""
    faces = [*gallery.directory.recognise(photo("hopper")), *gallery.directory.recognise(photo("collins"))]
    assert len({(face["attributes"]["provider"], face["attributes"]["detectionVersion"]) for face in faces}) == 1
