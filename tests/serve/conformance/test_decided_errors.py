"""decisions.md, "Requests": errors, strange paths, and the routes without credentials."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from tests.serve.conformance.client import FORCED, Account, Directory, RawAnswer, raw
from tests.serve.conformance.conftest import Gallery
from tests.serve.conformance.photos import (
    other,
    photo,
    poor,
)

UNKNOWN_ID = "00000000-0000-4000-8000-000000000000"


# Error body

ERRORS = [
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
]


@pytest.mark.parametrize(("method", "path", "headers", "status"), ERRORS)
def test_requests_every_error_has_the_one_shape(
    account: Account, method: str, path: str, headers: dict[str, Any], status: int
) -> None:
    """`{"error", "errorReason", "message", "path", "status", "timestamp" (ms), "verb"}` for every error."""
    answer = account.directory("c-empty").request(method, path, headers=headers)
    body = answer.json()
    assert answer.status_code == status
    assert answer.headers["content-type"].startswith("application/json")
    assert set(body) == {"error", "errorReason", "message", "path", "status", "timestamp", "verb"}
    assert body["status"] == status
    assert body["verb"] == method
    assert body["path"] == path.partition("?")[0]
    assert abs(body["timestamp"] - time.time() * 1000) < 3_600_000
    for key in ("error", "errorReason", "message"):
        assert isinstance(body[key], str)
        assert body[key]


def test_requests_messages_hold_no_query_path_or_credential(account: Account) -> None:
    """`message` never holds a file path, a query, a stack trace or a credential."""
    main = account.directory("c-empty")
    answers = [
        main.post(photo("hopper"), insert="SECRET"),
        main.post(photo("hopper"), threshold="SECRET"),
        main.post(b"SECRET"),
        main.request("GET", "/nowhere", params={"SECRET": "SECRET"}),
        main.request("GET", "/people", headers={"X-RPC-AUTHORIZATION": "SECRET:SECRET"}),
        main.request("PUT", "/merge", content=b'{"personIds": "SECRET"'),
    ]
    for answer in answers:
        assert answer.status_code >= 400
        assert "SECRET" not in answer.text
        assert "Traceback" not in answer.text
        assert ".py" not in answer.text
        assert account.password not in answer.text


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
    """`../` in every path part."""
    headers = {"X-RPC-AUTHORIZATION": account.authorization, "X-RPC-DIRECTORY": "main"}
    answer: RawAnswer = raw(account.server.base_url, "GET", path, headers)
    assert answer.status in (400, 404)
    assert json.loads(answer.body)["status"] == answer.status


def test_requests_forced_parameters_take_what_they_say(directory: Directory) -> None:
    """`0` switches that check off, all three at once: every poor image is taken."""
    for number, reason in enumerate(("sharpness", "contrast", "center-pose")):
        directory.insert(poor("collins", reason), f"P{number}", f"P-{number}", threshold=0, **FORCED)
    assert len(directory.people()) == 3


# Health


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
    for secret in (gallery.directory.name, account.password, gallery.hopper["personId"], "Grace"):
        assert secret not in text
    assert f'"{account.user}"' not in text


def test_requests_openapi_describes_the_routes(account: Account) -> None:
    """OpenAPI at `/docs`."""
    assert account.server.http.get(f"{account.server.base_url}/docs").status_code == 200
    paths = account.server.http.get(f"{account.server.base_url}/openapi.json").json()["paths"]
    assert {"/people", "/rootpeople", "/merge", "/unmerge"} <= set(paths)
    assert "201" in paths["/people"]["post"]["responses"]
