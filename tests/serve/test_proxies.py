"""Clients behind a proxy: whose wrong passwords count for whom."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from pipeline.extraction.extractor import BatchExtractor
from pipeline.serve.auth import MAX_FAILURES
from tests.serve.live import LiveServer, credentials, live_server

pytestmark = pytest.mark.usefixtures("quick_refusals")

ATTACKER, USER = "198.51.100.1", "198.51.100.2"


@pytest.fixture(scope="module")
def proxied(tmp_path_factory: pytest.TempPathFactory, extractor: BatchExtractor) -> Iterator[LiveServer]:
    """A server that takes this machine for a proxy."""
    store = tmp_path_factory.mktemp("proxied") / "store"
    with live_server(store, extractor, serve__trusted_proxies="192.0.2.0/24, 127.0.0.1") as server:
        yield server


def guess(server: LiveServer, number: int, forwarded_for: str, user: str = "alice") -> int:
    """The answer to one wrong password."""
    headers = {
        "X-RPC-DIRECTORY": "main",
        "X-RPC-AUTHORIZATION": f"{user}:wrong-{number}!",
        "X-Forwarded-For": forwarded_for,
    }
    return httpx.get(f"{server.url}/people", headers=headers).status_code


def ask(server: LiveServer, forwarded_for: str, user: str = "alice") -> int:
    headers = [*credentials(user=user), (b"X-Forwarded-For", forwarded_for.encode())]
    return httpx.get(f"{server.url}/people", headers=headers).status_code


def test_a_trusted_proxy_has_no_share_of_the_connections(proxied: LiveServer) -> None:
    """It stands for many clients. The server's own places; the rule itself is tested in test_connections."""
    places = proxied.server.connections.places
    held = [proxied.server.connections.admit("192.0.2.7") for _ in range(places.per_peer + 1)]
    try:
        assert all(place is not None and not place.reserved for place in held)
        assert places.taken > places.per_peer
    finally:
        for place in held:
            if place is not None:
                place.leave()


@pytest.mark.slow
def test_an_attacker_behind_a_proxy_locks_out_nobody_else(proxied: LiveServer) -> None:
    guesses = [guess(proxied, number, ATTACKER) for number in range(100)]
    assert guesses == [401] * MAX_FAILURES + [429] * (100 - MAX_FAILURES)
    assert ask(proxied, ATTACKER) == 429
    assert ask(proxied, USER) == 200


def test_an_attacker_cannot_take_another_address(proxied: LiveServer) -> None:
    """A proxy appends the address of its client: what the client wrote stands before it."""
    guesses = [guess(proxied, n, f"203.0.113.{n}, {ATTACKER}", "bob") for n in range(MAX_FAILURES + 5)]
    assert guesses == [401] * MAX_FAILURES + [429] * 5
    assert ask(proxied, f"{ATTACKER}, 192.0.2.7", "bob") == 429  # by way of two trusted proxies
    assert ask(proxied, USER, "bob") == 200


@pytest.mark.slow
def test_nobody_is_taken_for_a_proxy_unasked(live: LiveServer) -> None:
    guesses = [guess(live, number, f"203.0.113.{number}", "mallory") for number in range(MAX_FAILURES + 5)]
    assert guesses == [401] * MAX_FAILURES + [429] * 5
