"""Insertion by POST /people: sections 3, 4.1, 4.2 and 7 of the contract, and the decisions about quality, names and
several faces in one image."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from tests.serve.conformance.client import ANNA, BEA, FORCED, Directory, Json, assert_error
from tests.serve.conformance.photos import (
    encoded,
    faceless,
    opened,
    other,
    pair,
    paired,
    photo,
    poor,
    portrait,
    retouched,
)

# parameter, attribute, rejection reason, default
QUALITIES = [
    ("min-cpq", "centerPoseQuality", "center-pose", 0.59),
    ("min-fsq", "sharpnessQuality", "sharpness", 0.40),
    ("min-fcq", "contrastQuality", "contrast", 0.45),
]
REASONS = ["center-pose", "sharpness", "contrast"]


def test_3_an_identity_comes_into_existence_on_insertion_only(directory: Directory) -> None:
    """An identity comes into existence on insertion (newId true)."""
    directory.recognise(photo("hopper"))
    for image in (faceless(), poor("hopper", "sharpness")):
        directory.post(image, **ANNA)
    assert directory.people() == []
    face = directory.insert(photo("hopper"))
    assert [person["personId"] for person in directory.people()] == [face["personId"]]


# Match or new identity


def test_4_2_rules_1_and_2_a_match_is_returned_and_not_inserted(directory: Directory) -> None:
    """Every insertion call first checks whether the face matches an identity already in the directory, under any name.
    When a match is found, no insertion is made and the matched identity is returned; newId is not true (7 rule 2)."""
    hopper = directory.insert(photo("hopper"), "Grace", "G-1")["personId"]
    collins = directory.insert(photo("collins"), "Eileen", "E-1")["personId"]
    for who, person_id, name in (("hopper", hopper, "Grace"), ("collins", collins, "Eileen")):
        answer = directory.answer(other(who), **BEA, update="false")
        (face,) = answer["identifiedFaces"]
        assert answer["accountUpdated"] is False
        assert (face["personId"], face["name"]) == (person_id, name)
        assert face.get("newId") is not True
    assert len(directory.people()) == 2


def test_4_2_rule_3_no_match_and_good_quality_makes_a_new_identity(directory: Directory) -> None:
    """A new identity is created, and the returned entry has newId true and accountUpdated true. The next call
    recognises it."""
    directory.insert(photo("hopper"), "Anna", "A-1")
    answer = directory.answer(photo("collins"), **BEA, update="false")
    (face,) = answer["identifiedFaces"]
    assert answer["accountUpdated"] is True
    assert face["newId"] is True
    assert {person["name"] for person in directory.people()} == {"Anna", "Bea"}
    assert directory.recognise(other("collins"))[0]["personId"] == face["personId"]


@pytest.mark.parametrize("value", [None, "true", "TRUE", "True", "false", "FALSE"])
def test_4_1_insert_false_inserts_nothing(directory: Directory, value: str | None) -> None:
    """insert=false: nothing is inserted. [decided] The default is true, and `true`/`false` are valid in any case."""
    query = {} if value is None else {"insert": value}
    inserted = value is None or value.lower() == "true"
    answer = directory.answer(photo("hopper"), **ANNA, **query, **FORCED)
    assert answer["accountUpdated"] is inserted
    assert ("newId" in answer["identifiedFaces"][0]) is inserted
    assert len(directory.people()) == inserted


# Quality


@pytest.mark.parametrize("reason", REASONS)
def test_4_2_rule_4_insufficient_quality_is_rejected(directory: Directory, reason: str) -> None:
    """When the face does not meet the quality criteria, the insertion is rejected (7 rule 1). [decided] The entry has
    attributes, mediaId and offsets, but no personId and no newId; rejectionReasons are exactly these."""
    answer = directory.answer(poor("collins", reason), **ANNA)
    (face,) = answer["identifiedFaces"]
    assert answer["accountUpdated"] is False
    assert face["rejectionReasons"] == [reason]
    assert {"attributes", "mediaId", "offsetX", "offsetY", "relativeWidth", "relativeHeight"} <= set(face)
    assert not {"personId", "newId"} & set(face)
    assert directory.people() == []
    assert directory.recognise(poor("collins", reason), similar_limit=5)[0]["similar"] == []


def test_requests_all_reasons_are_listed(directory: Directory) -> None:
    (face,) = directory.faces(photo("collins"), **ANNA, **{"min-cpq": 1, "min-fsq": 1, "min-fcq": 1})
    assert sorted(face["rejectionReasons"]) == ["center-pose", "contrast", "sharpness"]


@pytest.mark.parametrize(("parameter", "attribute", "reason", "_default"), QUALITIES)
def test_4_1_minimum_quality_rejects_what_is_below_it(
    directory: Directory, parameter: str, attribute: str, reason: str, _default: float
) -> None:
    """min-cpq, min-fsq, min-fcq: minimum quality for accepting an image as a reference. The returned quality is the one
    that is compared (4.2 rule 3)."""
    (face,) = directory.recognise(photo("collins"))
    quality = face["attributes"][attribute]
    (rejected,) = directory.faces(photo("collins"), **ANNA, **{parameter: min(1.0, quality + 0.01)})
    assert "personId" not in rejected
    assert rejected["rejectionReasons"] == [reason]
    assert directory.insert(photo("collins"), **{parameter: quality})


@pytest.mark.parametrize(("parameter", "_attribute", "reason", "default"), QUALITIES)
def test_4_1_minimum_quality_0_rejects_nothing(
    directory: Directory, parameter: str, _attribute: str, reason: str, default: float
) -> None:
    """0 ensures no rejection on this ground. [decided] The defaults are `min-cpq=0.59`, `min-fsq=0.40`, `min-fcq=0.45`;
    -1 means "the default"."""
    image = poor("hopper", reason)
    for value in ("-1", "-1.0", str(default)):
        (face,) = directory.faces(image, **ANNA, **{parameter: value})
        assert face["rejectionReasons"] == [reason]
    assert directory.faces(image, **ANNA, **{parameter: "0"})[0]["newId"] is True


@pytest.mark.parametrize("value", ["-0.5", "1.01", "-2", "nan", "inf", "abc", "0,5", "1e999", "0x1"])
@pytest.mark.parametrize("parameter", ["min-cpq", "min-fsq", "min-fcq"])
def test_requests_quality_out_of_range_is_400(directory: Directory, parameter: str, value: Any) -> None:
    """Else in [0, 1], else `400`."""
    assert_error(directory.post(photo("hopper"), **ANNA, **{parameter: value}), 400, "parameter-invalid")


def test_requests_no_reasons_where_nothing_would_be_inserted(directory: Directory) -> None:
    """`rejectionReasons` only when the call would have inserted that face."""
    image = poor("hopper", "contrast")
    assert "rejectionReasons" not in directory.recognise(image)[0]
    directory.insert(photo("hopper"))
    (matched,) = directory.faces(image, **ANNA, update="true")
    assert "personId" in matched
    assert "rejectionReasons" not in matched


def test_requests_min_size_keeps_smaller_faces_from_being_inserted(directory: Directory) -> None:
    """Nothing else gates unless the client asks (`min-size` in px ...): the longer side of the box counts."""
    (face,) = directory.recognise(photo("hopper"))
    side = max(face["attributes"]["dimension"].values())
    (small,) = directory.faces(photo("hopper"), **ANNA, **{"min-size": side + 2})
    assert not {"personId", "newId"} & set(small)
    assert directory.people() == []
    directory.insert(photo("hopper"), **{"min-size": side - 2})
    (face,) = directory.recognise(other("hopper"), **{"min-size": 5000})
    assert "personId" in face  # min-size does not prevent recognition


# Threshold 0, identical images


def test_4_2_rule_5_threshold_0_and_no_quality_force_an_insertion(directory: Directory) -> None:
    """Insertion as a new identity is forced for any image not identical to one already stored. One changed pixel in a
    corner makes another image."""
    images = [photo("hopper"), other("hopper"), *(poor("hopper", reason) for reason in REASONS)]
    images += [retouched("hopper", shade) for shade in (0, 255)]
    assert len(set(directory.force_all(*images))) == len(directory.people()) == len(images)


def test_4_1_threshold_0_forces_a_new_identity(directory: Directory) -> None:
    """Value 0 forces insertion as a new identity even when a match would normally be found. [decided] No distance rule:
    another image of the face with a tiny distance is not identical."""
    directory.insert(encoded(portrait("hopper"), "PNG"))
    for image in (retouched("hopper", 0), photo("hopper"), other("hopper", 3)):
        assert "personId" not in directory.recognise(image, threshold=0)[0]
        directory.insert(image, **BEA, threshold=0)
    assert len(directory.people()) == 4


@pytest.mark.parametrize("query", [{}, FORCED], ids=["default qualities", "no quality checks"])
def test_4_1_identical_image_is_matched_even_at_threshold_0(directory: Directory, query: dict[str, str]) -> None:
    """An identical image already in the directory is still matched to the existing identity, even at 0, and not
    inserted again (4.2 rule 5)."""
    first = directory.insert(photo("hopper"))["personId"]
    (face,) = directory.faces(photo("hopper"), **BEA, threshold=0, update="false", **query)
    assert face["personId"] == first
    assert "newId" not in face
    assert len(directory.people()) == 1


# Name and external id


@pytest.mark.parametrize(
    "names",
    [{}, {"name": "A"}, {"external_id": "A"}, {"name": "", "external_id": "A"}, {"name": "A", "external_id": ""}],
    ids=["neither", "name only", "external id only", "empty name", "empty external id"],
)
def test_4_1_name_and_external_id_are_required_for_insertion(directory: Directory, names: dict[str, str]) -> None:
    """X-RPC-PERSON-NAME and X-RPC-EXTERNAL-ID: required for insertion. [decided] Empty = missing; without both the
    whole call stores nothing: a match beside the stranger is neither updated nor counted."""
    directory.insert(photo("collins"), "Eileen", "E-1")
    before = directory.people()
    image = encoded(paired(portrait("hopper"), portrait("collins")))
    assert_error(directory.post(image, **names), 400, "person-headers-required")
    assert directory.people() == before


def test_4_1_name_and_external_id_are_not_required_where_nothing_is_inserted(directory: Directory) -> None:
    """A match needs neither, nor does a face of poor quality."""
    directory.insert(photo("hopper"))
    assert directory.post(other("hopper"), update="false").status_code == 201
    assert directory.post(poor("collins", "sharpness"), update="false").status_code == 201
    assert len(directory.people()) == 1


@pytest.mark.parametrize("names", [{}, {"name": "Anna"}, {"external_id": "A-1"}])
def test_requests_optional_person_headers(lenient_directory: Directory, names: dict[str, Any]) -> None:
    """Setting `person_headers`: `optional` (the vendor's own clients send only a name, or nothing)."""
    (face,) = lenient_directory.faces(photo("hopper"), **names)
    assert face["newId"] is True
    assert face.get("name") == names.get("name")
    assert face.get("personExternalId") == names.get("external_id")


def test_requests_external_ids_need_not_be_unique(directory: Directory) -> None:
    """Ids need not be unique: insertion inserts."""
    inserted = {directory.insert(photo(who), who, "SAME")["personId"] for who in ("hopper", "collins")}
    records = directory.get("/people/external/SAME").json()["people"]
    assert {person["personId"] for person in records} == inserted
    assert len(inserted) == 2


def test_requests_unique_external_ids_answer_409_and_store_nothing(lenient_directory: Directory) -> None:
    """Setting `unique_external_ids` answers `409` instead and stores nothing."""
    lenient_directory.insert(photo("hopper"), "Anna", "SAME")
    before = lenient_directory.people()
    assert_error(lenient_directory.post(photo("collins"), name="Bea", external_id="SAME"), 409, "external-id-taken")
    assert lenient_directory.people() == before


@pytest.mark.parametrize("coding", ["utf-8", "latin-1"])
def test_requests_header_bytes_are_utf_8_if_valid_else_latin_1(directory: Directory, coding: str) -> None:
    """Header bytes are UTF-8 if valid, else latin-1."""
    (face,) = directory.faces(photo("hopper"), **ANNA, headers={"X-RPC-PERSON-NAME": "Zoë Ångström".encode(coding)})
    assert face["name"] == directory.people()[0]["name"] == "Zoë Ångström"


def test_requests_base64_headers_win_over_the_plain_ones(directory: Directory) -> None:
    """`X-RPC-PERSON-NAME-BASE64` and `X-RPC-EXTERNAL-ID-BASE64` win over the plain ones."""
    headers = {
        "X-RPC-PERSON-NAME-BASE64": base64.b64encode("日本 太郎".encode()),
        "X-RPC-EXTERNAL-ID-BASE64": base64.b64encode("ключ/1".encode()),
    }
    (face,) = directory.faces(photo("hopper"), **ANNA, headers=headers)
    assert (face["name"], face["personExternalId"]) == ("日本 太郎", "ключ/1")


@pytest.mark.parametrize("header", ["X-RPC-PERSON-NAME-BASE64", "X-RPC-EXTERNAL-ID-BASE64"])
def test_requests_bad_base64_is_400(directory: Directory, header: str) -> None:
    """Bad base64 -> `400`."""
    assert_error(directory.post(photo("hopper"), **ANNA, headers={header: "%%%"}), 400, "header-invalid")


@pytest.mark.parametrize("header", ["X-RPC-PERSON-NAME", "X-RPC-EXTERNAL-ID"])
def test_requests_names_have_at_most_1000_characters(directory: Directory, header: str) -> None:
    """At most 1,000 characters."""
    assert_error(directory.post(photo("hopper"), **ANNA, headers={header: "n" * 1001}), 400, "header-invalid")
    assert directory.post(photo("hopper"), **ANNA, headers={header: "n" * 1000}).status_code == 201


# Several faces in one image


def test_4_2_rules_hold_for_each_face_of_a_photo(directory: Directory) -> None:
    """A known face beside an unknown one: the known one is returned as a match, although the other one is inserted."""
    collins = directory.insert(photo("collins"), "Eileen", "E-1")["personId"]
    faces = directory.faces(pair("hopper", "collins"), name="Grace", external_id="G-1", update="false")
    by_name = {face["name"]: face for face in faces}
    assert by_name["Eileen"]["personId"] == collins
    assert "newId" not in by_name["Eileen"]
    assert by_name["Grace"]["newId"] is True


def test_requests_only_the_largest_face_is_inserted(directory: Directory) -> None:
    """Only the largest of all detected faces may be inserted; the others are recognised only."""
    first, second = directory.faces(pair("hopper", "collins"), **ANNA)
    assert first["newId"] is True
    assert first["name"] == "Anna"
    assert not {"personId", "newId"} & set(second)
    assert len(directory.people()) == 1


@pytest.mark.parametrize("next_face", [portrait("collins"), opened(poor("collins", "sharpness"))], ids=["good", "poor"])
def test_requests_never_a_fallback_to_the_next_face(directory: Directory, next_face: Any) -> None:
    """If the quality of the largest face is poor, the next one is not inserted in its place. It has no rejectionReasons
    because the call would not have inserted it."""
    first, second = directory.faces(encoded(paired(opened(poor("hopper", "sharpness")), next_face)), **ANNA)
    assert first["rejectionReasons"] == ["sharpness"]
    assert not {"newId", "rejectionReasons"} & {*second}
    assert "newId" not in first
    assert directory.people() == []


def test_requests_header_metadata_go_to_the_largest_face_only(lenient_directory: Directory) -> None:
    """Only the largest of all detected faces takes header metadata."""
    collins = lenient_directory.insert(photo("collins"), "Eileen", "E-1")["personId"]
    lenient_directory.insert(photo("hopper"), "Grace", "G-1")
    lenient_directory.answer(pair("hopper", "collins"), name="Renamed", external_id="R-1", update="true")
    names = {person["personId"]: person["name"] for person in lenient_directory.people()}
    assert names.pop(collins) == "Eileen"
    assert list(names.values()) == ["Renamed"]


def test_requests_insert_all_inserts_each_unmatched_face(lenient_directory: Directory) -> None:
    """`insert_all=true` inserts each unmatched face that passes the gate, the largest with the headers."""
    first, second = lenient_directory.faces(pair("hopper", "collins"), **ANNA, insert_all="true")
    assert first["newId"] is second["newId"] is True
    assert first["name"] == "Anna"
    assert "name" not in second
    assert len(lenient_directory.people()) == 2


def test_requests_insert_all_needs_headers_for_the_largest_face_only(directory: Directory) -> None:
    """person_headers `required`: insert_all asks for the headers of the largest only. The 400 names the setting."""
    answer = directory.post(pair("hopper", "collins"), insert_all="true")
    assert_error(answer, 400, "person-headers-required")
    assert "person_headers" in answer.json()["message"]
    assert directory.people() == []
    first, second = directory.faces(pair("hopper", "collins"), **ANNA, insert_all="true")
    assert first["newId"] is second["newId"] is True
    assert (first["name"], "name" in second) == ("Anna", False)


def test_requests_a_later_face_may_match_one_just_inserted(directory: Directory) -> None:
    """insert_all: a later face may match one just inserted."""
    first, second = directory.faces(pair("hopper", "hopper"), **ANNA, insert_all="true")
    assert first["newId"] is True
    assert second["personId"] == first["personId"]
    assert "newId" not in second
    assert len(directory.people()) == 1


# Person headers

PERSON_HEADERS = {
    "X-RPC-PERSON-FIRST-NAME-BASE64": base64.b64encode("Gräce".encode()).decode(),
    "X-RPC-PERSON-LAST-NAME": "Hopper",
    "X-RPC-PERSON-TAGS": "navy, pioneer",
    "X-RPC-PERSON-TYPE": "visitor",
    "X-RPC-GENDER": "female",
    "X-RPC-AGE": "36",
    "X-RPC-DATE-OF-BIRTH": "1906-12-09",
    "X-RPC-GROUPS": "staff,blue",
}
SAID = {
    "name": "Gräce Hopper",
    "firstName": "Gräce",
    "lastName": "Hopper",
    "externalId": "N-1906",
    "tags": ["navy", "pioneer"],
    "personType": "visitor",
    "gender": "female",
    "age": "36",
    "dateOfBirth": "1906-12-09",
    "groups": ["staff", "blue"],
}


def test_person_headers_are_stored_and_answered(directory: Directory) -> None:
    """First and last name, in entries and `similar` too; without a name, both joined are the name. Tags. The others are
    kept and answered in records, and filters find them."""
    (face,) = directory.faces(photo("hopper"), external_id="N-1906", headers=PERSON_HEADERS)
    record = directory.record(face["personId"])
    assert {key: record.get(key) for key in SAID} == SAID
    (seen,) = directory.recognise(other("hopper"), similar_limit=1)
    for entry in (face, seen, seen["similar"][0]):
        assert (entry["name"], entry["firstName"], entry["lastName"]) == ("Gräce Hopper", "Gräce", "Hopper")
    assert face["tags"] == seen["tags"] == ["navy", "pioneer"]
    for query in ({"person-type": "visitor"}, {"groups": "blue"}, {"first-name": "Gräce"}):
        assert [person["personId"] for person in directory.roots(**query)] == [face["personId"]]


def test_person_headers_of_an_update_change_what_they_say(directory: Directory, person: Json) -> None:
    """update=true brings the metadata of the request; what is not sent stays. The same in a PUT without a body."""
    directory.put(f"/people/{person['personId']}", {"moniker": "anne", "gender": "f", "tags": ["x"]})
    directory.answer(other("hopper"), external_id="A-1", update="true", headers={"X-RPC-GENDER": "female"})
    after = directory.record(person["personId"])
    assert (after["name"], after["moniker"], after["gender"], after["tags"]) == ("Anna", "anne", "female", ["x"])
    directory.put(f"/people/{person['personId']}", headers={"X-RPC-AGE": "7", "X-RPC-PERSON-LAST-NAME": "Z"})
    after = directory.record(person["personId"])
    assert (after["name"], after["lastName"], after["age"], after["gender"]) == ("Z", "Z", "7", "female")


def test_person_headers_of_the_largest_face_are_not_those_of_others(lenient_directory: Directory) -> None:
    image = pair("hopper", "collins")
    lenient_directory.answer(
        image, name="G", external_id="N", insert_all="true", headers={"X-RPC-PERSON-TYPE": "visitor"}
    )
    assert [person.get("personType") for person in lenient_directory.people()] == ["visitor", None]


def test_person_headers_are_at_most_8_kb_together(directory: Directory) -> None:
    """At most 8 KB, else `400`; nothing is stored."""
    directory.insert(photo("collins"), "Eileen", "N-1956")
    headers = {f"X-RPC-{name}": "é" * 999 for name in ("PERSON-TYPE", "GENDER", "AGE", "DATE-OF-BIRTH", "GROUPS")}
    answer = directory.post(photo("hopper"), name="G", external_id="N", headers=headers)
    assert_error(answer, 400, "metadata-too-large")
    assert len(directory.people()) == 1


@pytest.mark.parametrize("header", ["X-RPC-PERSON-FIRST-NAME-BASE64", "X-RPC-GROUPS-BASE64"])
def test_person_headers_that_are_no_base64_are_400(directory: Directory, header: str) -> None:
    answer = directory.post(photo("hopper"), name="G", external_id="N", headers={header: "%"})
    assert_error(answer, 400, "header-invalid")
    assert directory.people() == []
