"""JSON on the wire."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

MEDIA_TYPE = "application/json"


def json_bytes(body: Mapping[str, Any]) -> bytes:
    """Compact UTF-8; raises ValueError for NaN and infinity, which JSON has not."""
    return json.dumps(body, allow_nan=False, ensure_ascii=False, separators=(",", ":")).encode()


def json_response(body: Mapping[str, Any], status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """`body` as an answer that no cache keeps."""
    return encoded_response(json_bytes(body), status, headers)


def encoded_response(data: bytes, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """JSON that was encoded before, off the event loop."""
    return Response(data, status, {"Cache-Control": "no-store", **(headers or {})}, MEDIA_TYPE)
