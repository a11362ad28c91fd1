"""A proxy in front of a server of S3's API that fails as networks do, and counts what is asked for."""

from __future__ import annotations

import random
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext, suppress
from http.client import HTTPConnection, HTTPResponse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

UNAVAILABLE = "503"
DENIED = "403"
FAILED = "500"
RESET = "reset"  # before an answer
LOST = "lost"  # the server did what was asked for, and its answer does not arrive
CUT = "cut"  # in the middle of a body
SLOW = "slow"  # a body in small pieces, one after another
STALLED = "stalled"  # a body that stops, and a connection that stays
OFTEN = (UNAVAILABLE, FAILED, RESET, CUT, SLOW)
_FAILURE = b"<Error><Code>InternalError</Code><Message>no</Message></Error>"


class FaultyProxy:
    """Listens at `url` until it is closed; `choose` says of a request (method, path) what goes wrong with it."""

    def __init__(self, target: tuple[str, int], choose: Callable[[str, str], str | None] = lambda *_: None) -> None:
        self.choose = choose
        self.asked: Counter[str] = Counter()  # by method; those for listings are LIST
        self.failed: Counter[str] = Counter()
        self.closed = threading.Event()
        proxy, lock = self, threading.Lock()
        # The server looks whether an object is there, and then writes it: two would write what S3 lets one write.
        writing = threading.Lock()

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None: ...

            def _pass_on(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                with lock:
                    fault = proxy.choose(self.command, self.path)
                    proxy.asked["LIST" if "list-type=" in self.path else self.command] += 1
                    proxy.failed.update([fault] if fault else [])
                if fault in (UNAVAILABLE, FAILED, DENIED):
                    self._answer(int(fault), {}, _FAILURE)
                elif fault == RESET:
                    self._reset()
                else:
                    with nullcontext() if self.command in ("GET", "HEAD") else writing:
                        connection = HTTPConnection(*target)
                        connection.request(self.command, self.path, body, dict(self.headers))
                        answer = connection.getresponse()
                        whole = answer.read()
                        connection.close()
                    self._send(answer, whole, fault)

            def _send(self, answer: HTTPResponse, whole: bytes, fault: str | None) -> None:
                if fault == LOST:
                    self._reset()
                    return
                headers = {k: v for k, v in answer.getheaders() if k.lower() not in ("connection", "transfer-encoding")}
                half = len(whole) // 2
                if fault == CUT and self.command == "GET":
                    self._answer(answer.status, headers, whole[:half], len(whole))
                    self._reset()
                elif fault == STALLED and self.command == "GET":
                    self._answer(answer.status, headers, whole[:half], len(whole))
                    proxy.closed.wait()
                elif fault == SLOW and self.command == "GET":
                    self._answer(answer.status, headers, b"", len(whole))
                    for start in range(0, len(whole), len(whole) // 8 + 1):
                        time.sleep(0.02)
                        self.wfile.write(whole[start : start + len(whole) // 8 + 1])
                else:
                    self._answer(answer.status, headers, whole)

            def _answer(self, status: int, headers: dict[str, str], body: bytes, length: int | None = None) -> None:
                self.send_response_only(status)
                said = {k: v for k, v in headers.items() if k.lower() != "content-length"}
                told = headers.get("Content-Length") if self.command == "HEAD" else None
                for name, value in said.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", told or str(len(body) if length is None else length))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)
                self.wfile.flush()

            def _reset(self) -> None:
                """So that the other side gets an error, and not an end."""
                self.close_connection = True
                linger = struct.pack("ii", 1, 0)
                with suppress(OSError):
                    self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                    self.connection.close()

            def handle(self) -> None:
                with suppress(OSError, ValueError):  # the client is gone, or the connection is reset
                    super().handle()

        for method in ("GET", "HEAD", "PUT", "POST", "DELETE"):
            setattr(Handler, f"do_{method}", Handler._pass_on)
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        self.closed.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def failing(share: float, seed: int = 0) -> Callable[[str, str], str | None]:
    """A share of the requests fails, in any of the ways that are OFTEN."""
    chance = random.Random(seed)
    return lambda *_: chance.choice(OFTEN) if chance.random() < share else None
