"""JSON responses, and the common format of all errors."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from pipeline.errors import FacepipeError, ImageRejected, RequestError, TooManyDirectories

MEDIA_TYPE: Final = "application/json"
# Errors whose text clients may read. Others name paths, accounts or the machine: their text is only logged.
_PUBLIC: Final = (RequestError, ImageRejected)
_MESSAGES: Final[dict[type[FacepipeError], str]] = {
    TooManyDirectories: "The account holds as many directories as it may; nothing was stored."
}
# For answers over TLS: browsers use https for this host for 30 days. Not longer, because a server that loses TLS cannot
# revoke it.
SECURE: Final[Mapping[bool, Sequence[tuple[bytes, bytes]]]] = {
    True: ((b"strict-transport-security", b"max-age=2592000"),),
    False: (),
}
UNEXPECTED: Final = "unexpected"


def json_bytes(body: Mapping[str, Any]) -> bytes:
    """Compact UTF-8. Raises ValueError for NaN and infinity, which JSON lacks."""
    return json.dumps(body, allow_nan=False, ensure_ascii=False, separators=(",", ":")).encode()


def json_response(body: Mapping[str, Any], status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """`body` as an uncached response."""
    return encoded_response(json_bytes(body), status, headers)


def encoded_response(data: bytes, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """The same from JSON already encoded off the event loop."""
    return Response(data, status, {"Cache-Control": "no-store", **(headers or {})}, MEDIA_TYPE)


def tagged_response(request: Request, data: bytes, media_type: str, caching: str, tag: str | None = None) -> Response:
    """`data`, or 304 if the client has the data with this tag; None: the hash."""
    headers = {"ETag": f'"{tag or hashlib.sha256(data).hexdigest()[:32]}"', "Cache-Control": caching}
    if _matches(request.headers.get("if-none-match", ""), headers["ETag"]):
        return Response(status_code=304, headers=headers)
    return Response(data, headers=headers, media_type=media_type)


def _matches(condition: str, tag: str) -> bool:
    """Whether an If-None-Match names `tag` (RFC 9110, 13.1.2: the weak comparison)."""
    return condition.strip() == "*" or tag in [name.strip().removeprefix("W/") for name in condition.split(",")]


def error_body(status: int, reason: str, message: str, path: str, verb: str) -> dict[str, Any]:
    """The format of all errors. `reason` is the stable name of the error; `timestamp` is in epoch milliseconds."""
    return {
        "error": HTTPStatus(status).phrase,
        "errorReason": reason,
        "message": message,
        "path": path,
        "status": status,
        "timestamp": time.time_ns() // 1_000_000,
        "verb": verb,
    }


def error_response(scope: Scope, error: FacepipeError, headers: Mapping[str, str] | None = None) -> Response:
    """The response to a request that failed."""
    message = _MESSAGES.get(type(error)) or (str(error) if isinstance(error, _PUBLIC) else _hidden(scope))
    body = error_body(error.http_status, error.code, message, sent_path(scope), scope["method"])
    body |= {name: error.fields[name] for name in error.shown}
    return json_response(body, error.http_status, {**_headers(error), **(headers or {})})


def unexpected_response(scope: Scope) -> Response:
    """The response to an unexpected failure."""
    return json_response(error_body(500, UNEXPECTED, _hidden(scope), sent_path(scope), scope["method"]), 500)


def request_id(scope: Scope) -> str:
    """The request's id in the log and in X-Request-Id."""
    return str(scope["state"]["request_id"])


def sent_path(scope: Scope) -> str:
    """The path as the client sent it, without the query."""
    raw: bytes = scope.get("raw_path") or scope["path"].encode()
    return raw.decode("latin-1")


def _hidden(scope: Scope) -> str:
    return f"The server could not do this. Its log says why, under {request_id(scope)}."


def _headers(error: FacepipeError) -> dict[str, str]:
    headers = {}
    if "retry_after_s" in error.fields:
        headers["Retry-After"] = str(error.fields["retry_after_s"])
    if error.http_status == 401:
        headers["WWW-Authenticate"] = 'X-RPC-AUTHORIZATION realm="facepipe"'
    return headers
