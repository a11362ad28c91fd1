"""A flood of invented users, each of whom costs a slow check: it hinders neither those who were verified before, nor
somebody new from elsewhere."""

from __future__ import annotations

import asyncio
import functools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from statistics import median

import pytest

from pipeline.errors import Overloaded
from pipeline.serve import auth
from pipeline.serve.thread_pool import BoundedThreadPool
from pipeline.store.catalog import accounts
from tests.serve.connecting import Clients, head
from tests.serve.live import LiveServer
from tests.waiting import until

CONNECTIONS = 100
REQUESTS = 9  # of each, sent at once: below the number of failing users after which an address is refused
UNKNOWN = b"GET /people HTTP/1.1\r\nHost: localhost\r\nX-RPC-DIRECTORY: d\r\nX-RPC-AUTHORIZATION: %s\r\n\r\n"


@pytest.fixture
def flood(live: LiveServer) -> Iterator[Callable[[str], None]]:
    """Begins a flood from an address. A check is cheap here, so that the flood ends soon."""

    def begin(host: str) -> None:
        for connection in range(CONNECTIONS):
            users = (f"nobody-{host}-{connection}-{number}:x".encode() for number in range(REQUESTS))
            attackers.connect(host).sendall(b"".join(UNKNOWN % user for user in users))
        until(lambda: live.server.server_state.tasks)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(accounts, "_N", accounts._N // 16)
        with ExitStack() as stack:
            attackers = Clients(live.port, stack)
            yield begin
        until(lambda: not live.server.server_state.tasks, "checks still wait")


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The passwords that were checked."""
    checked, verify = list[str](), accounts.verify_password

    def verify_password(password: str, hashed: str | None) -> bool:
        checked.append(password)
        return verify(password, hashed)

    monkeypatch.setattr(accounts, "verify_password", verify_password)
    return checked


@pytest.mark.slow
def test_a_flood_does_not_reach_a_verified_client_of_the_same_address(
    live: LiveServer, flood: Callable[[str], None], checks: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auth, "VERIFIED_S", 0.1)  # so that nearly every request needs a check
    with live.http() as http:
        assert http.get("/people").status_code == 200
        flood("127.0.0.1")
        before_it = list[int]()
        while len(before_it) < 20 and live.server.server_state.tasks:
            time.sleep(0.11)
            known = len(checks)
            assert http.get("/people").status_code == 200
            before_it.append(len(checks) - known)
        assert len(before_it) > 3
        assert median(before_it) < CONNECTIONS / 2, "it waits for those that came before it"


@pytest.mark.slow
def test_a_flood_does_not_reach_a_new_client_of_another_address(
    clients: Clients, flood: Callable[[str], None], checks: list[str]
) -> None:
    flood("127.0.0.2")
    flood("127.0.0.3")
    for user in ("bob", "nobody-else"):
        request = head(b"GET /people").replace(b"alice:", user.encode() + b":")
        known = len(checks)
        assert clients.ask(request, "127.0.0.4").status == (200 if user == "bob" else 401)
        assert len(checks) - known < CONNECTIONS / 2, "it waits for those that came before it"


def test_peers_take_turns() -> None:
    order: list[str] = []

    async def flooded() -> list[object]:
        pool = BoundedThreadPool("test", threads=1, queue=3)
        try:
            calls = [pool.run(functools.partial(order.append, peer), peer) for peer in "aaaaabbc"]
            return await asyncio.gather(*calls, return_exceptions=True)
        finally:
            pool.close()

    outcomes = asyncio.run(flooded())
    assert [type(outcome) for outcome in outcomes].count(Overloaded) == 1
    assert order == list("aabcaba")


def test_a_cancelled_call_has_its_thread_until_it_is_done() -> None:
    order: list[str] = []
    done = threading.Event()

    async def cancelled() -> None:
        pool = BoundedThreadPool("test", threads=1, queue=3)
        try:
            first = asyncio.create_task(pool.run(done.wait, "a"))
            await asyncio.sleep(0)
            first.cancel()
            await asyncio.wait([first])
            calls = [asyncio.create_task(pool.run(functools.partial(order.append, peer), peer)) for peer in "aab"]
            await asyncio.sleep(0)
            done.set()
            await asyncio.gather(*calls)
        finally:
            done.set()
            pool.close()

    asyncio.run(cancelled())
    assert order == list("aba")
