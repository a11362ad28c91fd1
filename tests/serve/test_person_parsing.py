"""What headers and JSON bodies say of a person."""

from __future__ import annotations

import base64
import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import BodyInvalid, HeaderInvalid
from pipeline.serve.handlers import description
from pipeline.serve.person_parsing import person_change, person_headers
from pipeline.serve.request_parsing import json_object
from pipeline.store.records import NO_CHANGE, PersonChange
from tests.serve.asking import make_request

DEEP: list[Any] = []
for _ in range(50):
    DEEP = [DEEP]


def b64(data: str | bytes) -> str:
    return base64.b64encode(data.encode() if isinstance(data, str) else data).decode()


@pytest.mark.parametrize(
    ("value", "name"), [(b64("李 Jürgen"), "李 Jürgen"), (b64("Jürgen".encode("latin-1")), "Jürgen"), ("", "plain")]
)
def test_base64_wins_over_the_plain_name(value: str, name: str) -> None:
    headers = {"X-RPC-PERSON-NAME": "plain", "X-RPC-PERSON-NAME-BASE64": value}
    assert person_headers(make_request(headers)) == PersonChange(name=name)


@pytest.mark.parametrize("value", ["====", "QQ", b64("a\0b"), b64("x" * 1001)])
@pytest.mark.parametrize("header", ["X-RPC-PERSON-NAME", "X-RPC-PERSON-FIRST-NAME", "X-RPC-GROUPS"])
def test_another_base64_text_is_refused(header: str, value: str) -> None:
    with pytest.raises(HeaderInvalid):
        person_headers(make_request({header: "plain", f"{header}-BASE64": value}))


PARAMETERS = {p["name"]: p["schema"] for p in description()["paths"]["/people"]["post"]["parameters"]}
CODED = [name for name in PARAMETERS if name.endswith("-BASE64")]
(CODED_SCHEMA,) = {json.dumps(PARAMETERS[name]): PARAMETERS[name] for name in CODED}.values()


@pytest.mark.slow
@given(value=st.from_regex(CODED_SCHEMA["pattern"], fullmatch=True))
def test_base64_that_the_description_allows_is_accepted(value: str) -> None:
    if len(value) <= CODED_SCHEMA["maxLength"]:
        for name in CODED:
            person_headers(make_request({name: value}))


@given(text=st.text(st.characters(exclude_categories=["Cc", "Cs"]), max_size=249))
def test_the_description_allows_the_base64_of_every_text(text: str) -> None:
    value = b64(text)
    assert re.fullmatch(CODED_SCHEMA["pattern"], value)
    assert len(value) <= CODED_SCHEMA["maxLength"]


@given(value=st.from_regex(PARAMETERS["X-RPC-PERSON-TAGS"]["pattern"], fullmatch=True, alphabet=st.sampled_from("a ,")))
def test_tags_that_the_description_allows_are_accepted(value: str) -> None:
    person_headers(make_request({"X-RPC-PERSON-TAGS": value[:1000]}))


@pytest.mark.parametrize(
    ("sent", "change"),
    [
        ({"FIRST-NAME": "Grace", "LAST-NAME": "Hopper"}, PersonChange("Grace Hopper", "Grace", "Hopper", joined=True)),
        ({"FIRST-NAME-BASE64": b64("Ada")}, PersonChange("Ada", "Ada", joined=True)),
        ({"LAST-NAME-BASE64": b64("Ng"), "NAME": "A. Ng"}, PersonChange("A. Ng", None, "Ng")),
        ({"TAGS": " vip, ,north,"}, PersonChange(tags=("vip", "north"))),
        ({"TAGS": " , "}, NO_CHANGE),
    ],
)
def test_the_names_and_tags_of_headers(sent: dict[str, str], change: PersonChange) -> None:
    assert person_headers(make_request({f"X-RPC-PERSON-{name}": value for name, value in sent.items()})) == change


def test_headers_that_are_kept_as_they_are() -> None:
    sent = {"PERSON-TYPE": "visitor", "GENDER": "female", "AGE": "36", "DATE-OF-BIRTH": "1906-12-09", "GROUPS": "a, b"}
    assert person_headers(make_request({f"X-RPC-{name}": value for name, value in sent.items()})).metadata == {
        "personType": "visitor",
        "gender": "female",
        "age": "36",
        "dateOfBirth": "1906-12-09",
        "groups": ["a", "b"],
    }


def test_too_many_tags_are_refused() -> None:
    with pytest.raises(HeaderInvalid):
        person_headers(make_request({"X-RPC-PERSON-TAGS": ",".join("x" * 101)}))


def test_what_a_put_changes() -> None:
    body = {"name": " New ", "externalId": "", "firstName": "N", "tags": ["a", "b"], "ignore": True}
    assert person_change(body) == PersonChange("New", "N", None, "", ("a", "b"), True)
    assert person_change({}) == NO_CHANGE
    assert person_change({"personExternalId": "e"}) == PersonChange(external_id="e")


def test_blank_and_empty_are_removed() -> None:
    body = dict.fromkeys(["name", "firstName", "lastName", "externalId", "tags", "ignore", "moniker"], "")
    assert person_change(body) == PersonChange("", "", "", "", (), False, {"moniker": None})
    assert person_change({"a": [], "b": {}, "c": "  ", "tags": []}) == PersonChange(
        tags=(), metadata={"a": None, "b": None, "c": None}
    )


def test_null_removes_a_further_field_and_leaves_the_others() -> None:
    body = dict.fromkeys(["name", "firstName", "lastName", "externalId", "tags", "ignore", "moniker"])
    assert person_change(body) == PersonChange(metadata={"moniker": None})


def test_any_other_field_is_kept_and_computed_ones_mean_nothing() -> None:
    body = {"shoeSize": 43.5, "deep": {"a": [1, None, ""]}, "off": False, "zero": 0, "occurrence": 5, "imageURI": "x"}
    kept = {"shoeSize": 43.5, "deep": {"a": [1, None, ""]}, "off": False, "zero": 0}
    assert person_change(body) == PersonChange(metadata=kept)
    assert person_change({"personIds": [], "a": 1}, ("personIds",)) == PersonChange(metadata={"a": 1})


@pytest.mark.parametrize(
    "body",
    [
        {"name": ["a"]},
        {"name": "x" * 1001},
        {"name": "\ud800"},
        {"lastName": 5},
        {"externalId": "a\0"},
        {"tags": [1]},
        {"tags": ["x"] * 101},
        {"ignore": "true"},
        {"ignore": 1},
        {"a": float("inf")},
        {"a": "\ud800"},
        {"\udfff": 1},
        {"a": DEEP},
    ],
    ids=ascii,
)
def test_another_change_is_refused(body: dict[str, Any]) -> None:
    with pytest.raises(BodyInvalid):
        person_change(body)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)


@given(body=st.dictionaries(st.sampled_from(["name", "tags", "ignore", "externalId", "x"]), json_values))
def test_no_body_is_an_unexpected_error(body: dict[str, Any]) -> None:
    try:
        change = person_change(json_object(json.dumps(body).encode()))
    except BodyInvalid:
        return
    json.dumps(dict(change.metadata), allow_nan=False).encode()
