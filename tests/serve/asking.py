"""Requests as Starlette hands them to a handler, without a server."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import quote

from starlette.requests import Request


def make_request(
    headers: Mapping[str, str | bytes] | None = None,
    query: str | bytes = b"",
    path: str = "/people",
    peer: str = "192.0.2.1",
) -> Request:
    """`headers` as text is sent as UTF-8."""
    encoded = [
        (name.lower().encode(), value.encode() if isinstance(value, str) else value)
        for name, value in (headers or {}).items()
    ]
    scope = {
        "type": "http",
        "method": "POST",
        "path": path,
        "raw_path": quote(path, safe="/%").encode(),
        "query_string": query.encode() if isinstance(query, str) else query,
        "headers": encoded,
        "client": (peer, 50_000),
        "state": {"request_id": "0" * 16},
    }
    return Request(scope)
