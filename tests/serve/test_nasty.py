"""Clients that break the rules of HTTP or behave badly, over raw sockets. The server answers and stays up."""

from __future__ import annotations

import contextlib
import json
import select
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from PIL import Image

from pipeline.extraction.extractor import BatchExtractor
from pipeline.serve import protocol
from tests.extraction.helpers import encode, with_scans
from tests.serve.live import LiveServer, credentials, live_server
from tests.waiting import until

MIB = 2**20
GET_HEALTH = b"GET /healthz HTTP/1.1\r\n"
NEWEST_UVICORN = (0, 54)  # tried with all tests of this folder; pyproject.toml caps uvicorn at the next one


def test_uvicorn_is_a_version_that_was_tried() -> None:
    """serve/protocol.py builds on the internals of uvicorn, so a newer one must be tried before the cap is raised."""
    assert tuple(int(part) for part in uvicorn.__version__.split(".")[:2]) <= NEWEST_UVICORN
    cap = f"{NEWEST_UVICORN[0]}.{NEWEST_UVICORN[1] + 1}"
    assert f'"uvicorn>=0.31,<{cap}"' in (Path(__file__).parents[2] / "pyproject.toml").read_text()


@pytest.fixture(autouse=True)
def _still_up(live: LiveServer) -> Iterator[None]:
    """After every test the server answers, and holds no body."""
    yield
    assert httpx.get(f"{live.url}/healthz").status_code == 200
    until(lambda: "facepipe_body_bytes 0.0" in httpx.get(f"{live.url}/metrics").text, "the server still holds a body")


def head(*more: bytes, request: bytes = b"POST /people HTTP/1.1") -> bytes:
    """Request line and headers, with the empty line."""
    headers = [name + b": " + value for name, value in credentials("nasty")]
    return b"\r\n".join([request, b"Host: localhost", *headers, *more, b"", b""])


def answer_of(connection: socket.socket) -> tuple[int, dict[str, Any]]:
    """Status and JSON body of the next answer."""
    data = b""
    while b"\r\n\r\n" not in data:
        part = connection.recv(65536)
        assert part, f"closed after {data!r}"
        data += part
    headers, _, body = data.partition(b"\r\n\r\n")
    length = next(int(line.split(b":")[1]) for line in headers.split(b"\r\n") if line.startswith(b"content-length"))
    while len(body) < length:
        body += connection.recv(65536)
    return int(headers.split(b" ")[1]), json.loads(body[:length])


def ask(live: LiveServer, data: bytes) -> tuple[int, str]:
    """Status and reason of the answer to these bytes."""
    with live.connect() as connection:
        connection.sendall(data)
        status, body = answer_of(connection)
        return status, body["errorReason"]


def closes(connection: socket.socket) -> bool:
    """Whether the server ends the connection."""
    try:
        while connection.recv(65536):
            pass
    except ConnectionError:
        return True
    return True


# Bodies


def test_a_body_over_the_limit_in_chunks_of_unknown_number(live: LiveServer) -> None:
    with live.http("nasty") as http:
        answer = http.post("/people", content=(bytes(MIB) for _ in range(33)))
    assert (answer.status_code, answer.json()["errorReason"]) == (413, "body-too-large")


@pytest.mark.parametrize(
    "headers", [[b"Content-Length: 10000000000000"], [b"Content-Length: 40000000", b"Expect: 100-continue"]]
)
def test_a_declared_length_over_the_limit_is_refused_at_once(live: LiveServer, headers: list[bytes]) -> None:
    assert ask(live, head(*headers)) == (413, "body-too-large")  # and not 408, once it has waited for the body


def test_a_client_that_asks_first_is_told_to_go_on(live: LiveServer) -> None:
    with live.connect() as connection:
        connection.sendall(head(b"Content-Length: 8", b"Expect: 100-continue"))
        assert connection.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(b"no image")
        assert answer_of(connection)[0] == 400


def test_a_picture_that_ends_early(live: LiveServer, hopper: bytes) -> None:
    with live.http("nasty") as http:
        answer = http.post("/people", content=hopper[: len(hopper) // 2])
    assert (answer.status_code, answer.json()["errorReason"]) == (400, "image-truncated")


def test_a_jpeg_of_endless_scans(live: LiveServer, hopper_path: Path) -> None:
    """A decoder goes over the whole picture for each, however few bytes it has."""
    data = with_scans(encode(Image.open(hopper_path), progressive=True), 1000)
    with live.http("nasty") as http:
        answer = http.post("/people", content=data)
    assert (answer.status_code, answer.json()["errorReason"]) == (413, "image-too-large")


def test_a_body_that_never_comes(live: LiveServer) -> None:
    start = time.monotonic()
    assert ask(live, head(b"Content-Length: 1000")) == (408, "body-timeout")
    assert time.monotonic() - start > 1


@pytest.mark.parametrize("framing", [b"Content-Length: 1000", b"Transfer-Encoding: chunked"])
def test_a_body_that_drips(live: LiveServer, framing: bytes) -> None:
    with live.connect() as connection:
        connection.sendall(head(framing))
        start = time.monotonic()
        connection.settimeout(0.1)
        while time.monotonic() - start < 10:
            connection.sendall(b"1\r\nx\r\n")
            try:
                status, body = answer_of(connection)
                break
            except TimeoutError:
                continue
        assert (status, body["errorReason"]) == (408, "body-timeout")


def test_a_slow_body_that_keeps_moving(live: LiveServer, hopper: bytes) -> None:
    """In twice the time that nothing may come for."""
    pieces = [hopper[start : start + len(hopper) // 12] for start in range(0, len(hopper), len(hopper) // 12)]
    with live.connect() as connection:
        connection.sendall(head(b"Content-Length: %d" % len(hopper), request=b"POST /people?insert=false HTTP/1.1"))
        for piece in pieces:
            time.sleep(3.0 / len(pieces))
            connection.sendall(piece)
        assert answer_of(connection)[0] == 201


def test_a_body_that_stops(live: LiveServer, hopper: bytes) -> None:
    with live.connect() as connection:
        connection.sendall(head(b"Content-Length: %d" % len(hopper)) + hopper[:-1])
        start = time.monotonic()
        assert answer_of(connection)[1]["errorReason"] == "body-timeout"
        assert time.monotonic() - start > 1


def test_a_length_that_lies_short(live: LiveServer) -> None:
    """What is more than announced would be the next request: it is none."""
    with live.connect() as connection:
        connection.sendall(head(b"Content-Length: 8") + b"no image" + b"and more than that\r\n\r\n")
        assert answer_of(connection)[1]["errorReason"] == "image-unsupported"
        assert closes(connection)


def test_a_client_that_goes_away_in_the_middle(live: LiveServer, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        for _ in range(5):
            with live.connect() as connection:
                connection.sendall(head(b"Content-Length: 100000") + bytes(5000))
        until(lambda: sum("status=499" in record.getMessage() for record in caplog.records) >= 5)
    assert not [record for record in caplog.records if record.levelname in ("WARNING", "ERROR")]


def test_a_client_that_goes_away_before_its_answer(live: LiveServer, hopper: bytes) -> None:
    with live.connect() as connection:
        length = str(len(hopper)).encode()
        request = b"POST /people?insert=false&update=false HTTP/1.1"
        connection.sendall(head(b"Content-Length: " + length, request=request) + hopper)
        time.sleep(0.05)


# Headers


@pytest.mark.parametrize(
    "flood",
    [
        b"GET /" + b"a" * 1_000_000,
        GET_HEALTH + b"X-Flood: " + b"x" * 70_000 + b"\r\n",
        GET_HEALTH + b"X-F: y\r\n" * 10_000,
        GET_HEALTH + b"X-Flood: " + b"x" * 1_000_000,
        GET_HEALTH + b"x" * 1_000_000,
    ],
    ids=["request line", "long header", "many headers", "header without end", "name without end"],
)
def test_floods_of_headers(live: LiveServer, flood: bytes) -> None:
    with live.connect() as connection:
        try:
            connection.sendall(flood)
            status, body = answer_of(connection)
            assert (status, body["errorReason"]) == (431, "headers-too-large")
        except ConnectionError:
            pass  # closed while the flood went on
        assert closes(connection)


def test_trailers_without_end(live: LiveServer) -> None:
    with live.connect() as connection:
        connection.sendall(head(b"Transfer-Encoding: chunked") + b"0\r\n")
        for _ in range(20):
            connection.sendall(b"X-Trailer: " + b"y" * 10_000 + b"\r\n")
            if select.select([connection], [], [], 0.01)[0]:
                break
        assert answer_of(connection)[1]["errorReason"] == "headers-too-large"


@pytest.mark.parametrize(
    "data",
    [
        b"hello\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"POST /people HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /people HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n",
        b"POST /people HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzzz\r\n",
        b"GET /\xff\xfe HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET // HTTP/9.9\r\n\r\n",
        b"CONNECT example.org:443 HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ],
)
def test_what_is_no_http(live: LiveServer, data: bytes) -> None:
    with live.connect() as connection:
        connection.sendall(data)
        status, body = answer_of(connection)
        assert (status, body["errorReason"]) in [(400, "request-malformed"), (404, "route-unknown")]
        assert body["status"] == status
        assert closes(connection) or status == 404


def test_headers_that_never_come(live: LiveServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "HEADER_TIMEOUT_S", 0.3)
    for begun_with in (b"", GET_HEALTH + b"X-A"):
        with live.connect() as connection:
            connection.sendall(begun_with)
            assert answer_of(connection)[1]["errorReason"] == "headers-timeout"
            assert closes(connection)


def test_the_second_request_of_a_connection_is_timed_too(live: LiveServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "HEADER_TIMEOUT_S", 0.3)
    with live.connect() as connection:
        connection.sendall(GET_HEALTH + b"Host: localhost\r\n\r\n")
        assert answer_of(connection)[0] == 200
        time.sleep(0.5)  # an idle connection is kept
        connection.sendall(GET_HEALTH)
        assert answer_of(connection)[1]["errorReason"] == "headers-timeout"


def test_requests_in_one_packet_are_answered_in_order(live: LiveServer) -> None:
    with live.connect() as connection:
        connection.sendall(
            b"GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\nGET /nothing HTTP/1.1\r\nHost: localhost\r\n\r\n"
        )
        received = b""
        while received.count(b"HTTP/1.1") < 2:
            received += connection.recv(65536)
    assert received.index(b"200 OK") < received.index(b"404 Not Found")


@pytest.mark.parametrize("protocol_name", [b"h2c", b"websocket"])
def test_a_client_that_asks_for_another_protocol_is_served_in_this_one(
    live: LiveServer, hopper: bytes, protocol_name: bytes
) -> None:
    """Java's HttpClient asks for HTTP/2 with its first request, whatever the request is."""
    asking = (b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: " + protocol_name, b"HTTP2-Settings: AAMAAABkAAQAAP__")
    post = b"POST /people?insert=false&update=false HTTP/1.1"
    with live.connect() as connection:
        data = head(*asking, b"Content-Length: %d" % len(hopper), request=post) + hopper
        connection.sendall(data[:150])
        time.sleep(0.05)
        connection.sendall(data[150:])
        status, body = answer_of(connection)
        assert (status, len(body["identifiedFaces"])) == (201, 1)
        connection.sendall(head(*asking, request=b"GET /people HTTP/1.1"))
        status, body = answer_of(connection)
        assert (status, body["people"]) == (200, [])
        connection.sendall(head(b"Content-Length: 8", request=post) + b"no image")
        assert answer_of(connection)[0] == 400


def test_many_requests_for_another_protocol_in_one_packet_are_all_answered(live: LiveServer) -> None:
    request = GET_HEALTH + b"Host: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
    with live.connect() as connection:
        connection.sendall(1499 * request + request.replace(b"Upgrade\r\n", b"Upgrade, close\r\n", 1))
        received = b""
        while part := connection.recv(65536):
            received += part
    assert received.count(b"HTTP/1.1 200 OK") == 1500


# Many at once


def test_the_bodies_of_all_requests_are_bounded(
    tmp_path_factory: pytest.TempPathFactory, extractor: BatchExtractor
) -> None:
    """Twenty clients each send most of a body and hold back the rest: there is room for sixteen."""
    folder = tmp_path_factory.mktemp("bodies")
    with (
        live_server(folder / "store", extractor, serve__max_body_bytes=MIB, serve__body_timeout_s=5) as small,
        contextlib.ExitStack() as stack,
    ):
        connections = [stack.enter_context(small.connect()) for _ in range(20)]

        def send(connection: socket.socket) -> int:
            connection.sendall(head(b"Content-Length: %d" % MIB) + bytes(MIB - 1000))
            return answer_of(connection)[0]

        with ThreadPoolExecutor(20) as pool:
            statuses = list(pool.map(send, connections))
    assert sorted(statuses) == [408] * 16 + [503] * 4
