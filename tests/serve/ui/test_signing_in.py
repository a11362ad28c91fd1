"""Signing in on the page, and who gets in without."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from pipeline.serve.auth import MAX_FAILURES
from pipeline.serve.ui.same_site import POLICY
from tests.people.coded_archive import SETTINGS
from tests.serve.live import LiveServer
from tests.serve.quick_hash import quick_hash
from tests.serve.ui.browser import PAGE, PASSWORD, Browser
from tests.serve.ui.conftest import page_server

BrowserAt = Callable[[LiveServer], Browser]
ANN = {"user": "ann", "password": PASSWORD}


def api_routes(server: LiveServer) -> list[tuple[str, str]]:
    """Method and address of all routes of the API."""
    return [
        (method, route.path)
        for route in server.server.config.app.routes  # type: ignore[union-attr]
        if route.path.startswith("/ui/api/")
        for method in sorted(route.methods)
    ]


def test_a_browser_is_sent_to_the_page_and_a_program_finds_nothing(shared: LiveServer) -> None:
    sent = httpx.get(shared.url, headers={"Accept": "text/html,*/*"})
    assert (sent.status_code, sent.headers["Location"]) == (303, "/ui")
    assert httpx.get(shared.url).json()["errorReason"] == "route-unknown"
    for address in ("/ui", "/ui/", "/ui/static/index.html"):
        page = httpx.get(shared.url + address)
        assert page.headers["Content-Type"] == "text/html; charset=utf-8"
        assert page.headers["Content-Security-Policy"] == POLICY
        assert page.headers["X-Content-Type-Options"] == "nosniff"
        assert page.headers["Referrer-Policy"] == "no-referrer"
        known = httpx.get(shared.url + address, headers={"If-None-Match": page.headers["ETag"]})
        assert (known.status_code, known.content) == (304, b"")
        plain = httpx.get(shared.url + address, headers={"Accept-Encoding": "identity"})
        assert ("Content-Encoding" in page.headers, "Content-Encoding" in plain.headers) == (True, False)
        assert page.content == plain.content
        assert page.headers["ETag"] != plain.headers["ETag"]


@pytest.mark.parametrize("path", ["nothing.js", "../handlers.py", "..%2fhandlers.py", "%2e%2e/__init__.py", ""])
def test_only_the_pages_own_files_are_served(shared: LiveServer, path: str) -> None:
    with shared.connect() as connection:
        connection.sendall(f"GET /ui/static/{path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    assert answer.startswith(b"HTTP/1.1 404")
    assert b"content-security-policy" in answer


def test_the_cookie_is_for_the_page_alone(shared: LiveServer, browser_at: BrowserAt) -> None:
    reader = browser_at(shared)
    answer = reader.http.post("/ui/api/session", json=ANN, headers=PAGE)
    assert answer.json()["user"] == "ann"
    assert [row["name"] for row in answer.json()["directories"]] == ["main"]
    flags = answer.headers["Set-Cookie"].split("; ")[1:]
    assert sorted(flags) == ["HttpOnly", "Max-Age=43200", "Path=/ui", "SameSite=strict"]
    assert reader.get("session")["user"] == "ann"
    cookie = dict(reader.http.cookies)
    for address in ("/people", "/rootpeople"):  # were it sent, it would open nothing
        refused = httpx.get(shared.url + address, cookies=cookie, headers={"X-RPC-DIRECTORY": "main"})
        assert (refused.status_code, refused.json()["errorReason"]) == (401, "unauthorized")


def test_behind_a_proxy_with_tls_the_cookie_is_sent_by_tls_only(store: Path) -> None:
    trusting = replace(SETTINGS.serve, trusted_proxies="127.0.0.1")
    with page_server(store, serve=trusting) as server:
        headers = {**PAGE, "X-Forwarded-Proto": "https"}
        answer = httpx.post(f"{server.url}/ui/api/session", json=ANN, headers=headers)
        assert "Secure" in answer.headers["Set-Cookie"].split("; ")


def test_without_a_session_nothing_answers(shared: LiveServer, browser_at: BrowserAt) -> None:
    reader = browser_at(shared)
    for method, path in api_routes(shared):
        if path == "/ui/api/session" and method in ("POST", "DELETE"):
            continue
        answer = reader.http.request(method, path.replace("{", "").replace("}", ""), headers=PAGE)
        assert answer.status_code == 401, path
        if method != "HEAD":
            assert answer.json()["errorReason"] == "sign-in-required"
        assert answer.headers["Content-Security-Policy"] == POLICY


def test_an_account_header_does_not_open_the_page(shared: LiveServer) -> None:
    headers = {"X-RPC-AUTHORIZATION": f"ann:{PASSWORD}".encode(), "X-RPC-DIRECTORY": b"main"}
    assert httpx.get(f"{shared.url}/ui/api/people", headers=headers).status_code == 401


@pytest.mark.parametrize(
    "headers",
    [
        {},  # a form of another site
        {**PAGE, "Origin": "https://elsewhere.example.org"},
        {**PAGE, "Origin": "null"},
        {**PAGE, "Sec-Fetch-Site": "cross-site"},
        {**PAGE, "Sec-Fetch-Site": "same-site"},
        {**PAGE, "Sec-Fetch-Site": "none"},
    ],
)
def test_other_sites_can_change_nothing(reader: Browser, shared: LiveServer, headers: dict[str, str]) -> None:
    for method, path in api_routes(shared):
        if method in ("POST", "DELETE"):
            answer = reader.http.request(method, path, headers=headers)
            assert (answer.status_code, answer.json()["errorReason"]) == (403, "cross-site")
    assert reader.get("session")["user"] == "ann"


def test_other_sites_can_read_nothing_either(reader: Browser, shared: LiveServer) -> None:
    for headers in ({"Origin": "https://elsewhere.example.org"}, {"Sec-Fetch-Site": "cross-site"}):
        answer = reader.http.get("/ui/api/people", headers=headers)
        assert (answer.status_code, answer.json()["errorReason"]) == (403, "cross-site")
    for headers in ({"Origin": shared.url}, {"Sec-Fetch-Site": "same-origin"}, {"Sec-Fetch-Site": "none"}):
        answer = reader.http.get("/ui/api/people", headers=headers)
        assert answer.status_code == 200
        assert answer.headers["Cross-Origin-Resource-Policy"] == "same-origin"


def test_a_wrong_password_and_too_many(server: LiveServer, browser_at: BrowserAt) -> None:
    browser = browser_at(server)
    assert browser.sign_in(password="wrong 0", status=401)["errorReason"] == "sign-in-refused"
    assert browser.sign_in("nobody", status=401)["errorReason"] == "sign-in-refused"
    for attempt in range(1, MAX_FAILURES):
        browser.sign_in(password=f"wrong {attempt}", status=401)
    refused = browser.http.post("/ui/api/session", json=ANN, headers=PAGE)
    assert (refused.status_code, refused.json()["errorReason"]) == (429, "too-many-attempts")
    assert int(refused.headers["Retry-After"]) > 0
    basic = httpx.get(  # one count for both doors
        f"{server.url}/people", headers={"X-RPC-AUTHORIZATION": b"ann:other", "X-RPC-DIRECTORY": b"main"}
    )
    assert basic.status_code == 429
    for body in ({}, {"user": "ann"}, {"user": "ann", "password": 5}, []):
        assert browser.post("session", body, status=400)["errorReason"] == "body-invalid"
    assert browser.post("session", {**ANN, "more": "x" * 20_000}, status=413)["errorReason"] == "body-too-large"


def test_signing_out_ends_this_session_only(browser: Browser, server: LiveServer, browser_at: BrowserAt) -> None:
    other = browser_at(server)
    other.sign_in()
    cookies = dict(browser.http.cookies)
    answer = browser.http.delete("/ui/api/session", headers=PAGE)
    assert (answer.status_code, answer.headers["Clear-Site-Data"]) == (204, '"cache"')
    assert "facepipe_page" not in browser.http.cookies
    assert httpx.get(f"{server.url}/ui/api/people", cookies=cookies).status_code == 401
    other.get("people")


def test_signing_in_again_ends_the_session_whose_cookie_came_with_it(server: LiveServer, browser_at: BrowserAt) -> None:
    browser, other = browser_at(server), browser_at(server)
    other.sign_in()
    browser.sign_in()
    before = {"Cookie": f"facepipe_page={browser.http.cookies['facepipe_page']}"}
    browser.sign_in(password="wrong", status=401)  # which ends nothing
    assert httpx.get(f"{server.url}/ui/api/people", headers=before).status_code == 200
    browser.sign_in("bob")
    assert httpx.get(f"{server.url}/ui/api/people", headers=before).json()["errorReason"] == "sign-in-required"
    assert browser.get("session")["user"] == "bob"
    other.get("people")


def test_a_tab_of_another_account_is_told_so(server: LiveServer, browser_at: BrowserAt) -> None:
    """Two tabs have one cookie; the later sign-in counts."""
    server.client.create_account("zoe@home", quick_hash(PASSWORD))
    tabs = browser_at(server)
    tabs.sign_in("bob")
    tabs.sign_in("zoe@home")
    for user in ("bob", "zoe", "Zoe%40home", "", "%ff", "%00"):
        headers = {**PAGE, "X-Facepipe-User": user}
        for method, path in api_routes(server):
            if (method, path) != ("POST", "/ui/api/session"):
                answer = tabs.http.request(method, path.replace("{", "").replace("}", ""), headers=headers)
                assert answer.status_code == 401, (user, path)
                assert method == "HEAD" or answer.json()["errorReason"] == "other-account"
    own = {**PAGE, "X-Facepipe-User": "zoe%40home"}
    assert tabs.http.get("/ui/api/session", headers=own).json()["user"] == "zoe@home"
    assert tabs.get("session")["user"] == "zoe@home"  # pictures are asked for without the header
    again = tabs.http.post("/ui/api/session", json=ANN, headers={**PAGE, "X-Facepipe-User": "bob"})
    assert again.json()["user"] == "ann"  # who signs in is nobody yet
    assert tabs.http.delete("/ui/api/session", headers={**PAGE, "X-Facepipe-User": "ann"}).status_code == 204
    assert tabs.http.delete("/ui/api/session", headers={**PAGE, "X-Facepipe-User": "ann"}).status_code == 204


def test_a_new_password_ends_the_sessions(browser: Browser, server: LiveServer) -> None:
    server.client.set_password("ann", quick_hash("another"))
    server.auth.drop("ann")  # as the admin port does
    assert browser.get("people", status=401)["errorReason"] == "sign-in-required"
    browser.sign_in(status=401)
    browser.sign_in(password="another")
    browser.get("people")


def test_a_session_expires(store: Path, browser_at: BrowserAt) -> None:
    with page_server(store, session_s=1.0) as server:
        browser = browser_at(server)
        token = browser.http.post("/ui/api/session", json=ANN, headers=PAGE).cookies["facepipe_page"]
        page = {"Cookie": f"facepipe_page={token}"}
        while httpx.get(f"{server.url}/ui/api/session", headers=page).status_code == 200:
            pass
        assert httpx.get(f"{server.url}/ui/api/people", headers=page).json()["errorReason"] == "sign-in-required"


def test_a_server_without_the_page(store: Path) -> None:
    with page_server(store, enabled=False) as server:
        for address in ("/", "/ui", "/ui/api/session", "/ui/static/index.html"):
            answer = httpx.get(server.url + address, headers={"Accept": "text/html"})
            assert (answer.status_code, answer.json()["errorReason"]) == (404, "route-unknown")
