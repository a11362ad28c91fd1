"""The numbers, names and error texts in openapi.yaml are those of the server."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

import pytest

from pipeline.config import EVERYBODY, THRESHOLD_RULE
from pipeline.errors import (
    BodyTimeout,
    BodyTooLarge,
    ChangesUnknown,
    ExternalIdTaken,
    FacepipeError,
    HeaderInvalid,
    HostUnknown,
    MediaTypeUnsupported,
    ObjectReplaced,
    Overloaded,
    PersonUnknown,
    StoreFull,
    TooManyAttempts,
    TooManyDirectories,
    Unauthorized,
)
from pipeline.serve.handlers import description
from pipeline.serve.listing import EQUALITIES, MAX_PATTERN, PEOPLE_COUNT, ROOTS_COUNT, SORT_ORDERS
from pipeline.serve.person_parsing import FURTHER_HEADERS, MAX_TAGS
from pipeline.serve.protocol import MAX_HEADER_BYTES
from pipeline.serve.request_parsing import MAX_DAYS, MAX_MERGED, MAX_SIMILAR, MAX_SIZE_PX, MAX_WHOLE
from pipeline.serve.responses import UNEXPECTED
from pipeline.serve.serializer import LANDMARK_NAMES
from pipeline.texts import MAX_TEXT

DOCUMENT = description()
SCHEMAS = DOCUMENT["components"]["schemas"]
PUBLIC: list[tuple[int, FacepipeError]] = [
    (400, HeaderInvalid(name="X-RPC-FACES-GROUPING-THRESHOLD", expected=THRESHOLD_RULE)),
    (401, Unauthorized()),
    (404, PersonUnknown()),
    (408, BodyTimeout(timeout_s=30, bytes_per_s=1024)),
    (409, ExternalIdTaken()),
    (410, ObjectReplaced()),
    (410, ChangesUnknown(since=0, start=32)),
    (413, BodyTooLarge(limit_bytes=33_554_432)),
    (415, MediaTypeUnsupported(expected="application/octet-stream or image/*")),
    (421, HostUnknown()),
    (429, TooManyAttempts(retry_after_s=42)),
    (503, Overloaded(retry_after_s=1)),
]


def schemas(verb: str, path: str) -> dict[str, dict[str, Any]]:
    return {each["name"]: each["schema"] for each in DOCUMENT["paths"][path][verb]["parameters"]}


def examples(status: int) -> list[dict[str, Any]]:
    answers = [
        operation["responses"].get(str(status))
        for operations in DOCUMENT["paths"].values()
        for operation in operations.values()
    ]
    return [answer["content"]["application/json"]["example"] for answer in answers if answer]


@pytest.mark.parametrize("status", sorted({status for status, _ in PUBLIC}))
def test_an_error_has_its_own_name_and_text(status: int) -> None:
    errors = {(error.code, str(error)) for known, error in PUBLIC if known == status}
    assert {(each["errorReason"], each["message"]) for each in examples(status)} == errors


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (403, TooManyDirectories(account="", count=0, limit=0).code),
        (500, UNEXPECTED),
        (507, StoreFull(path="", detail="").code),
    ],
)
def test_an_error_whose_text_is_hidden_has_its_own_name(status: int, reason: str) -> None:
    assert {each["errorReason"] for each in examples(status)} == {reason}


def test_too_large_headers_are_told_with_the_limit() -> None:
    assert {each["message"] for each in examples(431)} == {f"The headers are larger than {MAX_HEADER_BYTES} bytes."}


def test_an_error_has_the_phrase_of_its_status() -> None:
    statuses = [status.value for status in HTTPStatus if status.value >= 400]
    told = {(status, each["status"], each["error"]) for status in statuses for each in examples(status)}
    assert len(told) == 15
    assert all(status == shown and phrase == HTTPStatus(status).phrase for status, shown, phrase in told)


def test_the_bounds_of_a_post() -> None:
    post = schemas("post", "/people")
    assert post["X-RPC-FACES-GROUPING-THRESHOLD"]["maximum"] == EVERYBODY
    assert post["similar_limit"]["maximum"] == MAX_SIMILAR
    assert post["min-size"]["maximum"] == post["X-RPC-MIN-SIZE"]["maximum"] == MAX_SIZE_PX
    assert post["update-if-older-than"]["maximum"] == MAX_DAYS


@pytest.mark.parametrize(("verb", "path"), [("post", "/people"), ("put", "/people/{personId}")])
def test_the_bounds_of_a_person(verb: str, path: str) -> None:
    headers = schemas(verb, path)
    assert headers["X-RPC-PERSON-NAME"]["maxLength"] == headers["X-RPC-PERSON-TAGS"]["maxLength"] == MAX_TEXT
    assert headers["X-RPC-PERSON-NAME-BASE64"]["maxLength"] == MAX_TEXT // 3 * 4
    assert f"{{0,{MAX_TAGS - 1}}}" in headers["X-RPC-PERSON-TAGS"]["pattern"]
    assert set(FURTHER_HEADERS) <= set(headers)


@pytest.mark.parametrize("name", ["PersonChange", "Merge"])
def test_the_bounds_of_a_body(name: str) -> None:
    fields = SCHEMAS[name]["properties"]
    assert {fields[key]["maxLength"] for key in ("name", "firstName", "lastName", "externalId")} == {MAX_TEXT}
    assert fields["tags"]["maxItems"] == MAX_TAGS
    assert fields["tags"]["items"]["maxLength"] == MAX_TEXT


def test_the_number_of_records_that_may_be_merged() -> None:
    for name in ("Merge", "PersonIds"):
        assert SCHEMAS[name]["properties"]["personIds"]["maxItems"] == MAX_MERGED


@pytest.mark.parametrize(("path", "count"), [("/people", PEOPLE_COUNT), ("/rootpeople", ROOTS_COUNT)])
def test_the_bounds_of_a_listing(path: str, count: int) -> None:
    filters = schemas("get", path)
    assert filters["count"] == {"type": "integer", "minimum": 0, "maximum": MAX_WHOLE, "default": count}
    assert filters["start-index"]["maximum"] == MAX_WHOLE
    assert filters["name-pattern"]["maxLength"] == MAX_PATTERN
    assert filters["sort-order"]["enum"] == list(SORT_ORDERS)
    assert set(EQUALITIES) <= set(filters)


def test_the_landmarks_of_a_face() -> None:
    landmarks = SCHEMAS["Attributes"]["properties"]["landmarks"]
    assert list(landmarks["properties"]) == landmarks["required"] == list(LANDMARK_NAMES)
