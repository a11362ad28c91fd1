"""Web pages of other origins: which may call, and what their browsers are told."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from pipeline.extraction.extractor import BatchExtractor
from tests.serve.live import LiveServer, credentials, live_server

PAGE, OTHER_PAGE = "https://album.example.org", "https://elsewhere.example.org"
WANTED = {
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "x-rpc-authorization,x-rpc-directory",
}


@pytest.fixture(scope="module")
def open_server(tmp_path_factory: pytest.TempPathFactory, extractor: BatchExtractor) -> Iterator[LiveServer]:
    store = tmp_path_factory.mktemp("cors") / "store"
    with live_server(store, extractor, serve__cors_origins=f"http://localhost:3000, {PAGE}") as server:
        yield server


def asked(server: LiveServer, origin: str, *, known: bool = True) -> httpx.Response:
    headers = [*(credentials() if known else []), (b"Origin", origin.encode())]
    return httpx.get(f"{server.url}/people", headers=headers)


@pytest.mark.parametrize("origin", [PAGE, "http://localhost:3000"])
def test_a_page_of_a_named_origin_may_call(open_server: LiveServer, origin: str) -> None:
    before = httpx.options(f"{open_server.url}/people", headers={"Origin": origin, **WANTED})
    assert before.status_code == 200
    assert before.headers["Access-Control-Allow-Origin"] == origin
    assert "POST" in before.headers["Access-Control-Allow-Methods"]
    assert before.headers["Access-Control-Allow-Headers"] == WANTED["Access-Control-Request-Headers"]
    assert "Access-Control-Allow-Credentials" not in before.headers
    for known, status in ((True, 200), (False, 401)):  # a page may read errors too
        answer = asked(open_server, origin, known=known)
        assert (answer.status_code, answer.headers["Access-Control-Allow-Origin"]) == (status, origin)
        assert "Origin" in answer.headers["Vary"]


def test_a_page_of_another_origin_may_not(open_server: LiveServer) -> None:
    before = httpx.options(f"{open_server.url}/people", headers={"Origin": OTHER_PAGE, **WANTED})
    assert before.status_code == 400
    for answer in (before, asked(open_server, OTHER_PAGE)):
        assert "Access-Control-Allow-Origin" not in answer.headers


def test_without_the_setting_no_page_may(live: LiveServer) -> None:
    before = httpx.options(f"{live.url}/people", headers={"Origin": PAGE, **WANTED})
    assert (before.status_code, before.json()["errorReason"]) == (405, "method-unknown")
    for answer in (before, asked(live, PAGE)):
        assert not [name for name in answer.headers if name.startswith("access-control")]
