"""Section 4.1 of the contract: headers and parameters."""

from __future__ import annotations

import math

import pytest

from tests.serve.conformance.client import FORCED, OCTET_STREAM, Account, Directory
from tests.serve.conformance.conftest import Gallery
from tests.serve.conformance.photos import other, pair, photo, poor

REASON_OF = {"min-cpq": "center-pose", "min-fsq": "sharpness", "min-fcq": "contrast"}
QUALITY_OF = {"min-cpq": "centerPoseQuality", "min-fsq": "sharpnessQuality", "min-fcq": "contrastQuality"}


def test_4_1_directory_header_is_required(account: Account) -> None:
    """X-RPC-DIRECTORY: required."""
    answer = account.directory("main").post(photo("hopper"), headers={"X-RPC-DIRECTORY": None})
    assert answer.status_code == 400


def test_4_1_directory_header_selects_the_directory(directory: Directory, second_directory: Directory) -> None:
    """X-RPC-DIRECTORY: directory used."""
    there = directory.insert(photo("hopper"))["personId"]
    here = second_directory.insert(photo("collins"))["personId"]
    assert [person["personId"] for person in directory.people()] == [there]
    assert [person["personId"] for person in second_directory.people()] == [here]


def test_4_1_authorization_header_is_required(account: Account) -> None:
    """X-RPC-AUTHORIZATION: required."""
    answer = account.directory("main").post(photo("hopper"), headers={"X-RPC-AUTHORIZATION": None})
    assert answer.status_code == 401


def test_4_1_body_is_the_raw_image_file(gallery: Gallery) -> None:
    """Content-Type application/octet-stream: the body is the raw image file (binary)."""
    answer = gallery.directory.post(
        other("hopper"), insert="false", update="false", headers={"Content-Type": OCTET_STREAM}
    )
    assert answer.status_code == 201
    assert answer.json()["identifiedFaces"][0]["personId"] == gallery.hopper["personId"]


@pytest.mark.parametrize(
    "headers", [{}, {"name": "Anna"}, {"external_id": "A-1"}], ids=["neither", "name only", "external id only"]
)
def test_4_1_name_and_external_id_are_required_for_insertion(directory: Directory, headers: dict[str, str]) -> None:
    """X-RPC-PERSON-NAME and X-RPC-EXTERNAL-ID: required for insertion. Nothing is stored without both."""
    answer = directory.post(photo("hopper"), name=headers.get("name"), external_id=headers.get("external_id"))
    assert answer.status_code == 400
    assert answer.json()["errorReason"] == "person-headers-required"
    assert directory.people() == []


def test_4_1_name_and_external_id_are_not_required_where_nothing_is_inserted(directory: Directory) -> None:
    """... only for insertion: a match needs neither, nor does a face that is too poor."""
    directory.insert(photo("hopper"))
    assert directory.post(other("hopper"), update="false").status_code == 201
    assert directory.post(poor("collins", "sharpness"), update="false").status_code == 201
    assert len(directory.people()) == 1


def test_4_1_threshold_is_0_54_by_default(gallery: Gallery) -> None:
    """X-RPC-FACES-GROUPING-THRESHOLD: default 0.54."""
    (default,) = gallery.directory.recognise(other("hopper"), similar_limit=2)
    (match,) = gallery.directory.recognise(other("hopper"), similar_limit=2, threshold=0.54)
    (lower,) = gallery.directory.recognise(other("hopper"), similar_limit=2, threshold=0.53)
    assert default["similar"] == match["similar"]
    assert default["similar"] != lower["similar"]


def test_4_1_threshold_overrides_the_default_for_one_request(gallery: Gallery) -> None:
    """Overrides the matching threshold for this request; the next one has the default again."""
    (strict,) = gallery.directory.recognise(other("hopper"), threshold=1e-6)
    (default,) = gallery.directory.recognise(other("hopper"))
    assert "personId" not in strict
    assert default["personId"] == gallery.hopper["personId"]


def test_4_1_threshold_0_forces_a_new_identity(directory: Directory) -> None:
    """Value 0 forces insertion as a new identity even when a match would normally be found."""
    first = directory.insert(photo("hopper"))["personId"]
    second = directory.insert(other("hopper"), "Bea", "B-2", threshold=0)["personId"]
    assert first != second
    assert len(directory.people()) == 2


def test_4_1_identical_image_is_matched_even_at_threshold_0(directory: Directory) -> None:
    """An identical image already in the directory is still matched to the existing identity, even at 0."""
    first = directory.insert(photo("hopper"))["personId"]
    (face,) = directory.faces(photo("hopper"), name="Bea", external_id="B-2", threshold=0, update="false")
    assert face["personId"] == first
    assert "newId" not in face
    assert len(directory.people()) == 1


@pytest.mark.parametrize("parameter", REASON_OF)
def test_4_1_minimum_quality_rejects_what_is_below_it(directory: Directory, parameter: str) -> None:
    """min-cpq, min-fsq, min-fcq: minimum quality for accepting an image as a reference."""
    (face,) = directory.recognise(photo("collins"))
    quality = face["attributes"][QUALITY_OF[parameter]]
    person = {"name": "Anna", "external_id": "A-1"}
    (rejected,) = directory.faces(photo("collins"), **person, **{parameter: min(1.0, quality + 0.01)})
    assert "personId" not in rejected
    assert rejected["rejectionReasons"] == [REASON_OF[parameter]]
    (accepted,) = directory.faces(photo("collins"), **person, **{parameter: quality - 0.01})
    assert accepted["newId"] is True


@pytest.mark.parametrize("parameter", REASON_OF)
def test_4_1_minimum_quality_0_rejects_nothing(directory: Directory, parameter: str) -> None:
    """0 ensures no rejection on this ground."""
    image = poor("hopper", REASON_OF[parameter])
    (rejected,) = directory.faces(image, name="Anna", external_id="A-1")
    assert "newId" not in rejected
    (accepted,) = directory.faces(image, name="Anna", external_id="A-1", **{parameter: 0})
    assert accepted["newId"] is True


def test_4_1_update_false_leaves_image_and_metadata(directory: Directory) -> None:
    """update=false: the new face does not update image and metadata of a matching existing identity."""
    person_id = directory.insert(photo("hopper"), "Anna", "A-1")["personId"]
    record, image = directory.record(person_id), directory.face_image(person_id).content
    answer = directory.answer(other("hopper"), name="Bea", external_id="B-2", update="false")
    assert answer["accountUpdated"] is False
    after = directory.record(person_id)
    for key in ("name", "externalId", "imageURI", "modDate"):
        assert after.get(key) == record.get(key), key
    assert directory.face_image(person_id).content == image


def test_4_1_update_true_makes_the_last_posted_face_the_reference(directory: Directory) -> None:
    """update=true: the last posted face updates the existing matching reference."""
    person_id = directory.insert(photo("hopper"), "Anna", "A-1")["personId"]
    image = directory.face_image(person_id).content
    answer = directory.answer(other("hopper"), name="Bea", external_id="B-2", update="true")
    assert answer["accountUpdated"] is True
    assert directory.record(person_id)["name"] == "Bea"
    assert directory.record(person_id)["externalId"] == "B-2"
    assert directory.face_image(person_id).content != image


def test_4_1_insert_false_inserts_nothing(directory: Directory) -> None:
    """insert=false: nothing is inserted."""
    answer = directory.answer(photo("hopper"), name="Anna", external_id="A-1", insert="false", **FORCED)
    assert answer["accountUpdated"] is False
    assert "newId" not in answer["identifiedFaces"][0]
    assert directory.people() == []


def test_4_1_similar_limit_is_the_number_of_identities_for_each_face(gallery: Gallery) -> None:
    """similar_limit: number of most similar identities to return for each detected face."""
    for limit in (1, 2):
        faces = gallery.directory.recognise(pair("hopper", "collins"), similar_limit=limit)
        assert [len(face["similar"]) for face in faces] == [limit, limit]


def test_4_1_threshold_is_a_number_of_any_precision(gallery: Gallery) -> None:
    """X-RPC-FACES-GROUPING-THRESHOLD: number. All of its digits count."""
    scores = [
        gallery.directory.recognise(other("hopper"), threshold=text)[0]["similarityScore"]
        for text in ("0.54", "0.5400000001", "5.4e-1")
    ]
    assert scores[0] == scores[2] < scores[1]
    assert math.isclose(scores[0], scores[1], rel_tol=1e-8)
