"""Requests that the page never sends are refused with a reason, or answered. None is an error that nobody foresaw."""

from __future__ import annotations

import base64
import json
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.serve.cursors import _checksum
from tests.serve.live import LiveServer
from tests.serve.ui.browser import PAGE, Browser
from tests.serve.ui.test_signing_in import ANN, api_routes

NOBODY = "00000000-0000-4000-8000-000000000000"
HUGE = "1" + "0" * 400
NUMBERS = ["Infinity", "-Infinity", "NaN", "1e300", "1e999", HUGE, "9223372036854775808", "-1e19", "0.5"]
ODD = ["\ud800", "\0", "é", "x" * 5000, "-1", "NaN", "1e999", HUGE]
OURS = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])  # of tests that change nothing


def is_foreseen(answer: httpx.Response) -> bool:
    return answer.status_code < 400 or (answer.status_code < 500 and bool(answer.json()["errorReason"]))


def cursor(text: str) -> str:
    data = text.encode()
    return base64.urlsafe_b64encode(_checksum(data) + data).decode().rstrip("=")


@pytest.mark.parametrize(
    "body",
    [
        rb'{"user": "\ud800", "password": "x"}',
        rb'{"user": "ann", "password": "\udfff"}',
        rb'{"user": "a\u0000", "password": "\u0000"}',
        b'{"user": "ann", "password": "\xff"}',
        b'{"user": "ann", "password": 1' + b"0" * 5000 + b"}",
        b'{"user": ' + b"[" * 9000,
        b'{"user": NaN}',
        b"\x00",
        b"",
    ],
)
def test_signing_in_with_what_is_no_text(shared: LiveServer, body: bytes) -> None:
    answer = httpx.post(f"{shared.url}/ui/api/session", content=body, headers=PAGE)
    assert answer.status_code in (400, 401)
    assert answer.json()["errorReason"] in ("body-invalid", "sign-in-refused")


@pytest.mark.parametrize("origin", [b"http://[", b"http://[::1", b"http://\xff", b"//", b"", b"http://a]"])
def test_an_origin_that_is_none(shared: LiveServer, reader: Browser, origin: bytes) -> None:
    for method, path in (("POST", "session"), ("GET", "session"), ("DELETE", "session")):
        headers = {b"X-Facepipe-Page": b"1", b"Origin": origin}
        answer = reader.http.request(method, f"/ui/api/{path}", headers=headers)
        assert (answer.status_code, answer.json()["errorReason"]) == (403, "cross-site")


@pytest.mark.parametrize(
    "cookie", [b"\xff\xfe", b"facepipe_page=\xff", b'facepipe_page="\\377\\000"', b"=;;=", b"a" * 9000]
)
def test_a_cookie_that_is_none(shared: LiveServer, cookie: bytes) -> None:
    answer = httpx.get(f"{shared.url}/ui/api/session", headers={b"Cookie": cookie})
    assert (answer.status_code, answer.json()["errorReason"]) == (401, "sign-in-required")


@pytest.mark.parametrize("host", [b"[", b"[::1", b"\xff", b"a b", b""])
def test_signing_in_at_a_host_that_is_none(shared: LiveServer, host: bytes) -> None:
    headers = {b"Host": host, b"X-Facepipe-Page": b"1"}
    assert is_foreseen(httpx.post(f"{shared.url}/ui/api/session", json=ANN, headers=headers))


@pytest.mark.parametrize("sort", ["added", "score"])
@pytest.mark.parametrize("number", NUMBERS)
def test_cursors_of_numbers_that_no_place_has(reader: Browser, sort: str, number: str) -> None:
    one = reader.people()[0]["id"]
    for text in (f'["{sort}", {number}, 1]', f'["{sort}", 0, {number}]'):
        answer = reader.http.get(f"/ui/api/people/{one}/faces", params={"sort": sort, "after": cursor(text)})
        assert answer.status_code == (200 if number == "0.5" else 400)
    for path, text in (("people", f'["photos", {number}, 0, ""]'), ("runs", f'["runs", {number}, ""]')):
        assert is_foreseen(reader.http.get(f"/ui/api/{path}", params={"after": cursor(text)}))


@pytest.mark.parametrize("text", ["[" * 5000, '["photos", true, null, []]', '["photos", 1, 1, "\\ud800"]', "{}", "\0"])
def test_cursors_of_something_else(reader: Browser, text: str) -> None:
    for path in ("people", "runs", "review"):
        assert is_foreseen(reader.http.get(f"/ui/api/{path}", params={"after": cursor(text)}))


@pytest.mark.parametrize(
    "as_of",
    ["0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59", "0001-01-01", "\ud800", "\0", HUGE, 5, -1.5, [], True],
)
def test_moments_that_never_were(reader: Browser, as_of: object) -> None:
    body = json.dumps({"kind": "hide", "persons": [NOBODY], "asOf": as_of})
    answer = reader.http.post("/ui/api/corrections", content=body, headers=PAGE)
    assert answer.json()["errorReason"] in ("body-invalid", "person-unknown")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["directory", "q", "after", "sort", "count", "fmr"])
def test_odd_parameters(shared: LiveServer, reader: Browser, name: str) -> None:
    one = reader.people()[0]["id"]
    values = [text.encode("utf-8", "surrogatepass") for text in ODD] + [b"\xff"]
    for method, path in api_routes(shared):
        if method == "GET":
            filled = path.format(person_id=one, guid="x", number="1", run_id="x")
            for value in values:
                escaped = "".join(f"%{byte:02x}" for byte in value)
                assert is_foreseen(reader.http.get(f"{filled}?{name}={escaped}")), (path, value)


@pytest.mark.parametrize("part", ["%00", "%ff", "%ed%a0%80", "9" * 30, "-1", "..", "é", "%2f", NOBODY])
def test_odd_paths(shared: LiveServer, reader: Browser, part: str) -> None:
    for method, path in api_routes(shared):
        if "{" in path and method != "HEAD":
            filled = path.format(person_id=part, guid=part, number=part, run_id=part)
            assert is_foreseen(reader.http.request(method, filled, headers=PAGE)), path


texts = st.text(st.characters(), max_size=8) | st.sampled_from(ODD) | st.just(NOBODY)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.integers(2**63 - 2, 2**200) | st.floats() | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=2),
    max_leaves=4,
)
kinds = st.sampled_from(["name", "merge", "unmerge", "split", "move", "not_same", "hide", "unhide", "forget"])
bodies = st.fixed_dictionaries(
    {"kind": kinds},
    optional={
        "persons": st.lists(st.just(NOBODY) | values, max_size=3),
        "faces": st.lists(values, max_size=2),
        **dict.fromkeys(("name", "asOf", "from", "anyway", "confirm"), values),
    },
)


@OURS
@given(body=bodies | values, number=values)
def test_odd_bodies(reader: Browser, body: Any, number: Any) -> None:
    """Of people whom there are not."""
    for path, sent in (("corrections", body), ("corrections/undo", {"correction": number})):
        answer = reader.http.post(f"/ui/api/{path}", content=json.dumps(sent), headers=PAGE)
        assert 400 <= answer.status_code < 500
        assert answer.json()["errorReason"]
