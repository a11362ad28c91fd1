"""Around every request: its id, its line in the log, its place in the metrics, and the net under it."""

from __future__ import annotations

import logging
import os
from collections.abc import Awaitable, Callable
from typing import Final

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pipeline.serve.errors import request_id, unexpected_response
from pipeline.serve.metrics import UNMATCHED, Metrics

Handler = Callable[[Request], Awaitable[Response]]

access_log = logging.getLogger("facepipe.access")
error_log = logging.getLogger("facepipe.errors")
GONE: Final = 499  # in the log and the metrics: the client went away before the answer


class Outer:
    """The outermost middleware. One line per request: never a header's value, a query or an id of a person."""

    def __init__(self, app: ASGIApp, *, metrics: Metrics, clock: Callable[[], float]) -> None:
        self._app = app
        self._metrics = metrics
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun = self._clock()
        scope["state"] = {**scope.get("state", {}), "request_id": os.urandom(8).hex()}
        _same_route_without_slash(scope)
        answer = _Answer(send, request_id(scope))
        try:
            await self._guarded(scope, receive, answer)
        finally:
            self._tell(scope, answer.status, self._clock() - begun)

    async def _guarded(self, scope: Scope, receive: Receive, answer: _Answer) -> None:
        try:
            await self._app(scope, receive, answer)
        except ClientDisconnect:
            pass
        except Exception:  # the outermost frame of a request: whatever it is, the server stays up
            error_log.exception("unexpected error id=%s", request_id(scope))
            if answer.status != GONE:  # it has begun: the connection is all that can be ended
                raise
            await unexpected_response(scope)(scope, receive, answer)

    def _tell(self, scope: Scope, status: int, seconds: float) -> None:
        route = scope["state"].get("route", UNMATCHED)
        method = scope["method"]
        self._metrics.answered(method, route, status, seconds)
        access_log.info(
            "id=%s method=%s route=%s status=%d ms=%.1f", request_id(scope), method, route, status, seconds * 1000
        )


class _Answer:
    """Passes an answer on with its id, and remembers its status."""

    def __init__(self, send: Send, name: str) -> None:
        self._send = send
        self._headers = [(b"x-request-id", name.encode()), (b"x-content-type-options", b"nosniff")]
        self.status = GONE

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message["headers"] = [*message.get("headers", ()), *self._headers]
        await self._send(message)


def named(route: str, handler: Handler) -> Handler:
    """The handler of a route, under whose template its requests are counted and logged."""

    async def endpoint(request: Request) -> Response:
        request.scope["state"]["route"] = route
        return await handler(request)

    return endpoint


def _same_route_without_slash(scope: Scope) -> None:
    """A slash at the end of the path is no other address; an encoded one is a character of an id."""
    raw: bytes = scope.get("raw_path") or b""
    if len(raw) > 1 and raw.endswith(b"/"):
        scope["path"] = scope["path"].removesuffix("/")
