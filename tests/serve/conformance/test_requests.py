"""Requests and errors: the decisions about threshold, body, order of checks, query, overload, error bodies and the
routes without credentials."""

from __future__ import annotations

import http.client
import itertools
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from tests.serve.conformance.client import ANNA, READ_ONLY, UNKNOWN_ID, Account, Directory, assert_error
from tests.serve.conformance.conftest import Gallery
from tests.serve.conformance.launch import Launched
from tests.serve.conformance.photos import huge_png, other, photo, retouched

MIB = 2**20


# X-RPC-FACES-GROUPING-THRESHOLD


@pytest.mark.parametrize(
    "value", ["nan", "inf", "-inf", "-1", "-1e-9", "3.990001", "3.9999999", "4.0000001", "5", "abc", "0,54", "0.5 4"]
)
def test_requests_threshold_out_of_range_is_400(directory: Directory, value: str) -> None:
    """T: finite, in [0, 3.99] or exactly 4, else `400`."""
    assert_error(directory.post(photo("hopper"), **ANNA, threshold=value), 400, "header-invalid")
    assert directory.people() == []


@pytest.mark.parametrize("value", ["0", "4", "0.0", "5e-1", "3.99", "4.0"])
def test_requests_threshold_in_range(gallery: Gallery, value: str) -> None:
    assert len(gallery.directory.recognise(photo("hopper"), threshold=value)) == 1


def test_requests_empty_threshold_is_an_absent_one(gallery: Gallery) -> None:
    """Empty = absent."""
    assert gallery.directory.recognise(other("hopper"), threshold="") == gallery.directory.recognise(other("hopper"))


def test_parameters_an_empty_value_is_an_absent_one(gallery: Gallery) -> None:
    """An empty value is an absent one, everywhere: of parameters, and of headers."""
    directory = gallery.directory
    names = (
        "insert_all similar_limit min-cpq min-fsq min-fcq min-size closest-only-x closest-only-y largest-only"
        " larger-than update-person-id merge-with update-if-lower-quality update-if-older-than provide-face-id"
    )
    headers = ("X-RPC-MIN-SIZE", "X-RPC-ROOT-PERSON-ID", "X-RPC-PERSON-NAME-BASE64", "X-RPC-ACCESS-LEVEL")
    answers = [
        directory.post(other("hopper"), **READ_ONLY, **queries, headers=dict.fromkeys(sent, "")).json()
        for queries, sent in (({}, ()), (dict.fromkeys(names.split(), ""), headers))
    ]
    assert answers[0]["identifiedFaces"] == answers[1]["identifiedFaces"]
    assert answers[1]["identifiedFaces"][0]["personId"] == gallery.hopper["personId"]
    filters = "startIndexState start-index count sort sort-order name-pattern external-id short-id first-name zones"
    for listing in ("/people", "/rootpeople"):
        assert directory.get(listing, **dict.fromkeys(filters.split(), "")).json() == directory.get(listing).json()


@pytest.mark.parametrize("name", ["X-RPC-FACES-DETECT-THRESHOLD", "X-RPC-LIVENESS-THRESHOLD", "X-RPC-MAX-OCCLUSION"])
def test_parameters_a_guard_is_refused_if_the_call_may_write(directory: Directory, name: str) -> None:
    """`400` and nothing stored, by one rule for query and header; harmless if the call can write nothing."""
    for options in ({"headers": {name: "0.5"}}, {name.lower().removeprefix("x-rpc-"): "0.5"}):
        assert_error(directory.post(photo("hopper"), **ANNA, **options), 400, "parameter-unsupported")
        assert directory.post(photo("hopper"), **READ_ONLY, **options).status_code == 201
    assert directory.people() == []


def test_parameters_the_query_has_the_least_size_unless_it_is_absent_or_minus_1(directory: Directory) -> None:
    """The header `X-RPC-MIN-SIZE` counts, unless the query has a size."""
    header, queries = {"X-RPC-MIN-SIZE": "5000"}, ({}, {"min-size": ""}, {"min-size": "-1"}, {"min-size": "0"})
    inserted = ["newId" in directory.faces(photo("hopper"), **ANNA, headers=header, **query)[0] for query in queries]
    assert inserted == [False, False, False, True]


def test_requests_authorization_in_place_of_the_directory_is_told(account: Account) -> None:
    """An old client sends the name of the directory as `Authorization`: the message of the 400 says so."""
    directory = account.directory("c-empty")
    missing = directory.request("GET", "/people", headers={"X-RPC-DIRECTORY": None})
    old = directory.request("GET", "/people", headers={"X-RPC-DIRECTORY": None, "Authorization": "main-1906"})
    for answer in (missing, old):
        assert_error(answer, 400, "directory-required")
        assert "X-RPC-DIRECTORY" in answer.json()["message"]
        assert "main-1906" not in answer.text
        assert ("Authorization" in answer.json()["message"]) is (answer is old)


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
    """The limit also holds for a body without Content-Length."""
    try:
        answer = directory.post(bytes(MIB) for _ in range(33))
    except httpx.WriteError:
        pytest.skip("the server closed the connection before the client had sent everything")
    assert answer.status_code == 413


def test_requests_a_chunked_body_is_accepted(gallery: Gallery) -> None:
    image = other("hopper")
    chunks = (image[start : start + 5000] for start in range(0, len(image), 5000))
    answer = gallery.directory.post(chunks, **READ_ONLY)
    assert answer.status_code == 201
    assert answer.json()["identifiedFaces"][0]["personId"] == gallery.hopper["personId"]


def test_requests_an_image_over_the_pixel_limit_is_413(directory: Directory) -> None:
    """Over the pixel limit (default 100 MP, checked before decoding) -> `413`: a small file that claims 2,500 MP."""
    start = time.monotonic()
    assert directory.post(huge_png(), **ANNA).status_code == 413
    assert time.monotonic() - start < 10


@pytest.mark.parametrize(
    "kind", [None, "application/octet-stream", "application/octet-stream; charset=binary", "image/jpeg", "IMAGE/PNG"]
)
def test_4_1_body_is_the_raw_image_file(gallery: Gallery, kind: str | None) -> None:
    """Content-Type application/octet-stream: the body is the raw image file (binary). [decided] `Content-Type`
    missing = octet-stream, parameters ignored; `image/*`."""
    answer = gallery.directory.post(other("hopper"), **READ_ONLY, headers={"Content-Type": kind})
    assert answer.status_code == 201
    assert answer.json()["identifiedFaces"][0]["personId"] == gallery.hopper["personId"]


@pytest.mark.parametrize("kind", ["text/plain", "application/json", "multipart/form-data; boundary=x", "video/mp4"])
def test_requests_other_content_types_are_415(directory: Directory, kind: str) -> None:
    """Other than `application/octet-stream` and `image/*` -> `415`."""
    assert_error(directory.post(photo("hopper"), **ANNA, headers={"Content-Type": kind}), 415, "media-type-unsupported")


def test_requests_curls_default_content_type_is_decided_by_the_body(gallery: Gallery) -> None:
    """`application/x-www-form-urlencoded` is taken as octet-stream where the body's first bytes are an image's (decided
    after 413), else `415`."""
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    answer = gallery.directory.post(other("hopper"), **READ_ONLY, headers=form)
    assert answer.json()["identifiedFaces"][0]["personId"] == gallery.hopper["personId"]
    for body, status, reason in (
        (b"name=Grace", 415, "media-type-unsupported"),
        (b"", 415, "media-type-unsupported"),
        (bytes(33 * MIB), 413, "body-too-large"),
    ):
        assert_error(gallery.directory.post(body, headers=form), status, reason)


@pytest.mark.parametrize(("coding", "status"), [("identity", 201), ("gzip", 415), ("br", 415)])
def test_requests_a_content_encoding_is_415(gallery: Gallery, coding: str, status: int) -> None:
    """A `Content-Encoding` other than `identity` -> `415`."""
    answer = gallery.directory.post(other("hopper"), **READ_ONLY, headers={"Content-Encoding": coding})
    assert answer.status_code == status


# Order of checks


def test_requests_order_of_checks(directory: Directory) -> None:
    """401, directory 400, parameters 400, 415, 413, decoding 400: removing one mistake reveals the next."""
    mistakes = [
        ("X-RPC-AUTHORIZATION", "nobody-at-all:x", 401, "unauthorized"),
        ("X-RPC-DIRECTORY", "..", 400, "directory-invalid"),
        ("X-RPC-FACES-GROUPING-THRESHOLD", "abc", 400, "header-invalid"),
        ("Content-Type", "text/plain", 415, "media-type-unsupported"),
    ]
    headers = {header: value for header, value, *_ in mistakes}
    for header, _, status, reason in mistakes:
        assert_error(directory.post(bytes(33 * MIB), headers=headers), status, reason)
        del headers[header]
    assert directory.post(bytes(33 * MIB)).status_code == 413
    assert directory.post(b"no image").status_code == 400


def test_requests_an_uploading_client_sees_the_status_and_not_a_reset(account: Account) -> None:
    """Small bodies are drained first. (Unlike httpx, http.client fails if it can't send everything.)"""
    address = urlsplit(account.server.base_url)
    connect = http.client.HTTPSConnection if address.scheme == "https" else http.client.HTTPConnection
    connection = connect(address.netloc, timeout=60)
    headers = {"X-RPC-DIRECTORY": "main", "X-RPC-AUTHORIZATION": f"nobody-{uuid.uuid4().hex}:x"}
    try:
        connection.request("POST", f"{address.path}/people", bytes(4 * MIB), headers)
        assert connection.getresponse().status == 401
    finally:
        connection.close()


# Query


@pytest.mark.parametrize(
    ("parameter", "value"),
    [
        *itertools.product(("insert", "update", "insert_all", "largest-only"), ("1", "yes", "0", "truee", "null")),
        *(("similar_limit", value) for value in ("-1", "1001", "1.5", "abc", "1e2", "nan")),
    ],
)
def test_requests_invalid_parameters_are_400(directory: Directory, parameter: str, value: Any) -> None:
    """`true`/`false`, else `400`; `similar_limit` an integer in [0, 1000], else `400`."""
    assert_error(directory.post(photo("hopper"), **ANNA, **{parameter: value}), 400, "parameter-invalid")


def test_requests_of_a_repeated_parameter_the_last_wins(gallery: Gallery) -> None:
    """A repeated known parameter: the last wins."""
    query = "insert=true&update=false&insert=false&similar_limit=abc&similar_limit=1"
    answer = gallery.directory.request("POST", f"/people?{query}", content=other("hopper"))
    assert answer.status_code == 201
    assert len(answer.json()["identifiedFaces"][0]["similar"]) == 1


@pytest.mark.parametrize("query", [{"anything": "at-all"}, {"detect-age": "x"}, {"max-occlusion": "1"}])
def test_requests_unknown_parameters_are_ignored(gallery: Gallery, query: dict[str, Any]) -> None:
    """Unknown names are ignored, and so is `max-occlusion` where it asks for nothing."""
    assert len(gallery.directory.recognise(other("hopper"), **query)) == 1


def test_requests_a_trailing_slash_is_the_same_route(gallery: Gallery) -> None:
    """A trailing slash is the same route, without redirect."""
    person_id = gallery.hopper["personId"]
    guid = gallery.directory.record(person_id)["imageURI"].rsplit("/", 1)[1]
    paths = ["/people", "/rootpeople", f"/people/{person_id}", f"/person/{person_id}/face", f"/obj/{guid}"]
    for path in [*paths, "/people/external/N-1906"]:
        plain, slash = gallery.directory.get(path), gallery.directory.get(path + "/")
        assert slash.status_code == plain.status_code == 200
        assert slash.content == plain.content
    assert gallery.directory.request("POST", "/people/", params=READ_ONLY, content=other("hopper")).status_code == 201


# Overload


@pytest.mark.slow
def test_requests_overload_is_503_with_retry_after(cloud_process: Launched) -> None:
    """A bounded queue; full -> `503` with `Retry-After`, and the server continues. (This server's queue is short.)"""
    directory = cloud_process.account("bob").directory("main")

    def ask(number: int) -> httpx.Response:
        return directory.post(retouched("hopper", number), **READ_ONLY)  # one that the models have not seen

    with ThreadPoolExecutor(40) as threads:
        answers = list(threads.map(ask, range(120)))
    assert {answer.status_code for answer in answers} == {201, 503}
    for answer in answers:
        if answer.status_code == 503:
            assert int(answer.headers["Retry-After"]) >= 1
            assert_error(answer, 503, "overloaded")
    assert ask(0).status_code == 201


# Error body


@pytest.mark.parametrize(
    ("method", "path", "headers", "status"),
    [
        ("GET", "/people", {"X-RPC-AUTHORIZATION": None}, 401),
        ("GET", "/people", {"X-RPC-DIRECTORY": None}, 400),
        ("POST", "/people", {}, 400),
        ("POST", "/people?insert=maybe", {}, 400),
        ("POST", "/people", {"Content-Type": "text/plain"}, 415),
        ("GET", "/rootpeople?count=x", {}, 400),
        ("GET", f"/people/{UNKNOWN_ID}", {}, 404),
        ("GET", "/people/not-a-uuid", {}, 404),
        ("GET", "/people/external/nobody-has-this", {}, 404),
        ("PUT", f"/people/{UNKNOWN_ID}", {}, 404),
        ("DELETE", f"/people/{UNKNOWN_ID}", {}, 404),
        ("PUT", "/merge", {}, 400),
        ("PUT", "/unmerge", {}, 400),
        ("GET", f"/person/{UNKNOWN_ID}/face", {}, 404),
        ("GET", f"/obj/{UNKNOWN_ID}", {}, 404),
        ("GET", "/obj/imagekey", {}, 404),
        ("GET", "/imagekey", {}, 404),
        ("GET", "/nowhere?secret=1", {}, 404),
        ("DELETE", "/people", {}, 405),
        ("PATCH", f"/people/{UNKNOWN_ID}", {}, 405),
    ],
)
def test_requests_every_error_has_the_one_shape(
    account: Account, method: str, path: str, headers: dict[str, Any], status: int
) -> None:
    """`{"error", "errorReason", "message", "path", "status", "timestamp" (ms), "verb"}` for every error."""
    answer = account.directory("c-empty").request(method, path, headers=headers)
    body = answer.json()
    assert answer.status_code == status
    assert answer.headers["content-type"].startswith("application/json")
    assert set(body) == {"error", "errorReason", "message", "path", "status", "timestamp", "verb"}
    assert (body["status"], body["verb"], body["path"]) == (status, method, path.partition("?")[0])
    assert abs(body["timestamp"] - time.time() * 1000) < 3_600_000
    for key in ("error", "errorReason", "message"):
        assert isinstance(body[key], str)
        assert body[key]


def test_requests_messages_hold_no_query_path_or_credential(account: Account) -> None:
    """`message` never holds a file path, a query, a stack trace or a credential."""
    directory = account.directory("c-empty")
    for answer in (
        directory.post(photo("hopper"), insert="SECRET"),
        directory.post(photo("hopper"), threshold="SECRET"),
        directory.post(b"SECRET"),
        directory.get("/nowhere", SECRET="SECRET"),
        directory.request("GET", "/people", headers={"X-RPC-AUTHORIZATION": "SECRET:SECRET"}),
        directory.request("PUT", "/merge", content=b'{"personIds": "SECRET"'),
    ):
        assert answer.status_code >= 400
        for secret in ("SECRET", "Traceback", ".py", account.password):
            assert secret not in answer.text


@pytest.mark.parametrize(
    "path",
    [
        "/people/../healthz",
        "/people/..",
        "/people/%2e%2e",
        "/people/..%2f..%2fetc%2fpasswd",
        "/person/../face",
        "/person/..%2f..%2f/face",
        "/obj/..",
        "/obj/../../CURRENT",
        "/obj/..%2f..%2fCURRENT",
        "/obj/%00",
        "//people",
    ],
)
def test_requests_dots_in_a_path_lead_nowhere(account: Account, path: str) -> None:
    """`../` in every part of a path. The target is sent as it is, because httpx would normalise a URL."""
    prefix = urlsplit(account.server.base_url).path
    target = (prefix + path).encode()
    answer = account.directory("main").request("GET", "/", extensions={"target": target})
    assert answer.status_code in (400, 404)
    assert answer.json()["status"] == answer.status_code


# Routes without credentials


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics"])
def test_requests_health_needs_no_credentials(account: Account, path: str) -> None:
    """`/healthz`, `/readyz`, `/metrics` need no credentials."""
    assert account.server.http.get(account.server.base_url + path).status_code == 200


def test_requests_metrics_name_no_account_and_no_directory(gallery: Gallery) -> None:
    """`/metrics` (Prometheus, no account or directory labels)."""
    account = gallery.directory.account
    gallery.directory.recognise(other("hopper"))
    text = account.server.http.get(f"{account.server.base_url}/metrics").text
    assert "# TYPE" in text
    for secret in (gallery.directory.name, account.password, gallery.hopper["personId"], "Grace", f'"{account.user}"'):
        assert secret not in text


def test_requests_openapi_describes_the_routes(account: Account) -> None:
    """OpenAPI at `/docs`."""
    assert account.server.http.get(f"{account.server.base_url}/docs").status_code == 200
    paths = account.server.http.get(f"{account.server.base_url}/openapi.json").json()["paths"]
    assert {"/people", "/rootpeople", "/merge", "/unmerge"} <= set(paths)
    assert "201" in paths["/people"]["post"]["responses"]
