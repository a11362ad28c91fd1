"""The routes over a real socket, as far as the conformance tests do not prove them: the reasons of errors, HEAD, tags,
metrics, and the log."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from pipeline.extraction.extractor import BatchExtractor
from pipeline.serve.handlers import description
from tests.serve.conformance.photos import huge_png
from tests.serve.live import LiveServer, live_server

GRACE = {"X-RPC-PERSON-NAME": "Grace", "X-RPC-EXTERNAL-ID": "id/1"}
ERROR_KEYS = {"error", "errorReason", "message", "path", "status", "timestamp", "verb"}
NOBODY = str(uuid.UUID(int=1))
LONG_JSON = b"{" + b" " * 2**20 + b"}"


@pytest.fixture
def http(live: LiveServer) -> Iterator[httpx.Client]:
    """A client of an empty directory, which is emptied afterwards."""
    with live.http(f"d-{uuid.uuid4().hex[:8]}") as client:
        yield client
        for person in client.get("/people").json()["people"]:
            client.delete(f"/people/{person['personId']}")


@pytest.fixture
def grace(http: httpx.Client, hopper: bytes) -> str:
    """The id of a person inserted into the directory of `http`."""
    answer = http.post("/people", content=hopper, headers=GRACE)
    assert answer.status_code == 201
    person: str = answer.json()["identifiedFaces"][0]["personId"]
    return person


def refused(answer: httpx.Response, status: int, reason: str) -> dict[str, Any]:
    body: dict[str, Any] = answer.json()
    assert (answer.status_code, body["errorReason"], body["status"]) == (status, reason, status)
    assert set(body) == ERROR_KEYS
    assert answer.headers["Cache-Control"] == "no-store"
    assert ("WWW-Authenticate" in answer.headers) == (status == 401)
    assert body["verb"] == answer.request.method
    assert body["path"] == answer.request.url.raw_path.partition(b"?")[0].decode()
    assert abs(body["timestamp"] / 1000 - 1.7e9) < 1e9
    return body


@pytest.mark.parametrize("part", ["..%2F..%2Fetc", "%2e%2e", "..%5C..", "%00", "a" * 2000, "%FF%FE", NOBODY])
def test_paths_that_lead_elsewhere_are_not_found(http: httpx.Client, grace: str, part: str) -> None:
    for method, path in (
        ("GET", "/people/{}"),
        ("PUT", "/people/{}"),
        ("DELETE", "/people/{}"),
        ("GET", "/people/external/{}"),
        ("GET", "/person/{}/face"),
        ("GET", "/obj/{}"),
    ):
        answer = http.request(method, path.format(part))
        assert answer.status_code == 404, (method, path)
        assert set(answer.json()) == ERROR_KEYS


@pytest.mark.parametrize("path", ["/people", "/rootpeople", "/person/{}/face", "/people/{}", "/healthz", "/metrics"])
def test_head_is_get_without_a_body(http: httpx.Client, grace: str, path: str) -> None:
    head, get = http.head(path.format(grace)), http.get(path.format(grace))
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["Content-Type"] == get.headers["Content-Type"]
    if path != "/metrics":
        assert int(head.headers["Content-Length"]) == len(get.content)


def test_an_image_is_not_sent_again_to_a_client_that_has_it(http: httpx.Client, grace: str) -> None:
    guid = http.get(f"/people/{grace}").json()["people"][0]["imageURI"].rpartition("/")[2]
    for path in (f"/person/{grace}/face", f"/obj/{guid}"):
        image = http.get(path, headers={"If-None-Match": '"x"'})
        assert (image.status_code, image.headers["ETag"]) == (200, f'"{guid}"')
        assert image.headers["Content-Type"] == "image/jpeg"
        for condition in (f'"{guid}"', f'W/"{guid}"', f'"x", "{guid}"', "*"):
            again = http.get(path, headers={"If-None-Match": condition})
            assert (again.status_code, again.content, again.headers["ETag"]) == (304, b"", f'"{guid}"')


# Errors


@pytest.mark.parametrize(
    ("method", "path", "request_parts", "status", "reason"),
    [
        ("GET", "/", {}, 404, "route-unknown"),
        ("GET", "/nothing/here", {}, 404, "route-unknown"),
        ("GET", "/people", {"headers": {"X-RPC-AUTHORIZATION": "bob:wrong"}}, 401, "unauthorized"),
        ("POST", "/people", {"content": b""}, 400, "body-invalid"),
        ("POST", "/people", {"content": b"no image at all"}, 400, "image-unsupported"),
        ("POST", "/people", {"headers": {"Content-Type": "image/"}}, 415, "media-type-unsupported"),
        ("POST", "/people", {"content": huge_png()}, 413, "image-too-large"),
        ("GET", f"/people/{NOBODY}", {}, 404, "person-unknown"),
        ("PUT", f"/people/{NOBODY}", {"content": LONG_JSON}, 413, "body-too-large"),
        ("GET", "/obj/imagekey", {}, 404, "object-unknown"),
        ("GET", "/imagekey", {}, 404, "object-unknown"),
        *(
            ("PUT", path, {"content": content}, status, reason)
            for path in ("/merge", "/unmerge")
            for content, status, reason in [
                (b"", 400, "body-invalid"),
                (b'{"personIds": ["../x"]}', 404, "person-unknown"),
                (LONG_JSON, 413, "body-too-large"),
            ]
        ),
    ],
)
def test_an_error_tells_its_reason(
    http: httpx.Client, method: str, path: str, request_parts: dict[str, Any], status: int, reason: str
) -> None:
    refused(http.request(method, path, **request_parts), status, reason)


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("PATCH", "/people", "GET, HEAD, POST"),
        ("POST", f"/people/{NOBODY}", "DELETE, GET, HEAD, PUT"),
        ("DELETE", "/merge", "PUT"),
        ("POST", "/healthz", "GET, HEAD"),
    ],
)
def test_another_method_is_told_those_of_the_route(live: LiveServer, method: str, path: str, allowed: str) -> None:
    answer = httpx.request(method, live.url + path)
    refused(answer, 405, "method-unknown")
    assert answer.headers["Allow"] == allowed


def test_errors_do_not_tell_what_others_have(live: LiveServer, http: httpx.Client, grace: str) -> None:
    guid = http.get(f"/people/{grace}").json()["people"][0]["imageURI"].rpartition("/")[2]
    pairs = [("/people/{}", grace, NOBODY), ("/person/{}/face", grace, NOBODY), ("/obj/{}", guid, "0" * 32)]
    for stranger in (live.http(http.headers["X-RPC-DIRECTORY"], "bob"), live.http("elsewhere", "alice")):
        with stranger:
            for path, existing, unknown in pairs:
                answers = [stranger.get(path.format(part)) for part in (existing, unknown)]
                assert [answer.status_code for answer in answers] == [404, 404]
                assert answers[0].json()["message"] == answers[1].json()["message"]


def test_an_unexpected_error_tells_nothing(
    live: LiveServer, http: httpx.Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("SELECT secret FROM /srv/store")

    monkeypatch.setattr(live.service, "people", broken)
    answer = http.get("/people")
    monkeypatch.undo()
    body = refused(answer, 500, "unexpected")
    assert "secret" not in answer.text
    assert "/srv" not in answer.text
    assert answer.headers["X-Request-Id"] in body["message"]
    errors = [record for record in caplog.records if record.name == "facepipe.errors"]
    assert len(errors) == 1
    assert answer.headers["X-Request-Id"] in errors[0].getMessage()
    assert "secret" in str(errors[0].exc_info)


# Routes without credentials


def test_health_and_readiness(live: LiveServer) -> None:
    for path in ("/healthz", "/healthz/"):
        assert httpx.get(live.url + path).json() == {"status": "ok"}
    assert httpx.get(f"{live.url}/readyz").json() == {"status": "ready"}
    live.ready.clear()
    refused(httpx.get(f"{live.url}/readyz"), 503, "not-ready")
    live.ready.set()


def test_readiness_says_where_distances_are_not_calibrated(tmp_path: Path, extractor: BatchExtractor) -> None:
    with live_server(tmp_path / "store", extractor, model__calibration="none") as server:
        answer = httpx.get(f"{server.url}/readyz")
    body = answer.json()
    assert (answer.status_code, body["status"], body["calibration"]) == (200, "ready", "none")
    assert "casia-webface" in body["warning"]
    schema = description()["components"]["schemas"]["Ready"]
    assert body.keys() == schema["properties"].keys()


def samples(live: LiveServer) -> dict[str, float]:
    lines = httpx.get(f"{live.url}/metrics").text.splitlines()
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[0] != "#")}


def test_a_conflict_is_counted_and_logged(
    live: LiveServer, http: httpx.Client, grace: str, hopper: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    before = samples(live)
    with caplog.at_level("INFO", "facepipe.access"):
        answer = http.post("/people", content=hopper, headers={"X-RPC-PERSON-NAME": "Somebody else"})
    assert answer.json()["identifiedFaces"][0]["conflict"] == "name"
    name = 'facepipe_conflicts_total{reason="name"}'
    assert samples(live)[name] - before.get(name, 0) == 1
    lines = [record.getMessage() for record in caplog.records if "conflict=" in record.getMessage()]
    assert lines == [f"id={answer.headers['X-Request-Id']} conflict=name"]


def test_metrics_count(live: LiveServer, http: httpx.Client, hopper: bytes) -> None:
    before = samples(live)
    http.post("/people", content=hopper, headers=GRACE)
    http.post("/people", content=hopper, headers=GRACE)
    http.get(f"/people/{NOBODY}")
    after = samples(live)

    def grown(name: str) -> float:
        return after[name] - before.get(name, 0)

    assert grown("facepipe_faces_total") == 2
    assert grown("facepipe_insertions_total") == 1
    assert grown("facepipe_matches_total") == 1
    assert grown("facepipe_identities") == 1
    assert grown('facepipe_requests_total{method="POST",route="/people",status="201"}') == 2
    assert grown('facepipe_requests_total{method="GET",route="/people/{person_id}",status="404"}') == 1
    assert grown('facepipe_stage_seconds_total{stage="embed"}') > 0
    assert grown('facepipe_stage_seconds_total{stage="second model"}') == 0
    assert after["facepipe_body_bytes"] == 0


def test_the_access_log_has_one_line_and_no_secret(http: httpx.Client, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "facepipe.access"):
        request_id = http.get(f"/people/{NOBODY}?name=secret").headers["X-Request-Id"]
        http.get("/healthz")  # the line of a request may be written after its answer is sent, but before the next one
    (line,) = [r.getMessage() for r in caplog.records if request_id in r.getMessage()]
    assert "client=127.0.0.1 method=GET route=/people/{person_id} status=404 ms=" in line
    assert not {"secret", NOBODY, "alice"} & set(line.replace("=", " ").split())
