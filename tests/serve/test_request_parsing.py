"""Headers, parameters and JSON bodies: what is taken and refused beyond the cases of the conformance tests."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import (
    BodyInvalid,
    DirectoryRequired,
    FacepipeError,
    HeaderInvalid,
    ParameterInvalid,
    PersonUnknown,
)
from pipeline.people.types import PostRequest
from pipeline.serve.handlers import EXTERNAL_PREFIX
from pipeline.serve.request_parsing import (
    checked_person_id,
    directory_name,
    json_object,
    person_ids,
    post_request,
    rest_of_path,
    threshold,
)
from pipeline.store.records import NO_CHANGE, PersonChange
from tests.serve.asking import make_request

ID = "8a1f0a5e-1c34-4f0e-9b8e-2b7d9f6d3a10"
T = "X-RPC-FACES-GROUPING-THRESHOLD"


@pytest.mark.parametrize("headers", [{}, {"X-RPC-DIRECTORY": ""}, {"X-RPC-DIRECTORY": "  "}])
def test_a_missing_directory_is_refused(headers: dict[str, str]) -> None:
    with pytest.raises(DirectoryRequired):
        directory_name(make_request(headers))


@pytest.mark.parametrize(
    ("text", "number"),
    [("0", 0), ("4", 4), ("+1.", 1), (".5", 0.5), ("4e-1", 0.4), ("-0", 0), ("", None), (" ", None)],
)
def test_a_threshold_is_taken(text: str, number: float | None) -> None:
    assert threshold(make_request({T: text})) == number


@pytest.mark.parametrize("text", ["NaN", "1e999", "1_0", "٤", "0x1"])
def test_what_float_may_take_and_the_contract_does_not_is_refused(text: str) -> None:
    with pytest.raises(HeaderInvalid):
        threshold(make_request({T: text}))


def test_the_parameters_of_a_post() -> None:
    assert post_request(make_request(), NO_CHANGE) == PostRequest()
    query = (
        "insert=FALSE&update=false&similar_limit=7&min-cpq=0&min-fsq=-1&min-fcq=.5&insert_all=True"
        "&largest-only=true&min-size=40.5&max-occlusion=0.2&unheard=of"
    )
    person = PersonChange(name="n", external_id="e", first_name="f")
    assert post_request(make_request({T: "1"}, query), person) == PostRequest(
        name="n",
        external_id="e",
        details=PersonChange(first_name="f"),
        threshold=1,
        min_cpq=0,
        min_fsq=None,
        min_fcq=0.5,
        insert=False,
        update=False,
        insert_all=True,
        largest_only=True,
        min_size_px=40.5,
        similar_limit=7,
    )


@pytest.mark.parametrize(
    "query", ["largest-only=%00", "similar_limit=99999999999999999999999", "min-size=-2", "min-size=inf"]
)
def test_another_value_of_a_parameter_is_refused(query: str) -> None:
    with pytest.raises(ParameterInvalid):
        post_request(make_request(query=query), NO_CHANGE)


@given(query=st.binary(max_size=60))
def test_no_query_is_an_unexpected_error(query: bytes) -> None:
    try:
        post_request(make_request(query=query), NO_CHANGE)
    except FacepipeError as error:
        assert error.http_status == 400  # noqa: PT017  most queries are fine


def test_a_person_id_is_a_uuid() -> None:
    assert checked_person_id(ID.upper()) == ID
    for text in ("", "external", "..", ID + "\n", "{" + ID + "}", ID.replace("-", ""), ID[:-1] + "g"):
        with pytest.raises(PersonUnknown):
            checked_person_id(text)


@pytest.mark.parametrize(
    ("sent", "external_id"),
    [
        ("a", "a"),
        ("a%2Fb", "a/b"),
        ("a%2F", "a/"),
        ("a/", "a"),
        ("a/b", "a/b"),
        ("..%2F..%2Fx", "../../x"),
        ("%FC", "ü"),
    ],
)
def test_an_external_id_in_a_path(sent: str, external_id: str) -> None:
    assert rest_of_path(make_request(path=EXTERNAL_PREFIX + sent), EXTERNAL_PREFIX) == external_id


@pytest.mark.parametrize(
    "data",
    [b"", b"[]", b"5", b"null", b"{", b'{"a": NaN}', b"\xff\xfe{", b"[" * 10**5, b'{"a": 1' + b"0" * 5000 + b"}"],
)
def test_what_is_no_json_object_is_refused(data: bytes) -> None:
    with pytest.raises(BodyInvalid):
        json_object(data)


def test_the_ids_of_a_merge() -> None:
    other = ID.replace("8", "9")
    assert person_ids({"personIds": [ID, other, ID.upper()]}) == [ID, other]


@pytest.mark.parametrize("given_ids", [None, [], "x", {}, [5], [ID] * 1001])
def test_another_shape_of_ids_is_refused(given_ids: object) -> None:
    with pytest.raises(BodyInvalid):
        person_ids({"personIds": given_ids})
