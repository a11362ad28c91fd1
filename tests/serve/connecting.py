"""Raw connections of clients in good faith and of attackers, from any address of the loopback."""

from __future__ import annotations

import http.client
import socket
from contextlib import ExitStack

from tests.serve.live import credentials

HEALTH = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"


def head(line: bytes, *more: bytes) -> bytes:
    headers = [name + b": " + value for name, value in credentials()]
    return b"\r\n".join([line + b" HTTP/1.1", b"Host: localhost", *headers, *more, b"", b""])


PEOPLE = head(b"GET /people")


class Clients:
    """Connections from any address of the loopback."""

    def __init__(self, port: int, stack: ExitStack) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self._port = port
        self._stack = stack

    def connect(self, host: str = "127.0.0.1") -> socket.socket:
        address = ("127.0.0.1", self._port)
        return self._stack.enter_context(socket.create_connection(address, timeout=60, source_address=(host, 0)))

    def begun(self, request: bytes, count: int, host: str = "127.0.0.2") -> list[socket.socket]:
        """Connections whose request waits for its body: it must have the header Expect: 100-continue."""
        connections = [self.connect(host) for _ in range(count)]
        for connection in connections:
            connection.sendall(request)
            assert connection.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        return connections

    def ask(self, request: bytes, host: str = "127.0.0.1") -> http.client.HTTPResponse:
        return answer(self.connect(host), request)


def answer(connection: socket.socket, request: bytes) -> http.client.HTTPResponse:
    connection.sendall(request)
    response = http.client.HTTPResponse(connection)
    response.begin()
    response.read()
    return response


def ended(connection: socket.socket) -> bool:
    """Whether the server has ended the connection, all answers of which were read."""
    connection.settimeout(0.05)
    try:
        return connection.recv(1) == b""
    except TimeoutError:
        return False
    except ConnectionError:
        return True
