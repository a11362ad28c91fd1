"""Keeps other sites out of the web UI: security headers for browsers, and which requests come from the web UI
itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

from starlette.requests import Request

from pipeline.errors import CrossSite

PREFIX: Final = "/ui"
PAGE_HEADER: Final = "x-facepipe-page"  # a form cannot send it, and another site's script only if we allow it
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

    Browsers state a request's origin in Sec-Fetch-Site, but not to plain http on another machine; then Origin states
    it. Programs send neither.
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
    """None for an invalid address."""
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return None


def page_headers(path: str) -> Mapping[bytes, bytes]:
    """The headers of all answers below /ui, unless their handlers set them."""
    return _HEADERS if path == PREFIX or path.startswith(f"{PREFIX}/") else {}
