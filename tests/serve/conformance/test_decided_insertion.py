"""decisions.md, "Requests": defaults, and who is inserted under which name."""

from __future__ import annotations

import base64
from typing import Any

import httpx
import pytest

from tests.serve.conformance.client import Directory, Json, raw
from tests.serve.conformance.conftest import Gallery
from tests.serve.conformance.photos import (
    encoded,
    opened,
    other,
    pair,
    paired,
    photo,
    poor,
    portrait,
)

ANNA: dict[str, Any] = {"name": "Anna", "external_id": "A-1"}


def refused(answer: httpx.Response, status: int, reason: str) -> None:
    assert answer.status_code == status, answer.text
    assert answer.json()["errorReason"] == reason


# Defaults


def test_requests_insert_is_true_by_default(directory: Directory) -> None:
    assert directory.faces(photo("hopper"), **ANNA)[0]["newId"] is True


def test_requests_update_is_true_by_default(directory: Directory) -> None:
    person_id = directory.insert(photo("hopper"), "Anna", "A-1")["personId"]
    answer = directory.answer(other("hopper"), name="Bea", external_id="B-2")
    assert answer["accountUpdated"] is True
    assert directory.record(person_id)["name"] == "Bea"


@pytest.mark.parametrize(
    ("parameter", "reason", "limit"),
    [("min-cpq", "center-pose", 0.59), ("min-fsq", "sharpness", 0.40), ("min-fcq", "contrast", 0.45)],
)
def test_requests_default_qualities(directory: Directory, parameter: str, reason: str, limit: float) -> None:
    """`min-cpq=0.59`, `min-fsq=0.40`, `min-fcq=0.45`; -1 means "the default", 0 switches that check off."""
    image = poor("hopper", reason)
    for value in ("-1", "-1.0", str(limit)):
        (face,) = directory.faces(image, **ANNA, **{parameter: value})
        assert face["rejectionReasons"] == [reason]
    assert directory.faces(image, **ANNA, **{parameter: "0"})[0]["newId"] is True


@pytest.mark.parametrize("value", ["-0.5", "1.01", "-2", "nan", "inf", "abc", "", "0,5", "1e999", "0x1"])
@pytest.mark.parametrize("parameter", ["min-cpq", "min-fsq", "min-fcq"])
def test_requests_quality_out_of_range_is_400(directory: Directory, parameter: str, value: Any) -> None:
    """Else in [0, 1], else `400`."""
    refused(directory.post(photo("hopper"), **ANNA, **{parameter: value}), 400, "parameter-invalid")


# Name and external id on insertion


def test_requests_without_person_headers_the_whole_call_stores_nothing(directory: Directory) -> None:
    """... the whole call stores nothing: a match beside the stranger is not updated or counted either."""
    directory.insert(photo("collins"), "Eileen", "E-1")
    before = directory.people()
    image = encoded(paired(portrait("hopper"), portrait("collins")))
    refused(directory.post(image, name="Grace"), 400, "person-headers-required")
    assert directory.people() == before


@pytest.mark.parametrize("headers", [{}, {"name": "Anna"}, {"external_id": "A-1"}])
def test_requests_optional_person_headers(lenient_directory: Directory, headers: dict[str, Any]) -> None:
    """Setting `person_headers`: `optional` (the vendor's own clients send only a name, or nothing)."""
    (face,) = lenient_directory.faces(photo("hopper"), **headers)
    assert face["newId"] is True
    assert face.get("name") == headers.get("name")
    assert face.get("personExternalId") == headers.get("external_id")


# External id already used


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
    refused(lenient_directory.post(photo("collins"), name="Bea", external_id="SAME"), 409, "external-id-taken")
    assert lenient_directory.people() == before


# Several faces in one image


def test_requests_only_the_largest_face_is_inserted(directory: Directory) -> None:
    """Only the largest of all detected faces may be inserted; the others are recognised only."""
    first, second = directory.faces(pair("hopper", "collins"), **ANNA)
    assert first["newId"] is True
    assert first["name"] == "Anna"
    assert not {"personId", "newId"} & set(second)
    assert len(directory.people()) == 1


def test_requests_never_a_fallback_to_the_next_face(directory: Directory) -> None:
    """The largest is too poor: the next, which would do, is not inserted in its place."""
    image = encoded(paired(opened(poor("hopper", "sharpness")), portrait("collins")))
    faces = directory.faces(image, **ANNA)
    assert len(faces) == 2
    assert not any("newId" in face for face in faces)
    assert directory.people() == []


def test_requests_header_metadata_go_to_the_largest_face_only(directory: Directory) -> None:
    """... or take header metadata."""
    collins = directory.insert(photo("collins"), "Eileen", "E-1")["personId"]
    directory.insert(photo("hopper"), "Grace", "G-1")
    directory.answer(pair("hopper", "collins"), name="Renamed", external_id="R-1", update="true")
    names = {person["personId"]: person["name"] for person in directory.people()}
    assert names.pop(collins) == "Eileen"
    assert list(names.values()) == ["Renamed"]


def test_requests_insert_all_inserts_each_unmatched_face(lenient_directory: Directory) -> None:
    """`insert_all=true` inserts each unmatched face that passes the gate, the largest with the headers."""
    directory = lenient_directory
    first, second = directory.faces(pair("hopper", "collins"), **ANNA, insert_all="true")
    assert first["newId"] is second["newId"] is True
    assert first["name"] == "Anna"
    assert "name" not in second
    assert len(directory.people()) == 2


def test_requests_insert_all_needs_headers_for_each_where_they_are_required(directory: Directory) -> None:
    """person_headers `required`: the second face would be inserted without them, so nothing is stored."""
    refused(directory.post(pair("hopper", "collins"), **ANNA, insert_all="true"), 400, "person-headers-required")
    assert directory.people() == []


def test_requests_a_later_face_may_match_one_just_inserted(directory: Directory) -> None:
    """insert_all: a later face may match one just inserted."""
    first, second = directory.faces(pair("hopper", "hopper"), **ANNA, insert_all="true")
    assert first["newId"] is True
    assert second["personId"] == first["personId"]
    assert "newId" not in second
    assert len(directory.people()) == 1


def test_requests_largest_only_returns_only_the_largest(gallery: Gallery) -> None:
    """`largest-only=true` returns only the largest."""
    image = encoded(paired(portrait("hopper"), portrait("collins"), 1.6))
    (face,) = gallery.directory.recognise(image, **{"largest-only": "true"})
    assert face["personId"] == gallery.collins["personId"]


# Names on the wire


def _named(directory: Directory, headers: dict[str, Any]) -> Json:
    answer = directory.post(photo("hopper"), headers={"X-RPC-EXTERNAL-ID": "A-1", **headers})
    assert answer.status_code == 201, answer.text
    return dict(answer.json()["identifiedFaces"][0])


@pytest.mark.parametrize("coding", ["utf-8", "latin-1"])
def test_requests_header_bytes_are_utf_8_if_valid_else_latin_1(directory: Directory, coding: str) -> None:
    """Header bytes are UTF-8 if valid, else latin-1."""
    headers = {**directory.headers, "X-RPC-PERSON-NAME": "Zoë Ångström".encode(coding), "X-RPC-EXTERNAL-ID": b"Z-1"}
    answer = raw(directory.account.server.base_url, "POST", "/people", headers, photo("hopper"))
    assert answer.status == 201
    assert answer.json()["identifiedFaces"][0]["name"] == "Zoë Ångström"
    assert directory.people()[0]["name"] == "Zoë Ångström"


def test_requests_base64_headers_win_over_the_plain_ones(directory: Directory) -> None:
    """`X-RPC-PERSON-NAME-BASE64` and `X-RPC-EXTERNAL-ID-BASE64` win over the plain ones."""
    face = _named(
        directory,
        {
            "X-RPC-PERSON-NAME": "plain",
            "X-RPC-PERSON-NAME-BASE64": base64.b64encode("日本 太郎".encode()).decode(),
            "X-RPC-EXTERNAL-ID-BASE64": base64.b64encode("ключ/1".encode()).decode(),
        },
    )
    assert (face["name"], face["personExternalId"]) == ("日本 太郎", "ключ/1")


@pytest.mark.parametrize("header", ["X-RPC-PERSON-NAME-BASE64", "X-RPC-EXTERNAL-ID-BASE64"])
def test_requests_bad_base64_is_400(directory: Directory, header: str) -> None:
    """Bad base64 -> `400`."""
    refused(directory.post(photo("hopper"), **ANNA, headers={header: "%%%"}), 400, "header-invalid")


@pytest.mark.parametrize("header", ["X-RPC-PERSON-NAME", "X-RPC-EXTERNAL-ID"])
def test_requests_an_empty_name_is_a_missing_one(directory: Directory, header: str) -> None:
    """Empty = missing."""
    refused(directory.post(photo("hopper"), **ANNA, headers={header: ""}), 400, "person-headers-required")


@pytest.mark.parametrize("header", ["X-RPC-PERSON-NAME", "X-RPC-EXTERNAL-ID"])
def test_requests_names_have_at_most_1000_characters(directory: Directory, header: str) -> None:
    """At most 1,000 characters."""
    refused(directory.post(photo("hopper"), **ANNA, headers={header: "n" * 1001}), 400, "header-invalid")
    assert directory.post(photo("hopper"), **ANNA, headers={header: "n" * 1000}).status_code == 201
