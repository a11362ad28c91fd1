"""Bodies: read as they come, with a limit on size, on time, and on what all requests together hold in memory."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Final

from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pipeline.errors import BodyTimeout, BodyTooLarge, Overloaded
from pipeline.identities.batcher import RETRY_AFTER_S

_DRAIN_TIMEOUT_S: Final = 10.0
_DRAIN_IDLE_S: Final = 1.0  # a client that sends nothing for so long is waiting for the answer


class BodyReader:
    """Reads bodies into memory: at most `budget_bytes` of them at any moment, over all requests."""

    def __init__(self, *, max_bytes: int, timeout_s: float, budget_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._timeout_s = timeout_s
        self._budget = budget_bytes
        self._held = 0

    @property
    def held_bytes(self) -> int:
        return self._held

    @contextlib.asynccontextmanager
    async def body(self, request: Request, max_bytes: int | None = None) -> AsyncIterator[bytes]:
        """The request's body, which counts against the budget until the block ends.

        Raises BodyTooLarge (of a declared length: before anything is read), BodyTimeout, Overloaded where the
        budget is spent, and ClientDisconnect.
        """
        limit = self.max_bytes if max_bytes is None else max_bytes
        declared = declared_length(request.scope)
        if declared > limit:
            raise BodyTooLarge(limit_bytes=limit)
        came = _Came()
        try:
            # All of it now: were it counted as it comes, many large bodies at once would all end half-way.
            self._take(came, declared)
            yield await self._read(request, came, limit)
        finally:
            self._held -= came.counted

    async def _read(self, request: Request, came: _Came, limit: int) -> bytes:
        try:
            await asyncio.wait_for(self._collect(request, came, limit), self._timeout_s)
        except asyncio.TimeoutError:
            raise BodyTimeout(timeout_s=f"{self._timeout_s:g}") from None
        return came.joined()

    async def _collect(self, request: Request, came: _Came, limit: int) -> None:
        async for chunk in request.stream():
            if came.size + len(chunk) > limit:
                raise BodyTooLarge(limit_bytes=limit)
            came.add(chunk)
            self._take(came, came.size)

    def _take(self, came: _Came, size: int) -> None:
        """Counts a body as `size` bytes, if it did not count as more already. Raises Overloaded."""
        more = max(0, size - came.counted)
        if self._held + more > self._budget:
            raise Overloaded(retry_after_s=RETRY_AFTER_S)
        self._held += more
        came.counted += more


class _Came:
    """What came of one body, in bytes."""

    def __init__(self) -> None:
        self._chunks: list[bytes] = []
        self.size = 0
        self.counted = 0  # against the budget

    def add(self, chunk: bytes) -> None:
        self._chunks.append(chunk)
        self.size += len(chunk)

    def joined(self) -> bytes:
        """All of it, once: the parts are let go, so that a body is in memory twice for a moment only."""
        body = b"".join(self._chunks)
        self._chunks.clear()
        return body


def declared_length(scope: Scope) -> int:
    """The Content-Length, 0 where there is none. The HTTP parser lets only whole numbers through."""
    return next((int(value) for name, value in scope["headers"] if name == b"content-length"), 0)


class Drained:
    """Reads and drops the rest of a body before its answer goes out.

    An answer to a client that is still sending would be lost: the connection ends with a reset. What is too much
    to drain, or does not come, is not waited for, and the connection is closed after the answer.
    """

    def __init__(self, app: ASGIApp, *, max_bytes: int) -> None:
        self._app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        rest = _Rest(scope, receive)

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start" and not rest.complete:
                drained = message["status"] != BodyTimeout.http_status and await rest.drain(self._max_bytes)
                if not drained:
                    message["headers"] = [*message["headers"], (b"connection", b"close")]
            await send(message)

        await self._app(scope, rest.receive, answer)


class _Rest:
    """What is still to come of one request's body."""

    def __init__(self, scope: Scope, receive: Receive) -> None:
        names = {name for name, _ in scope["headers"]}
        self._receive = receive
        self._coming = declared_length(scope)
        self._asked_first = b"expect" in names  # sends nothing before it is told to go on
        self.complete = self._coming == 0 and b"transfer-encoding" not in names

    async def receive(self) -> Message:
        message = await self._receive()
        self._asked_first = False
        if message["type"] == "http.disconnect" or not message.get("more_body", False):
            self.complete = True
        self._coming -= len(message.get("body", b""))
        return message

    async def drain(self, max_bytes: int) -> bool:
        """Whether all of it came."""
        if self._asked_first or self._coming > max_bytes:
            return False
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._read(max_bytes), _DRAIN_TIMEOUT_S)
        return self.complete

    async def _read(self, max_bytes: int) -> None:
        size = 0
        while not self.complete and size <= max_bytes:
            message = await asyncio.wait_for(self.receive(), _DRAIN_IDLE_S)
            size += len(message.get("body", b""))


__all__ = ["BodyReader", "ClientDisconnect", "Drained", "declared_length"]
