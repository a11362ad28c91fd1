"""uvicorn's HTTP/1.1 protocol with additional limits: on headers and their time, on connections, and on answers that
nobody reads.

Input that never becomes a request is answered here, in the format of all errors. This builds on the internals of
uvicorn, whose version pyproject.toml caps.
"""

from __future__ import annotations

import asyncio
import re
from http import HTTPStatus
from typing import Any, Final

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from pipeline.people.batcher import RETRY_AFTER_S
from pipeline.serve.connections import Place
from pipeline.serve.hosts import is_health
from pipeline.serve.responses import SECURE, error_body, json_response

MAX_HEADER_BYTES: Final = 64 * 1024  # the request line, the headers, and the trailers
HEADER_TIMEOUT_S: Final = 10.0
STALL_TIMEOUT_S: Final = 30.0  # how long a client may read nothing of a waiting answer
_AUTHORITY: Final = re.compile(rb"[a-z][a-z0-9+.-]*://([^/?#]*)", re.IGNORECASE)
_VERSIONS: Final = ("1.0", "1.1")  # the parser accepts more
_TOO_LARGE: Final = (431, "headers-too-large", f"The headers are larger than {MAX_HEADER_BYTES} bytes.")
_MALFORMED: Final = (400, "request-malformed", "This is not a valid HTTP/1.1 request.")
_CROWDED: Final = (503, "overloaded", "The server has as many connections as it can hold. Try again later.")
_TIMEOUT: Final = (408, "headers-timeout", f"The headers did not arrive within {HEADER_TIMEOUT_S:g} seconds.")


class _Refused(Exception):
    """Ends the parsing of a message that is refused."""


class LimitedProtocol(HttpToolsProtocol):  # type: ignore[misc, unused-ignore]
    """One connection."""

    def __init__(self, *args: Any, place: Place, **options: Any) -> None:
        super().__init__(*args, **options)
        self._place = place
        self._in_headers = True
        self._header_bytes = 0  # of the current message
        self._fed = 0  # bytes since the end of the previous message
        self._refused = False
        self._why = _MALFORMED  # the answer if the parser stops
        self._asks_upgrade = b""
        self._timer: asyncio.TimerHandle | None = None
        self._stall: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._place.end = transport.abort
        self._arm()

    def connection_lost(self, exc: Exception | None) -> None:
        self._place.leave()
        self._disarm()
        self.resume_writing()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_reader()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None

    def data_received(self, data: bytes) -> None:
        if self._refused or self.transport.is_closing():
            return
        self._fed += len(data)
        self._unset_keepalive_if_required()
        self._parse(data)
        # A header without an end never reaches on_header, so bytes fed to the parser count, too.
        if self._in_headers and self._fed > MAX_HEADER_BYTES and not self._refused:
            self._refuse(*_TOO_LARGE)

    def _parse(self, data: bytes) -> None:
        try:
            while data:
                data = self._fed_until_upgrade(data)
        except (httptools.HttpParserError, _Refused):
            self._refuse(*self._why)

    def _fed_until_upgrade(self, data: bytes) -> bytes:
        """Parses `data` up to a request for another protocol; returns the rest: this request without its upgrade, and
        what follows.

        This server speaks no other protocol, and the parser would skip the body. (Java's HttpClient asks for HTTP/2 in
        its first request.)
        """
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            head, self._asks_upgrade = self._asks_upgrade, b""
            if not head:  # CONNECT, which is for proxies
                raise _Refused from None
            self.parser = httptools.HttpRequestParser(self)
            self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn does
            return head + data[upgrade.args[0] :]
        return b""

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["state"]["place"] = self._place
        self._in_headers, self._header_bytes = True, 0
        if self._timer is None:
            self._arm()

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value) + 4)
        if self._in_headers:  # not for trailers, which must not change an accepted request
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self.parser.should_upgrade():
            self._asks_upgrade = self._plain_head()
            return
        if self.parser.get_http_version() not in _VERSIONS:
            raise _Refused
        self._take_authority()
        if self._place.reserved and not is_health(self.url.partition(b"?")[0]):
            self._why = _CROWDED
            raise _Refused
        self._in_headers = False
        self._disarm()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        if not self.parser.should_upgrade():
            super().on_message_complete()
            self._fed = 0

    def on_response_complete(self) -> None:
        self._place.release()
        super().on_response_complete()

    def _take_authority(self) -> None:
        """Uses the host of a target in absolute form instead of the Host header (RFC 9112, 3.2.2)."""
        if self.url.startswith(b"/"):
            return
        authority = _AUTHORITY.match(self.url)
        if authority is not None:
            self.headers[:] = [(name, authority[1] if name == b"host" else value) for name, value in self.headers]

    def _plain_head(self) -> bytes:
        """The request line and headers, without the wish for another protocol."""
        method: bytes = self.parser.get_method()
        if method == b"CONNECT":
            return b""
        closing = any(name == b"connection" and b"close" in value.lower() for name, value in self.headers)
        kept = [(name, value) for name, value in self.headers if name not in (b"connection", b"upgrade")]
        kept += [(b"connection", b"close")] if closing else []
        version = self.parser.get_http_version().encode()
        lines = [b"%s %s HTTP/%s" % (method, self.url, version), *(b"%s: %s" % header for header in kept)]
        return b"\r\n".join([*lines, b"", b""])

    def _count(self, size: int) -> None:
        self._header_bytes += size
        if self._header_bytes > MAX_HEADER_BYTES:
            self._why = _TOO_LARGE
            raise _Refused

    def _refuse(self, status: int, reason: str, message: str) -> None:
        """Answers without a request, and closes the connection."""
        self._refused = True
        self._disarm()
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete:
            if not cycle.more_body:  # a complete request came before the bad input and is still answered
                cycle.keep_alive = False
                return
            cycle.disconnected = True
            cycle.message_event.set()
        if cycle is None or cycle.response_complete or not cycle.response_started:
            body = error_body(status, reason, message, "", "")
            self.transport.write(_raw_answer(status, body, self.scheme == "https"))
        self.transport.close()

    def _arm(self) -> None:
        self._timer = self.loop.call_later(HEADER_TIMEOUT_S, self._too_slow)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _too_slow(self) -> None:
        self._timer = None
        if not self.transport.is_closing():
            self._refuse(*_TIMEOUT)

    def _watch_reader(self, waiting: int | None = None) -> None:
        """Ends the connection if the client read nothing since `waiting` bytes waited."""
        now = self.transport.get_write_buffer_size()
        if waiting is not None and now >= waiting:
            self.transport.abort()
            return
        self._stall = self.loop.call_later(STALL_TIMEOUT_S, self._watch_reader, now)


def _raw_answer(status: int, body: dict[str, Any], is_secure: bool) -> bytes:
    headers = {"Connection": "close"}
    if status == HTTPStatus.SERVICE_UNAVAILABLE:
        headers["Retry-After"] = str(RETRY_AFTER_S)
    answer = json_response(body, status, headers)
    lines = [b"%s: %s" % header for header in (*answer.raw_headers, *SECURE[is_secure])]
    return STATUS_LINE[status] + b"\r\n".join([*lines, b"", b""]) + bytes(answer.body)
