"""Section 4.2 of the contract: POST /people, import a face as a new identity."""

from __future__ import annotations

import pytest

from tests.serve.conformance.client import FORCED, Directory
from tests.serve.conformance.photos import encoded, other, paired, photo, poor, portrait, retouched

BEA = {"name": "Bea", "external_id": "B-2"}


def test_4_2_rule_1_every_insertion_checks_the_whole_directory_first(directory: Directory) -> None:
    """Every insertion call first checks whether the face matches an identity already in the directory."""
    hopper = directory.insert(photo("hopper"), "Anna", "A-1")["personId"]
    collins = directory.insert(photo("collins"), "Bea", "B-2")["personId"]
    for person, person_id in (("hopper", hopper), ("collins", collins)):
        (face,) = directory.faces(other(person), name="Carla", external_id="C-3", update="false")
        assert face["personId"] == person_id
    assert len(directory.people()) == 2


def test_4_2_rule_1_matches_under_another_name(directory: Directory) -> None:
    """The face decides, not the name: other metadata makes no other identity."""
    directory.insert(photo("hopper"), "Anna", "A-1")
    (face,) = directory.faces(other("hopper", 1), **BEA, update="false")
    assert face["name"] == "Anna"


def test_4_2_rule_2_no_insertion_on_a_match(directory: Directory) -> None:
    """When a match is found, no insertion is made."""
    directory.insert(photo("hopper"))
    answer = directory.answer(other("hopper"), **BEA, update="false")
    assert answer["accountUpdated"] is False
    assert len(directory.people()) == 1


def test_4_2_rule_2_the_matched_identity_is_returned(directory: Directory) -> None:
    """... and the matched identity is returned (personId; newId is not true)."""
    person_id = directory.insert(photo("hopper"))["personId"]
    (face,) = directory.faces(other("hopper"), **BEA, update="false")
    assert face["personId"] == person_id
    assert face.get("newId") is not True


def test_4_2_rule_3_no_match_and_good_quality_makes_a_new_identity(directory: Directory) -> None:
    """A new identity is created, and the returned entry has newId true and accountUpdated true."""
    directory.insert(photo("hopper"), "Anna", "A-1")
    answer = directory.answer(photo("collins"), **BEA, update="false")
    (face,) = answer["identifiedFaces"]
    assert answer["accountUpdated"] is True
    assert face["newId"] is True
    assert {person["name"] for person in directory.people()} == {"Anna", "Bea"}


def test_4_2_rule_3_the_new_identity_is_recognised_at_once(directory: Directory) -> None:
    """A new identity answers the next call."""
    person_id = directory.insert(photo("collins"))["personId"]
    assert directory.recognise(other("collins"))[0]["personId"] == person_id


def test_4_2_rule_3_the_returned_quality_is_what_the_overrides_are_compared_with(directory: Directory) -> None:
    """... or the overrides min-cpq, min-fsq, min-fcq."""
    (face,) = directory.recognise(photo("hopper"))
    attributes = face["attributes"]
    limits = {
        "min-cpq": attributes["centerPoseQuality"],
        "min-fsq": attributes["sharpnessQuality"],
        "min-fcq": attributes["contrastQuality"],
    }
    directory.insert(photo("hopper"), **limits)


@pytest.mark.parametrize("reason", ["center-pose", "sharpness", "contrast"])
def test_4_2_rule_4_insufficient_quality_is_rejected(directory: Directory, reason: str) -> None:
    """When the face does not meet the quality criteria, the insertion is rejected."""
    answer = directory.answer(poor("hopper", reason), name="Anna", external_id="A-1", update="false")
    (face,) = answer["identifiedFaces"]
    assert answer["accountUpdated"] is False
    assert "personId" not in face
    assert "newId" not in face
    assert directory.people() == []


def test_4_2_rule_5_threshold_0_and_no_quality_force_an_insertion(directory: Directory) -> None:
    """Insertion as a new identity is forced for any image not identical to one already stored."""
    images = [photo("hopper"), other("hopper"), other("hopper", 1), *(poor("hopper", r) for r in ("sharpness",))]
    inserted = [directory.force(image, f"Person {n}", f"P-{n}")["personId"] for n, image in enumerate(images)]
    assert len(set(inserted)) == len(images)
    assert len(directory.people()) == len(images)


def test_4_2_rule_5_another_image_with_hardly_another_face_is_not_identical(directory: Directory) -> None:
    """... any image not identical: one changed pixel in a corner is another image."""
    first = directory.force(retouched("hopper", 0))["personId"]
    second = directory.force(retouched("hopper", 255))["personId"]
    assert first != second


def test_4_2_rule_5_an_identical_image_is_not_inserted_again(directory: Directory) -> None:
    """... not identical to one already stored."""
    first = directory.force(photo("hopper"))["personId"]
    (face,) = directory.faces(photo("hopper"), **BEA, threshold=0, update="false", **FORCED)
    assert face["personId"] == first
    assert "newId" not in face
    assert len(directory.people()) == 1


def test_4_2_rule_6_update_true_replaces_image_and_metadata(directory: Directory) -> None:
    """With update=true and a match, the matched identity's reference image and metadata may be updated."""
    person_id = directory.insert(photo("hopper"), "Anna", "A-1")["personId"]
    before = directory.record(person_id)
    answer = directory.answer(other("hopper"), **BEA, update="true")
    after = directory.record(person_id)
    assert answer["accountUpdated"] is True
    assert answer["identifiedFaces"][0]["personId"] == person_id
    assert "newId" not in answer["identifiedFaces"][0]
    assert (after["name"], after["externalId"]) == ("Bea", "B-2")
    assert after["imageURI"] != before["imageURI"]


def test_4_2_rule_6_the_updated_reference_is_what_is_matched_from_then_on(directory: Directory) -> None:
    """The reference is replaced: the new image is identical to it, the old one no longer is."""
    directory.insert(photo("hopper"), "Anna", "A-1")
    directory.answer(other("hopper"), **BEA, update="true")
    (new,) = directory.recognise(other("hopper"), threshold=0)
    (old,) = directory.recognise(photo("hopper"), threshold=0)
    assert "personId" in new
    assert "personId" not in old


@pytest.mark.parametrize("reason", ["center-pose", "contrast"])
def test_4_2_rule_6_no_update_where_the_quality_is_not_met(directory: Directory, reason: str) -> None:
    """... when quality criteria are met."""
    person_id = directory.insert(photo("hopper"), "Anna", "A-1")["personId"]
    before = directory.record(person_id)
    answer = directory.answer(poor("hopper", reason), **BEA, update="true")
    assert answer["identifiedFaces"][0]["personId"] == person_id
    assert answer["accountUpdated"] is False
    after = directory.record(person_id)
    for key in ("name", "externalId", "imageURI"):
        assert after[key] == before[key]


def test_4_2_rule_6_update_false_changes_neither(directory: Directory) -> None:
    """With update=false they are not."""
    person_id = directory.insert(photo("hopper"), "Anna", "A-1")["personId"]
    before = directory.record(person_id)
    directory.answer(other("hopper"), **BEA, update="false")
    after = directory.record(person_id)
    for key in ("name", "externalId", "imageURI"):
        assert after[key] == before[key]


def test_4_2_rules_hold_for_each_face_of_a_photo(directory: Directory) -> None:
    """A known face beside an unknown one: the known is returned as matched, whoever is inserted."""
    collins = directory.insert(photo("collins"), "Eileen", "E-1")["personId"]
    image = encoded(paired(portrait("hopper"), portrait("collins")))
    faces = directory.faces(image, name="Grace", external_id="G-1", update="false")
    by_name = {face["name"]: face for face in faces}
    assert by_name["Eileen"]["personId"] == collins
    assert "newId" not in by_name["Eileen"]
    assert by_name["Grace"]["newId"] is True
