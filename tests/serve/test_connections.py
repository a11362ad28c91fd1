"""Floods of connections, with TLS too: they take places from nobody else, and the server's health is always answered.

Peers are addresses of the loopback, 127.0.0.1 being the client in good faith.
"""

from __future__ import annotations

import contextlib
import resource
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from pipeline.extraction.extractor import BatchExtractor
from pipeline.serve import connections, limited_server, protocol
from pipeline.serve.connections import Places
from tests.forking import Forker
from tests.serve.certificate import make_certificate
from tests.serve.coded import empty_store
from tests.serve.connecting import HEALTH, PEOPLE, Clients, answer, ended, head
from tests.serve.live import LiveServer, live_server
from tests.waiting import until

POST = head(b"POST /people", b"Content-Length: 8", b"Expect: 100-continue")  # the server says when it has got so far


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory, extractor: BatchExtractor) -> Iterator[LiveServer]:
    """Of these tests alone: a connection that other tests keep would hold a place."""
    with live_server(tmp_path_factory.mktemp("attacked") / "store", extractor, serve__body_timeout_s=1.5) as server:
        yield server


@pytest.fixture
def places(live: LiveServer) -> Iterator[Places]:
    """Those of the server; 6 of them. Afterwards all are free again."""
    free = live.server.connections.places
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(free, "total", 6)
        patch.setattr(free, "per_peer", 6)
        yield free
    until(lambda: not (free.taken or live.server.connections.reserve.taken), "a place is lost")


@pytest.fixture
def attacked(places: Places, clients: Clients) -> Clients:
    """The same clients; to be asked for after `places`, so that they go first."""
    return clients


def test_connections_leave_files_to_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    for soft, allowed in ((1024, 768), (10**6, 2000), (64, 16), (resource.RLIM_INFINITY, 2000)):
        monkeypatch.setattr(resource, "getrlimit", lambda _, soft=soft: (soft, resource.RLIM_INFINITY))
        assert connections.max_connections() == allowed


def test_no_answer_waits_for_an_acknowledgement(live: LiveServer) -> None:
    with live.http() as client:
        assert client.get("/healthz").status_code == 200
        sockets = [each.transport.get_extra_info("socket") for each in live.server.server_state.connections]
        assert {each.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) for each in sockets} == {1}


def test_silent_connections_neither_stop_a_tls_server_nor_fill_its_log(forked_servers: Forker, tmp_path: Path) -> None:
    """Twenty peers open more connections than the server may have files, and never begin their handshake."""
    certificate = make_certificate(tmp_path)
    log = tmp_path / "log"
    flags = {"serve.tls_cert": str(certificate.cert), "serve.tls_key": str(certificate.key)}
    order = {"store": str(empty_store(tmp_path / "store")), "files": 400, "log": str(log), "flags": flags}
    with forked_servers.running(**order) as server, ExitStack() as stack:
        clients = Clients(urlsplit(server.ready).port or 0, stack)
        for number in range(600):
            clients.connect(f"127.0.0.{2 + number % 20}")
        for _ in range(5):
            assert httpx.get(f"{server.ready}/healthz", verify=certificate.client(), timeout=30).status_code == 200
    assert log.stat().st_size < 20_000


def test_a_tls_handshake_is_timed(
    tmp_path: Path, extractor: BatchExtractor, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(limited_server, "TLS_TIMEOUT_S", 0.3)
    certificate = make_certificate(tmp_path)
    flags = {"serve__tls_cert": str(certificate.cert), "serve__tls_key": str(certificate.key)}
    with live_server(tmp_path / "store", extractor, **flags) as server, ExitStack() as stack:
        clients = Clients(server.port, stack)
        for begun_with in (b"", b"\x16\x03\x01\x02\x00\x01", HEALTH):
            connection = clients.connect()
            connection.sendall(begun_with)
            with contextlib.suppress(ConnectionError):
                while connection.recv(100):  # an alert may come
                    pass
        until(lambda: not server.server.connections.places.taken)
    assert not [record for record in caplog.records if record.levelname in ("WARNING", "ERROR")]


def test_a_tls_client_that_does_not_see_the_end_holds_no_place(
    tmp_path: Path, extractor: BatchExtractor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does it hold up the server's stop: it would for the 30 seconds of asyncio."""
    monkeypatch.setattr(limited_server, "TLS_TIMEOUT_S", 0.3)
    certificate = make_certificate(tmp_path)
    flags = {"serve__tls_cert": str(certificate.cert), "serve__tls_key": str(certificate.key)}
    with live_server(tmp_path / "store", extractor, **flags) as server, ExitStack() as stack:
        plain = Clients(server.port, stack).connect()
        connection = stack.enter_context(certificate.client().wrap_socket(plain, server_hostname="127.0.0.1"))
        connection.sendall(HEALTH.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
        assert connection.recv(100).startswith(b"HTTP/1.1 200")
        until(lambda: not server.server.connections.places.taken, within_s=20)


def test_a_peer_with_its_share_closes_its_own_longest_idle_connection(
    places: Places, attacked: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(places, "total", 40)
    kept = attacked.connect()
    assert answer(kept, HEALTH).status == 200
    theirs = []
    for _ in range(50):
        theirs.append(attacked.connect("127.0.0.2"))
        assert answer(theirs[-1], HEALTH).status == 200
    assert [ended(connection) for connection in theirs] == [True] * 44 + [False] * 6
    assert answer(kept, PEOPLE).status == 200


def test_where_all_places_are_taken_the_peer_with_the_most_gives_way(places: Places, attacked: Clients) -> None:
    taken = [attacked.connect(f"127.0.0.{host}") for host in (2, 3, 3, 3, 4, 4)]
    for connection in taken:
        assert answer(connection, HEALTH).status == 200
    assert attacked.ask(PEOPLE).status == 200
    assert [ended(connection) for connection in taken] == [False, True, False, False, False, False]


def test_where_all_places_are_held_health_is_answered_still(places: Places, attacked: Clients) -> None:
    held = attacked.begun(POST, 6)
    for path in (b"/healthz", b"/readyz/", b"/metrics?x"):
        assert attacked.ask(HEALTH.replace(b"/healthz", path)).status == 200
    refused = attacked.ask(PEOPLE)
    assert (refused.status, refused.headers["Retry-After"], refused.headers["Connection"]) == (503, "1", "close")
    for connection in held:
        assert answer(connection, b"no image").status == 400
    assert attacked.ask(PEOPLE).status == 200


def test_the_reserve_is_for_those_who_ask(live: LiveServer, places: Places, attacked: Clients) -> None:
    """All places are held, and then hundreds of connections come and are silent."""
    attacked.begun(POST, 6)
    for _ in range(200):
        attacked.connect("127.0.0.3")
    assert attacked.ask(HEALTH).status == 200
    assert live.server.connections.reserve.taken <= connections.RESERVE


def test_a_request_without_an_account_holds_no_place(places: Places, attacked: Clients) -> None:
    """Its body is still to come: the server would wait for a while before it answers 401."""
    for _ in range(6):
        attacked.connect("127.0.0.2").sendall(b"POST /people HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n")
    time.sleep(0.1)
    assert attacked.ask(PEOPLE).status == 200


def test_an_answer_that_nobody_reads_ends(
    live: LiveServer, places: Places, attacked: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "STALL_TIMEOUT_S", 0.3)
    connection = attacked.connect()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.sendall(HEALTH.replace(b"/healthz", b"/openapi.json") * 300)
    until(lambda: not places.taken)
    with live.http() as http_client:
        assert http_client.get("/people").status_code == 200


def test_a_trusted_proxy_has_no_share() -> None:
    """It stands for many clients."""
    crowd = connections.Connections(20, 2, "10.0.0.0/8, 192.0.2.1")
    for host, expected in (("192.0.2.2", (2, 2)), ("10.1.2.3", (6, 2)), ("192.0.2.1", (10, 2))):
        for _ in range(4):
            place = crowd.admit(host)
            assert place is not None
            place.hold()
        assert (crowd.places.taken, crowd.reserve.taken) == expected
