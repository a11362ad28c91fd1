"""decisions.md, "Requests": what an answer to POST /people holds."""

from __future__ import annotations

from typing import Any

import pytest

from tests.serve.conformance.client import Directory
from tests.serve.conformance.conftest import Gallery
from tests.serve.conformance.photos import (
    encoded,
    faceless,
    opened,
    other,
    paired,
    photo,
    poor,
    portrait,
)

ANNA: dict[str, Any] = {"name": "Anna", "external_id": "A-1"}


# Status of a successful POST /people


def test_requests_status_of_an_insertion_is_201(directory: Directory) -> None:
    assert directory.post(photo("hopper"), **ANNA).status_code == 201


def test_requests_status_of_a_recognition_is_201(gallery: Gallery) -> None:
    assert gallery.directory.post(other("hopper"), insert="false", update="false").status_code == 201


def test_requests_status_of_a_match_is_201(directory: Directory) -> None:
    directory.insert(photo("hopper"))
    assert directory.post(other("hopper"), **ANNA, update="false").status_code == 201


def test_requests_status_of_a_quality_rejection_is_201(directory: Directory) -> None:
    assert directory.post(poor("hopper", "sharpness"), **ANNA).status_code == 201


def test_requests_no_face_at_all_is_201_with_no_entry(directory: Directory) -> None:
    """`201` always: ... and no face at all (`identifiedFaces: []`)."""
    answer = directory.answer(faceless(), **ANNA)
    assert answer["identifiedFaces"] == []
    assert answer["accountUpdated"] is False
    assert directory.people() == []


# Absence


def _nulls(value: Any) -> bool:
    if isinstance(value, dict):
        return any(_nulls(item) for item in value.values())
    if isinstance(value, list):
        return any(_nulls(item) for item in value)
    return value is None


def test_requests_a_key_without_a_value_is_absent_in_answers(directory: Directory) -> None:
    """A key without a value is absent, never null."""
    answers = [
        directory.answer(photo("hopper"), **ANNA),
        directory.answer(photo("hopper"), insert="false", update="false", similar_limit=3),
        directory.answer(photo("collins"), insert="false", update="false", similar_limit=3),
        directory.answer(poor("collins", "contrast"), **ANNA),
    ]
    assert not any(_nulls(answer) for answer in answers)


def test_requests_a_key_without_a_value_is_absent_in_records(lenient_directory: Directory) -> None:
    """A person without name and external id: neither key, in the answer and in the record."""
    (face,) = lenient_directory.faces(photo("hopper"))
    assert face["newId"] is True
    record = lenient_directory.record(face["personId"])
    assert not {"name", "personExternalId", "externalId"} & set(face)
    assert not {"name", "externalId", "unmergedImageURIs", "unmergedImageURI"} & set(record)
    assert not _nulls(face)
    assert not _nulls(record)


def test_requests_new_id_is_only_ever_true(directory: Directory) -> None:
    """`newId` only as `true`."""
    directory.insert(photo("hopper"))
    for image in (other("hopper"), poor("collins", "sharpness")):
        (face,) = directory.faces(image, **ANNA, update="false")
        assert "newId" not in face


def test_requests_identity_keys_only_on_a_recognised_or_inserted_face(gallery: Gallery) -> None:
    """`personId`, `name`, `personExternalId`, `occurrence`, dates only on a recognised or inserted face."""
    keys = {"personId", "name", "personExternalId", "occurrence", "lastOccurrenceDate", "rootPersonAddDate"}
    (recognised,) = gallery.directory.recognise(other("hopper"))
    (unknown,) = gallery.directory.recognise(other("hopper"), threshold=1e-9)
    assert keys <= set(recognised)
    assert not keys & set(unknown)


def test_requests_similar_only_with_a_limit(gallery: Gallery) -> None:
    """`similar` only with `similar_limit > 0`."""
    assert "similar" not in gallery.directory.recognise(other("hopper"))[0]
    assert "similar" not in gallery.directory.recognise(other("hopper"), similar_limit=0)[0]
    assert "similar" in gallery.directory.recognise(other("hopper"), similar_limit=1)[0]


def test_requests_similar_of_an_empty_directory_is_empty(directory: Directory) -> None:
    """(`[]` for an empty directory)."""
    assert directory.recognise(photo("hopper"), similar_limit=5)[0]["similar"] == []


def test_requests_tags_always(gallery: Gallery, directory: Directory) -> None:
    """`tags` always."""
    assert gallery.directory.recognise(other("hopper"))[0]["tags"] == []
    assert directory.recognise(photo("hopper"))[0]["tags"] == []


# Extra fields


def test_requests_score_beside_every_person_id(directory: Directory) -> None:
    """`similarityScore` beside every `personId` (new identity: score at d = 0)."""
    inserted = directory.insert(photo("hopper"))
    assert inserted["similarityScore"] == 2 / (2 - 0.54**0.5)
    (face,) = directory.recognise(other("hopper"), similar_limit=1)
    assert face["similarityScore"] == face["similar"][0]["similarityScore"]


def test_requests_no_score_without_a_person_id(directory: Directory) -> None:
    assert "similarityScore" not in directory.recognise(photo("hopper"))[0]


def test_requests_external_id_repeats_person_external_id(gallery: Gallery) -> None:
    """`externalId` repeats `personExternalId`."""
    (face,) = gallery.directory.recognise(other("collins"))
    assert face["externalId"] == face["personExternalId"] == "N-1956"


@pytest.mark.parametrize(("left", "right"), [("hopper", "collins"), ("collins", "hopper")])
def test_requests_largest_face_first(gallery: Gallery, left: str, right: str) -> None:
    """Entries largest face first."""
    for image in (paired(portrait(left), portrait(right), 0.7), paired(portrait(left), portrait(right), 1.6)):
        faces = gallery.directory.recognise(encoded(image))
        areas = [face["relativeWidth"] * face["relativeHeight"] for face in faces]
        assert len(areas) == 2
        assert areas == sorted(areas, reverse=True)


# Quality rejection


@pytest.mark.parametrize("reason", ["center-pose", "sharpness", "contrast"])
def test_requests_rejected_entry_tells_the_reason(directory: Directory, reason: str) -> None:
    """The entry has attributes, mediaId, offsets, but no personId, no newId; rejectionReasons are exactly these."""
    (face,) = directory.faces(poor("collins", reason), **ANNA)
    assert face["rejectionReasons"] == [reason]
    assert {"attributes", "mediaId", "offsetX", "offsetY", "relativeWidth", "relativeHeight"} <= set(face)
    assert not {"personId", "newId"} & set(face)
    assert directory.people() == []
    assert directory.recognise(poor("collins", reason), similar_limit=5)[0]["similar"] == []


def test_requests_all_reasons_are_told(directory: Directory) -> None:
    limits = {"min-cpq": 1, "min-fsq": 1, "min-fcq": 1}
    (face,) = directory.faces(photo("collins"), **ANNA, **limits)
    assert sorted(face["rejectionReasons"]) == ["center-pose", "contrast", "sharpness"]


def test_requests_no_reasons_where_nothing_would_be_inserted(directory: Directory) -> None:
    """... and only when the call would have inserted that face."""
    poor_image = poor("hopper", "contrast")
    assert "rejectionReasons" not in directory.recognise(poor_image)[0]
    directory.insert(photo("hopper"))
    (matched,) = directory.faces(poor_image, **ANNA, update="true")
    assert "personId" in matched
    assert "rejectionReasons" not in matched


def test_requests_only_the_largest_face_would_have_been_inserted(directory: Directory) -> None:
    image = encoded(paired(opened(poor("hopper", "sharpness")), opened(poor("collins", "sharpness"))))
    first, *rest = directory.faces(image, **ANNA)
    assert first["rejectionReasons"] == ["sharpness"]
    assert all("rejectionReasons" not in face for face in rest)


def test_requests_min_size_keeps_smaller_faces_from_being_inserted(directory: Directory) -> None:
    """Nothing else gates unless the client asks (`min-size` in px ...): the longer side of the box counts."""
    (face,) = directory.recognise(photo("hopper"))
    side = max(face["attributes"]["dimension"].values())
    (small,) = directory.faces(photo("hopper"), **ANNA, **{"min-size": side + 2})
    assert not {"personId", "newId"} & set(small)
    assert directory.people() == []
    assert directory.insert(photo("hopper"), **{"min-size": side - 2})["newId"] is True


def test_requests_min_size_hinders_no_recognition(gallery: Gallery) -> None:
    (face,) = gallery.directory.recognise(other("hopper"), **{"min-size": 5000})
    assert face["personId"] == gallery.hopper["personId"]


def test_requests_max_occlusion_is_accepted_and_ignored(gallery: Gallery) -> None:
    assert len(gallery.directory.recognise(other("hopper"), **{"max-occlusion": "0.0"})) == 1
