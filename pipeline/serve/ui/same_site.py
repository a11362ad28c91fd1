"""Keeps other sites away from the page: what their browsers are told, and which requests come from the page itself."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pipeline.errors import CrossSite

PREFIX: Final = "/ui"
PAGE_HEADER: Final = "x-facepipe-page"  # a form can't send it, and a script of another site only after we allow it
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' blob:; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
_SAFE: Final = ("GET", "HEAD")
_HEADERS: Final = {
    b"content-security-policy": POLICY.encode(),
    b"referrer-policy": b"no-referrer",
    b"cross-origin-resource-policy": b"same-origin",
    b"cross-origin-opener-policy": b"same-origin",
    b"x-frame-options": b"DENY",
}


def check_same_site(request: Request) -> None:
    """Raises CrossSite for a request that another site made a browser send.

    Browsers tell in Sec-Fetch-Site where a request comes from, but not to plain http on another machine; then Origin
    tells it. Programs send neither.
    """
    site = request.headers.get("sec-fetch-site")
    origin = request.headers.get("origin")
    if site is not None:
        own = site == "same-origin" or (site == "none" and request.method in _SAFE)
    else:
        own = origin is None or _host(origin) == request.headers.get("host")
    if not own or (request.method not in _SAFE and request.headers.get(PAGE_HEADER) != "1"):
        raise CrossSite()


def _host(origin: str) -> str | None:
    """None of what is no address."""
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return None


class PageHeaders:
    """Adds the headers that every answer below /ui has, errors too. A handler that sets one of them has its own."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not (scope["path"] == PREFIX or scope["path"].startswith(f"{PREFIX}/")):
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = dict(message.get("headers", ()))
                added = [(name, value) for name, value in _HEADERS.items() if name not in own]
                message["headers"] = [*message.get("headers", ()), *added]
            await send(message)

        await self._app(scope, receive, send_with_headers)
