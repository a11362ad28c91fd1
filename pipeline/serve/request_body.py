"""Reads request bodies, limiting size, time, and total memory."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any, Final

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pipeline.errors import BodyInvalid, BodyTimeout, BodyTooLarge, Overloaded
from pipeline.people.batcher import RETRY_AFTER_S
from pipeline.serve.connections import peer_of
from pipeline.serve.request_parsing import check_form, check_media_type, json_object

MAX_JSON_BYTES: Final = 1 << 20
LEAST_RATE: Final = 1024  # bytes per second of a body
_DRAIN_TIMEOUT_S: Final = 10.0
_DRAIN_IDLE_S: Final = 1.0  # a client that sends nothing for this long waits for the answer


class BodyBudget:
    """A budget of `total` bytes, which count on arrival: announced bodies take nothing."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.taken = 0
        self._owners: Counter[tuple[int, str | None]] = Counter()  # bytes by account and peer; peer None: of all peers
        self._arriving: set[Body] = set()
        self._numbers = itertools.count()

    def body(self, account_id: int, peer: str) -> Body:
        """Starts a body, which counts until it is released."""
        body = Body(account_id, peer, next(self._numbers))
        self._arriving.add(body)
        return body

    def add(self, body: Body, chunk: bytes) -> None:
        """Adds a chunk to a body. If the budget is spent, first evicts an arriving body: of the account with the most
        bytes, there of the peer with the most, and there the latest. Raises Overloaded if that is `body` itself, or was
        already: a reader cancelled as its chunk arrives may still add it (asyncio.wait_for before Python 3.12)."""
        if body.refused:
            raise Overloaded(retry_after_s=RETRY_AFTER_S)
        while self.taken + len(chunk) > self.total:
            last = max((other for other in self._arriving if other.size or other is body), key=self._claim)
            if last is body:
                raise Overloaded(retry_after_s=RETRY_AFTER_S)
            self.release(last)
            last.refused = True
            last.give_way()
        self._count(body, len(chunk))
        body.chunks.append(chunk)

    def arrived(self, body: Body) -> None:
        """Marks a body as complete: it is no longer evicted."""
        self._arriving.discard(body)

    def release(self, body: Body) -> None:
        """Frees a body's bytes; a second call does nothing."""
        self._arriving.discard(body)
        body.chunks.clear()
        self._count(body, -body.size)

    def _count(self, body: Body, size: int) -> None:
        body.size += size
        self.taken += size
        for owner in ((body.account_id, None), (body.account_id, body.peer)):
            self._owners[owner] += size
            if not self._owners[owner]:
                del self._owners[owner]

    def _claim(self, body: Body) -> tuple[int, int, int]:
        return self._owners[body.account_id, None], self._owners[body.account_id, body.peer], body.number


@dataclass(eq=False)
class Body:
    """The `size` bytes of a body that have arrived."""

    account_id: int
    peer: str
    number: int  # in order of arrival
    size: int = 0
    chunks: list[bytes] = field(default_factory=list)
    refused: bool = False  # it was evicted
    give_way: Callable[[], object] = lambda: None  # called on eviction, to stop its reading


class BodyReader:
    """Reads bodies into memory, at most `total_bytes` together."""

    def __init__(self, *, max_bytes: int, timeout_s: float, total_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.budget = BodyBudget(total_bytes)
        self._timeout_s = timeout_s

    @contextlib.asynccontextmanager
    async def body(self, request: Request, account_id: int, max_bytes: int | None = None) -> AsyncIterator[bytes]:
        """Reads the request's body, which counts against the budget until the block ends.

        Raises BodyTooLarge (before reading if a length is declared), BodyTimeout, Overloaded if the budget is spent,
        and ClientDisconnect.
        """
        limit = self.max_bytes if max_bytes is None else max_bytes
        if declared_length(request.scope) > limit:
            raise BodyTooLarge(limit_bytes=limit)
        body = self.budget.body(account_id, peer_of(request))
        try:
            await self._read(request, body, limit)
            data = b"".join(body.chunks)
            body.chunks.clear()  # limits the time with two copies
            yield data
        finally:
            self.budget.release(body)

    @contextlib.asynccontextmanager
    async def image(self, request: Request, account_id: int) -> AsyncIterator[bytes]:
        """Reads the image in a request's body.

        Raises as `body`, MediaTypeUnsupported and ContentEncodingUnsupported (before reading, except for a form), and
        BodyInvalid for an empty body.
        """
        check_media_type(request)
        async with self.body(request, account_id) as data:
            check_form(request, data)
            if not data:
                raise BodyInvalid(detail="it is empty")
            yield data

    async def object(self, request: Request, account_id: int, max_bytes: int = MAX_JSON_BYTES) -> dict[str, Any]:
        """Reads the JSON object in the body. Raises as `body`, and BodyInvalid."""
        async with self.body(request, account_id, max_bytes) as data:
            return json_object(data)

    async def _read(self, request: Request, body: Body, limit: int) -> None:
        reading = asyncio.ensure_future(self._collect(request, body, limit))
        body.give_way = reading.cancel
        try:
            await reading
        except asyncio.CancelledError:
            if body.refused:
                raise Overloaded(retry_after_s=RETRY_AFTER_S) from None
            raise

    async def _collect(self, request: Request, body: Body, limit: int) -> None:
        """Raises BodyTimeout if no chunk arrives within the timeout, or the body falls behind LEAST_RATE by as much:
        slow uploads succeed while they progress."""
        chunks, begun = request.stream(), time.monotonic()
        while True:
            left_s = begun + self._timeout_s + body.size / LEAST_RATE - time.monotonic()
            try:
                chunk = await asyncio.wait_for(anext(chunks), min(self._timeout_s, left_s))
            except StopAsyncIteration:
                self.budget.arrived(body)
                return
            except asyncio.TimeoutError:
                raise BodyTimeout(timeout_s=f"{self._timeout_s:g}", bytes_per_s=LEAST_RATE) from None
            if body.size + len(chunk) > limit:
                raise BodyTooLarge(limit_bytes=limit)
            self.budget.add(body, chunk)


def declared_length(scope: Scope) -> int:
    """The Content-Length, 0 if missing. The HTTP parser only accepts whole numbers."""
    return next((int(value) for name, value in scope["headers"] if name == b"content-length"), 0)


def drained(app: ASGIApp, *, max_bytes: int) -> ASGIApp:
    """A middleware that reads and drops the rest of a body before the answer is sent.

    Otherwise a connection reset would destroy the answer for a client that is still sending. If the rest is too large
    or does not arrive, the connection is closed after the answer.
    """

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        rest = _RestOfBody(scope, receive)

        async def drain_and_send(message: Message) -> None:
            if message["type"] == "http.response.start" and not rest.complete:
                is_timeout = message["status"] == BodyTimeout.http_status
                if is_timeout or not await rest.drain(max_bytes):
                    message["headers"] = [*message["headers"], (b"connection", b"close")]
            await send(message)

        await app(scope, rest.receive, drain_and_send)

    return answer


class _RestOfBody:
    """The part of a request's body still to come."""

    def __init__(self, scope: Scope, receive: Receive) -> None:
        names = {name for name, _ in scope["headers"]}
        self._receive = receive
        self._declared_left = declared_length(scope)
        self._waits_for_continue = b"expect" in names  # sends nothing before "100 Continue"
        self.complete = self._declared_left == 0 and b"transfer-encoding" not in names

    async def receive(self) -> Message:
        message = await self._receive()
        self._waits_for_continue = False
        if message["type"] == "http.disconnect" or not message.get("more_body", False):
            self.complete = True
        self._declared_left -= len(message.get("body", b""))
        return message

    async def drain(self, max_bytes: int) -> bool:
        """Returns whether the rest arrived."""
        if self._waits_for_continue or self._declared_left > max_bytes:
            return False
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._read(max_bytes), _DRAIN_TIMEOUT_S)
        return self.complete

    async def _read(self, max_bytes: int) -> None:
        size = 0
        while not self.complete and size <= max_bytes:
            message = await asyncio.wait_for(self.receive(), _DRAIN_IDLE_S)
            size += len(message.get("body", b""))
