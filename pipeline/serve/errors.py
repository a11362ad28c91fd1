"""Every error that a client sees, in one JSON shape."""

from __future__ import annotations

import time
from http import HTTPStatus
from typing import Any, Final

from starlette.responses import Response
from starlette.types import Scope

from pipeline.errors import FacepipeError, ImageRejected, RequestError, TooManyDirectories
from pipeline.serve.encoding import json_response

# What a client may read. All others tell of paths, accounts or the machine: their text goes to the log only.
_TELLABLE: Final = (RequestError, ImageRejected)
_MESSAGES: Final[dict[type[FacepipeError], str]] = {
    TooManyDirectories: "The account holds as many directories as it may; nothing was stored."
}
UNEXPECTED: Final = "unexpected"


def error_body(status: int, reason: str, message: str, path: str, verb: str) -> dict[str, Any]:
    """The one shape. `reason` is the stable name of the error, `timestamp` epoch milliseconds."""
    return {
        "error": HTTPStatus(status).phrase,
        "errorReason": reason,
        "message": message,
        "path": path,
        "status": status,
        "timestamp": time.time_ns() // 1_000_000,
        "verb": verb,
    }


def error_response(scope: Scope, error: FacepipeError, headers: dict[str, str] | None = None) -> Response:
    """The answer to a request that failed with `error`."""
    message = _MESSAGES.get(type(error)) or (str(error) if isinstance(error, _TELLABLE) else _hidden(scope))
    return _response(scope, error.http_status, error.code, message, _headers(error) | (headers or {}))


def unexpected_response(scope: Scope) -> Response:
    """The answer to a request that met what nobody foresaw."""
    return _response(scope, 500, UNEXPECTED, _hidden(scope), {})


def request_id(scope: Scope) -> str:
    """The name of this request in the log and in its answer's X-Request-Id."""
    found: str = scope["state"]["request_id"]
    return found


def sent_path(scope: Scope) -> str:
    """The path as the client sent it, without the query."""
    raw: bytes = scope.get("raw_path") or scope["path"].encode()
    return raw.decode("latin-1")


def _response(scope: Scope, status: int, reason: str, message: str, headers: dict[str, str]) -> Response:
    body = error_body(status, reason, message, sent_path(scope), scope["method"])
    return json_response(body, status, headers)


def _hidden(scope: Scope) -> str:
    return f"The server could not do this. Its log says why, under {request_id(scope)}."


def _headers(error: FacepipeError) -> dict[str, str]:
    headers = {}
    if "retry_after_s" in error.fields:
        headers["Retry-After"] = str(error.fields["retry_after_s"])
    if error.http_status == 401:
        headers["WWW-Authenticate"] = 'X-RPC-AUTHORIZATION realm="facepipe"'
    return headers
