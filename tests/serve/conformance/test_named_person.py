"""Posts that name a person or select a face: `update-person-id`, `merge-with`, `closest-only-*`, `largest-only`,
`larger-than`, and the conditions of an update, as existing clients send them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.serve.conformance.client import BEA, READ_ONLY, UNKNOWN_ID, Directory, Json, assert_error
from tests.serve.conformance.photos import other, pair, photo, poor

NAMED = "update-person-id"
ANYBODY = {"threshold": 4}


@pytest.fixture
def collins(directory: Directory) -> Json:
    """The record of a second identity of `directory`."""
    return directory.record(directory.insert(photo("collins"), "Eileen", "E-1")["personId"])


def test_parameters_a_forced_update_changes_the_named_person_alone(
    directory: Directory, person: Json, collins: Json
) -> None:
    """Only that record may be updated; T = 4 always matches, whoever is more like it. No conflict applies."""
    answer = directory.answer(other("hopper"), **BEA, **ANYBODY, **{NAMED: collins["personId"]})
    (face,), after = answer["identifiedFaces"], directory.record(collins["personId"])
    assert answer["accountUpdated"] is True
    assert (face["personId"], face["name"], face["occurrence"]) == (collins["personId"], "Bea", 2)
    assert not {"newId", "conflict"} & set(face)
    assert (after["name"], after["externalId"]) == ("Bea", "B-2")
    assert after["imageURI"] != collins["imageURI"]
    assert directory.record(person["personId"]) == person
    assert len(directory.people()) == 2


def test_parameters_a_named_person_must_match(directory: Directory, person: Json, collins: Json) -> None:
    """No match: `201`, an entry without `personId` and with `"conflict": "person"`; nothing is stored."""
    before = directory.people()
    answer = directory.answer(other("hopper"), **{NAMED: collins["personId"]})
    (face,) = answer["identifiedFaces"]
    assert face["conflict"] == "person"
    assert not {"personId", "name", "occurrence", "newId", "rejectionReasons"} & set(face)
    assert answer["accountUpdated"] is False
    assert directory.people() == before


def test_parameters_a_poor_face_of_a_named_person_is_rejected(directory: Directory, person: Json) -> None:
    """The face must pass the gate as for an insertion: `rejectionReasons`, and nothing is stored."""
    answer = directory.answer(poor("hopper", "contrast"), insert="false", **{NAMED: person["personId"]})
    (face,) = answer["identifiedFaces"]
    assert face["rejectionReasons"] == ["contrast"]
    assert not {"personId", "conflict"} & set(face)
    assert answer["accountUpdated"] is False
    assert directory.people() == [person]


@pytest.mark.parametrize(
    ("image", "query", "status", "reason"),
    [
        (other("hopper"), {NAMED: UNKNOWN_ID}, 404, "person-unknown"),
        (other("hopper"), {NAMED: "1906"}, 404, "person-unknown"),
        (other("hopper"), {NAMED: "{id}", "update": "false"}, 400, "parameter-invalid"),
        (pair("hopper", "collins"), {NAMED: "{id}"}, 400, "several-faces"),
        (photo("collins"), {"merge-with": UNKNOWN_ID}, 404, "person-unknown"),
        (photo("collins"), {"merge-with": "1906"}, 404, "person-unknown"),
        (photo("collins"), {"merge-with": "{id}", **READ_ONLY}, 400, "parameter-invalid"),
        (pair("hopper", "collins"), {"merge-with": "{id}"}, 400, "several-faces"),
    ],
)
def test_parameters_what_cannot_be_done_stores_nothing(
    directory: Directory, person: Json, image: bytes, query: dict[str, str], status: int, reason: str
) -> None:
    sent = {key: value.format(id=person["personId"]) for key, value in query.items()}
    assert_error(directory.post(image, **BEA, **sent), status, reason)
    assert directory.people() == [person]


@pytest.mark.parametrize("select", [{"closest-only-x": "0.2"}, {"largest-only": "true"}], ids=["point", "size"])
def test_parameters_a_selected_face_updates_the_named_person(
    directory: Directory, person: Json, select: dict[str, str]
) -> None:
    answer = directory.answer(pair("hopper", "collins"), **select, **{NAMED: person["personId"]})
    assert [face["personId"] for face in answer["identifiedFaces"]] == [person["personId"]]
    assert answer["accountUpdated"] is True
    assert len(directory.people()) == 1


@pytest.mark.parametrize("by_header", [False, True], ids=["merge-with", "X-RPC-ROOT-PERSON-ID"])
def test_parameters_an_inserted_face_is_merged(directory: Directory, person: Json, by_header: bool) -> None:
    """That identity and the named one are merged in the same transaction, as by `PUT /merge`: the entry has the id of
    the new record, and the root's as `rootPersonId`."""
    person_id = person["personId"]
    options: dict[str, Any] = {"merge-with": person_id}
    if by_header:
        options = {"headers": {"X-RPC-ROOT-PERSON-ID": person_id}}
    answer = directory.answer(photo("collins"), **BEA, **options)
    (face,) = answer["identifiedFaces"]
    assert (face["rootPersonId"], face["name"], face["newId"], face["occurrence"]) == (person_id, "Anna", True, 2)
    assert answer["accountUpdated"] is True
    assert [record["personId"] for record in directory.people()] == [person_id, face["personId"]]
    assert [record["rootPersonId"] for record in directory.people()] == [person_id] * 2
    (root,) = directory.roots()
    assert len(root["unmergedImageURIs"]) == 1
    (face,) = directory.recognise(other("collins"), similar_limit=1)
    for entry in (face, *face["similar"]):
        assert (entry["personId"], entry["rootPersonId"]) == (person_id, person_id)


def test_parameters_a_matched_face_is_merged_and_a_rejected_one_not(
    directory: Directory, person: Json, collins: Json
) -> None:
    merging = {"merge-with": person["personId"], "update": "false"}
    directory.answer(poor("collins", "contrast"), **{**merging, "insert": "false", "update": "true", "threshold": 0})
    assert len(directory.roots()) == 2
    directory.answer(other("collins"), **merging)
    assert [record["rootPersonId"] for record in directory.people()] == [person["personId"]] * 2


def test_parameters_header_metadata_belong_to_the_nearest_face(directory: Directory) -> None:
    """Only the face whose centre is nearest is processed and answered; header metadata belong to it."""
    (face,) = directory.faces(pair("hopper", "collins"), **BEA, **{"closest-only-x": "0.9", "closest-only-y": "0.5"})
    assert (face["newId"], face["name"]) == (True, "Bea")
    assert face["offsetX"] > 0.5
    assert "personId" in directory.recognise(photo("collins"))[0]
    assert "personId" not in directory.recognise(photo("hopper"))[0]


def test_parameters_larger_than_is_a_fraction_of_the_height(directory: Directory) -> None:
    both = directory.recognise(pair("hopper", "collins"))
    between = (both[0]["relativeHeight"] + both[1]["relativeHeight"]) / 2
    large = directory.recognise(pair("hopper", "collins"), **{"larger-than": between})
    assert [face["offsetX"] for face in large] == [
        face["offsetX"] for face in both if face["relativeHeight"] >= between
    ]
    assert len(large) == 1


def test_parameters_no_ids_where_they_are_not_wanted(directory: Directory, person: Json) -> None:
    """No id of a person in the answer, nor in `similar`."""
    (face,) = directory.faces(photo("hopper"), **READ_ONLY, similar_limit=1, **{"provide-face-id": "false"})
    for entry in (face, *face["similar"]):
        assert not {"personId", "rootPersonId"} & set(entry)
    assert (face["name"], face["similar"][0]["name"]) == ("Anna", "Anna")
