"""decisions.md, "Requests": threshold, body, order of checks, query, overload."""

from __future__ import annotations

import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.serve.conformance.client import Account, Directory, raw
from tests.serve.conformance.conftest import Gallery
from tests.serve.conformance.photos import (
    huge_png,
    other,
    photo,
)

ANNA: dict[str, Any] = {"name": "Anna", "external_id": "A-1"}
MIB = 2**20


def refused(answer: httpx.Response, status: int, reason: str) -> None:
    assert answer.status_code == status, answer.text
    assert answer.json()["errorReason"] == reason


# X-RPC-FACES-GROUPING-THRESHOLD


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "-1", "-1e-9", "4.0000001", "5", "abc", "0,54", "0.5 4"])
def test_requests_threshold_out_of_range_is_400(directory: Directory, value: str) -> None:
    """T: finite, in [0, 4], else `400`."""
    refused(directory.post(photo("hopper"), **ANNA, threshold=value), 400, "header-invalid")
    assert directory.people() == []


@pytest.mark.parametrize("value", ["0", "4", "0.0", "5e-1", "4.0"])
def test_requests_threshold_in_range(gallery: Gallery, value: str) -> None:
    assert len(gallery.directory.recognise(photo("hopper"), threshold=value)) == 1


def test_requests_empty_threshold_is_an_absent_one(gallery: Gallery) -> None:
    """Empty = absent."""
    assert gallery.directory.recognise(other("hopper"), threshold="") == gallery.directory.recognise(other("hopper"))


# Body


@pytest.mark.parametrize(
    "body",
    [b"", b"Remember to scan the album.\n", photo("hopper")[:2000], b"\x89PNG\r\n\x1a\n", photo("hopper")[2:]],
    ids=["empty", "text", "truncated", "magic only", "no magic"],
)
def test_requests_a_body_that_is_no_image_is_400(directory: Directory, body: bytes) -> None:
    """Empty, not an image, truncated beyond decoding -> `400`."""
    assert directory.post(body, **ANNA).status_code == 400
    assert directory.people() == []


def test_requests_a_body_over_the_size_limit_is_413(directory: Directory) -> None:
    """Over the size limit (default 32 MiB) -> `413`."""
    assert directory.post(photo("hopper") + bytes(33 * MIB), **ANNA).status_code == 413


def test_requests_a_chunked_body_over_the_size_limit_is_413(directory: Directory) -> None:
    """... without a length that says so, too."""
    headers = {**directory.headers, "Content-Type": "application/octet-stream"}
    chunks = (bytes(MIB) for _ in range(33))
    try:
        answer = directory.account.server.http.post(
            f"{directory.account.server.base_url}/people", content=chunks, headers=headers
        )
    except httpx.WriteError:
        pytest.skip("the server closed the connection before the client had sent everything")
    assert answer.status_code == 413


def test_requests_a_chunked_body_is_taken(gallery: Gallery) -> None:
    """Chunked without length."""
    image = other("hopper")
    chunks = (image[start : start + 5000] for start in range(0, len(image), 5000))
    answer = gallery.directory.request("POST", "/people", params={"insert": "false", "update": "false"}, content=chunks)
    assert answer.status_code == 201
    assert answer.json()["identifiedFaces"][0]["personId"] == gallery.hopper["personId"]


def test_requests_an_image_over_the_pixel_limit_is_413(directory: Directory) -> None:
    """Over the pixel limit (default 100 MP, checked before decoding) -> `413`: a small file that says 2,500 MP."""
    start = time.monotonic()
    assert directory.post(huge_png(), **ANNA).status_code == 413
    assert time.monotonic() - start < 10


@pytest.mark.parametrize(
    "kind", [None, "application/octet-stream", "application/octet-stream; charset=binary", "image/jpeg", "IMAGE/PNG"]
)
def test_requests_content_types(gallery: Gallery, kind: str | None) -> None:
    """`Content-Type` missing = octet-stream, parameters ignored; `image/*`."""
    answer = gallery.directory.post(other("hopper"), insert="false", update="false", headers={"Content-Type": kind})
    assert answer.status_code == 201


@pytest.mark.parametrize("kind", ["text/plain", "application/json", "multipart/form-data; boundary=x", "video/mp4"])
def test_requests_other_content_types_are_415(directory: Directory, kind: str) -> None:
    """Other than `application/octet-stream` and `image/*` -> `415`."""
    refused(directory.post(photo("hopper"), **ANNA, headers={"Content-Type": kind}), 415, "media-type-unsupported")


# Order of checks


def test_requests_order_of_checks(directory: Directory) -> None:
    """401, directory 400, parameters 400, 415, 413, decoding 400: each wrong thing taken away, the next one shows."""
    wrong: dict[str, Any] = {
        "X-RPC-AUTHORIZATION": "nobody-at-all:x",
        "X-RPC-DIRECTORY": "..",
        "X-RPC-FACES-GROUPING-THRESHOLD": "abc",
        "Content-Type": "text/plain",
    }
    expected = [(401, "unauthorized"), (400, "directory-invalid"), (400, "header-invalid")]
    expected.append((415, "media-type-unsupported"))
    for status, reason in expected:
        answer = directory.post(bytes(33 * MIB), headers=dict(wrong))
        refused(answer, status, reason)
        wrong.pop(next(iter(wrong)))
    assert directory.post(bytes(33 * MIB)).status_code == 413
    assert directory.post(b"no image").status_code == 400


def test_requests_an_uploading_client_sees_the_status_and_not_a_reset(account: Account) -> None:
    """Small bodies are drained first."""
    headers = {"X-RPC-DIRECTORY": "main", "X-RPC-AUTHORIZATION": f"nobody-{uuid.uuid4().hex}:x"}
    assert raw(account.server.base_url, "POST", "/people", headers, bytes(4 * MIB)).status == 401


# Query


@pytest.mark.parametrize("value", ["true", "TRUE", "True", "false", "FALSE"])
def test_requests_booleans_in_any_case(directory: Directory, value: str) -> None:
    """`true`/`false` in any case."""
    (face,) = directory.faces(photo("hopper"), **ANNA, insert=value)
    assert ("newId" in face) == (value.lower() == "true")


@pytest.mark.parametrize("value", ["1", "yes", "", "0", "truee", "null"])
@pytest.mark.parametrize("parameter", ["insert", "update", "insert_all", "largest-only"])
def test_requests_other_booleans_are_400(directory: Directory, parameter: str, value: Any) -> None:
    """... else `400`."""
    refused(directory.post(photo("hopper"), **ANNA, **{parameter: value}), 400, "parameter-invalid")


@pytest.mark.parametrize("value", ["-1", "1001", "1.5", "abc", "", "1e2", "nan"])
def test_requests_similar_limit_is_a_whole_number_up_to_1000(directory: Directory, value: str) -> None:
    """`similar_limit` an integer in [0, 1000], else `400`."""
    refused(directory.post(photo("hopper"), **ANNA, similar_limit=value), 400, "parameter-invalid")


def test_requests_similar_limit_may_be_1000(gallery: Gallery) -> None:
    assert len(gallery.directory.recognise(other("hopper"), similar_limit=1000)[0]["similar"]) == 2


def test_requests_of_a_repeated_parameter_the_last_wins(gallery: Gallery) -> None:
    """A repeated known parameter: the last wins."""
    answer = gallery.directory.request(
        "POST",
        "/people?insert=true&update=false&insert=false&similar_limit=abc&similar_limit=1",
        content=other("hopper"),
    )
    assert answer.status_code == 201
    assert len(answer.json()["identifiedFaces"][0]["similar"]) == 1


def test_requests_unknown_parameters_are_ignored(gallery: Gallery) -> None:
    assert len(gallery.directory.recognise(other("hopper"), anything="at-all", **{"detect-age": "x"})) == 1


def test_requests_a_trailing_slash_is_the_same_route(gallery: Gallery) -> None:
    """A trailing slash is the same route, without redirect."""
    person_id = gallery.hopper["personId"]
    guid = gallery.directory.record(person_id)["imageURI"].rsplit("/", 1)[1]
    paths = ["/people", "/rootpeople", f"/people/{person_id}", f"/person/{person_id}/face", f"/obj/{guid}"]
    for path in [*paths, "/people/external/N-1906"]:
        plain, slash = gallery.directory.get(path), gallery.directory.get(path + "/")
        assert slash.status_code == plain.status_code == 200
        assert slash.content == plain.content
    answer = gallery.directory.request(
        "POST", "/people/", params={"insert": "false", "update": "false"}, content=other("hopper")
    )
    assert answer.status_code == 201


# Overload


def test_requests_overload_is_503_with_retry_after(cloud_process: Any) -> None:
    """A bounded queue; full -> `503` with `Retry-After`, and the server goes on. (This server's queue is short.)"""
    account: Account = cloud_process.account("bob")
    where = account.directory("main")

    def ask(number: int) -> httpx.Response:
        return where.post(other("hopper", number % 7), insert="false", update="false")

    with ThreadPoolExecutor(40) as threads:
        answers = list(threads.map(ask, range(120)))
    assert {answer.status_code for answer in answers} == {201, 503}
    for answer in answers:
        if answer.status_code == 503:
            assert int(answer.headers["Retry-After"]) >= 1
            assert answer.json()["errorReason"] == "overloaded"
    assert ask(0).status_code == 201
