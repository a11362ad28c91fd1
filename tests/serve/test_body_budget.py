"""The memory for bodies: what was only announced takes none of it, and nobody can keep others from their part."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack

import httpx
import pytest

from pipeline.extraction.extractor import BatchExtractor
from tests.serve.connecting import Clients, answer, head
from tests.serve.live import live_server
from tests.waiting import until

MOST = 2**16  # bytes of a body; there is room for 16
BEGIN = head(b"POST /people", b"Content-Length: %d" % MOST, b"Expect: 100-continue")
POST = head(b"POST /people", b"Content-Length: %d" % MOST) + b"no image" + bytes(MOST - 8)


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory, extractor: BatchExtractor) -> Iterator[int]:
    store = tmp_path_factory.mktemp("budget") / "store"
    with live_server(store, extractor, serve__max_body_bytes=MOST, serve__body_timeout_s=20) as server:
        yield server.port


@pytest.fixture
def senders(port: int) -> Iterator[Clients]:
    with ExitStack() as stack:
        yield Clients(port, stack)


def held_bytes(url: str) -> float:
    lines = httpx.get(f"{url}/metrics").text.splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith("facepipe_body_bytes "))


def begin(senders: Clients, bodies: int, sent: int) -> list[socket.socket]:
    """Bodies of alice's from 127.0.0.2 that stay unfinished; `sent` bytes of each have arrived."""
    connections = senders.begun(BEGIN, bodies)
    for connection in connections:
        connection.sendall(bytes(sent))
    until(lambda: held_bytes(senders.url) >= bodies * sent)
    return connections


def test_announced_bodies_take_no_memory(senders: Clients) -> None:
    begin(senders, 30, sent=0)
    assert senders.ask(POST).status == 400


@pytest.mark.parametrize(("user", "host"), [(b"bob", "127.0.0.2"), (b"alice", "127.0.0.1")])
def test_who_takes_all_gives_way_to_another_account_and_to_another_peer(
    senders: Clients, user: bytes, host: str
) -> None:
    connections = begin(senders, 16, sent=MOST - 100)
    assert senders.ask(POST.replace(b"alice:", user + b":"), host).status == 400
    statuses = [answer(connection, bytes(100)).status for connection in connections]
    assert statuses == [400] * 15 + [503]
