"""Wraps every request: assigns an id, checks its head, logs and counts it, and answers 500 to uncaught errors."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Awaitable, Callable
from typing import Final

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pipeline.errors import RequestError
from pipeline.serve.metrics import UNMATCHED, Metrics
from pipeline.serve.responses import SECURE, error_response, request_id, unexpected_response
from pipeline.serve.ui.same_site import page_headers

Handler = Callable[[Request], Awaitable[Response]]

access_log = logging.getLogger("facepipe.access")
error_log = logging.getLogger("facepipe.errors")
GONE: Final = 499  # the status in the log and the metrics if the client disconnected before the answer


class RequestMiddleware:
    """Wraps all handlers; `head_error` returns why a request's head is refused. The access log never contains header
    values, a query, or a person's id."""

    def __init__(self, app: ASGIApp, *, metrics: Metrics, head_error: Callable[[Scope], RequestError | None]) -> None:
        self._app = app
        self._metrics = metrics
        self._head_error = head_error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start = time.monotonic()
        made = {"request_id": os.urandom(8).hex(), "route": UNMATCHED, "status": GONE}
        scope["state"] = {**scope.get("state", {}), **made}
        _same_route_without_slash(scope)
        try:
            await self._answered(scope, receive, _with_headers(scope, send))
        finally:
            self._record(scope, time.monotonic() - start)

    async def _answered(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            error = self._head_error(scope)
            if error is None:
                await self._app(scope, receive, send)
            else:
                await error_response(scope, error, {"Connection": "close"})(scope, receive, send)
        except ClientDisconnect:
            pass
        except Exception:  # the outermost frame of a request: the server must stay up
            error_log.exception("unexpected error id=%s", request_id(scope))
            if scope["state"]["status"] != GONE:  # an answer has begun: only the connection can be ended
                raise
            await unexpected_response(scope)(scope, receive, send)

    def _record(self, scope: Scope, seconds: float) -> None:
        route, status, method = scope["state"]["route"], scope["state"]["status"], scope["method"]
        self._metrics.answered(method, route, status, seconds)
        client = scope["client"][0] if scope.get("client") else "-"  # behind a trusted proxy, the one that it names
        access_log.info(
            "id=%s client=%s method=%s route=%s status=%d ms=%.1f",
            request_id(scope),
            client,
            method,
            route,
            status,
            seconds * 1000,
        )


def _with_headers(scope: Scope, send: Send) -> Send:
    """Wraps `send`: adds the headers of all answers, and missing ones of the web UI. Records the status."""
    fixed = [(b"x-request-id", request_id(scope).encode()), (b"x-content-type-options", b"nosniff")]
    fixed += SECURE[scope["scheme"] == "https"]
    defaults = page_headers(scope["path"])

    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            scope["state"]["status"] = message["status"]
            own = message.get("headers", ())
            names = {name for name, _ in own}
            missing = [(name, value) for name, value in defaults.items() if name not in names]
            message["headers"] = [*own, *missing, *fixed]
        await send(message)

    return send_with_headers


def named(route: str, handler: Handler) -> Handler:
    """The handler of a route, counted and logged as the template `route`."""

    async def endpoint(request: Request) -> Response:
        request.scope["state"]["route"] = route
        return await handler(request)

    return endpoint


def _same_route_without_slash(scope: Scope) -> None:
    """Ignores a final slash, unless it is encoded and so part of an id."""
    raw: bytes = scope.get("raw_path") or b""
    if len(raw) > 1 and raw.endswith(b"/"):
        scope["path"] = scope["path"].removesuffix("/")
