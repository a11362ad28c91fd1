"""A crowd that guesses an account's password while its owner's client is active, through each door of the server."""

from __future__ import annotations

import base64
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import httpx
import pytest

from pipeline.serve.auth import MAX_FAILURES
from tests.people.coded_archive import SETTINGS
from tests.serve.certificate import make_certificate
from tests.serve.ui.browser import PAGE, PASSWORD
from tests.serve.ui.conftest import page_server

CONNECTIONS, GUESSES = 100, 5  # guesses of each connection


@dataclass
class Door:
    """A way to the server from several addresses: the owner's, the crowd's, and somebody else's."""

    client: Callable[[str], httpx.Client]  # from an address
    owner: str
    crowd: list[str]  # of one peer
    other: str


@pytest.fixture(params=["plain", "tls", "proxy"])
def door(request: pytest.FixtureRequest, store: Path, tmp_path: Path) -> Iterator[Door]:
    serve, verify = SETTINGS.serve, True
    addresses = ("127.0.0.1", ["127.0.0.2"], "127.0.0.3")
    if request.param == "tls":
        made = make_certificate(tmp_path)
        serve, verify = replace(serve, tls_cert=str(made.cert), tls_key=str(made.key)), made.client()  # type: ignore[assignment]
    elif request.param == "proxy":
        serve = replace(serve, trusted_proxies="127.0.0.1")
        addresses = ("2001:db8::1", [f"2001:db8:0:1::{host:x}" for host in range(1, 9)], "2001:db8:0:2::1")
    with page_server(store, serve=serve) as server, ExitStack() as stack:
        url = server.url.replace("http:", "https:") if request.param == "tls" else server.url

        def client(address: str) -> httpx.Client:
            by_proxy = request.param == "proxy"
            transport = httpx.HTTPTransport(verify=verify, local_address=None if by_proxy else address)
            headers = {"X-Forwarded-For": address} if by_proxy else {}
            return stack.enter_context(httpx.Client(base_url=url, transport=transport, headers=headers, timeout=60))

        yield Door(client, *addresses)


def ask(client: httpx.Client, password: str) -> int:
    headers = {"X-RPC-AUTHORIZATION": f"ann:{password}".encode(), "X-RPC-DIRECTORY": b"main"}
    return client.get("/people?count=1", headers=headers).status_code


def sign_in(client: httpx.Client, password: str) -> int:
    return client.post("/ui/api/session", json={"user": "ann", "password": password}, headers=PAGE).status_code


@pytest.mark.slow
def test_guesses_are_counted_while_the_owner_asks(door: Door) -> None:
    owner = door.client(door.owner)
    assert ask(owner, PASSWORD) == 200
    assert sign_in(owner, PASSWORD) == 200
    crowd = [door.client(door.crowd[number % len(door.crowd)]) for number in range(CONNECTIONS)]
    done, served = threading.Event(), []

    def go_on() -> None:
        while not done.wait(0.02):
            served.extend([ask(owner, PASSWORD), owner.get("/ui/api/people").status_code])

    def guess(number: int) -> list[int]:
        doors = (ask, sign_in) if number % 2 else (sign_in, ask)
        return [doors[n % 2](crowd[number], f"wrong {number} {n}!") for n in range(GUESSES)]

    with ThreadPoolExecutor(CONNECTIONS + 1) as threads, ExitStack() as stack:
        stack.callback(done.set)
        asking = threads.submit(go_on)
        answers = [status for statuses in threads.map(guess, range(CONNECTIONS)) for status in statuses]
        for form in (PASSWORD, base64.b64encode(PASSWORD.encode()).decode()):
            assert [ask(each, form) for each in crowd[:8]] == [429] * 8
        assert [sign_in(each, PASSWORD) for each in crowd[:8]] == [429] * 8
    asking.result()
    assert sorted(answers) == [401] * MAX_FAILURES + [429] * (CONNECTIONS * GUESSES - MAX_FAILURES)
    assert set(served) == {200}
    somebody = door.client(door.other)
    assert [ask(somebody, PASSWORD), sign_in(somebody, PASSWORD)] == [200, 200]
