"""Cursors: where a page of results ended, as opaque text that the client sends back for the next page."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from typing import Final, TypeAlias

_CHECK_BYTES: Final = 6
Key: TypeAlias = "tuple[str | float, ...]"  # a position in an order


def cursor(order: Sequence[object], key: Key) -> str:
    """Encodes a position in an order, with a checksum against copying mistakes."""
    data = json.dumps([*order, *key]).encode()
    return base64.urlsafe_b64encode(_checksum(data) + data).decode().rstrip("=")


def cursor_key(text: str, order: Sequence[object], like: Key) -> Key | None:
    """Decodes a cursor; None unless it is one of this order, with numbers and texts as in `like`."""
    try:
        raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        check, data = raw[:_CHECK_BYTES], raw[_CHECK_BYTES:]
        parts = json.loads(data) if check == _checksum(data) else None
    except (ValueError, RecursionError):  # binascii.Error is a ValueError
        return None
    if not isinstance(parts, list) or len(parts) != len(order) + len(like) or parts[: len(order)] != [*order]:
        return None
    key = tuple(parts[len(order) :])
    for part, other in zip(key, like, strict=True):
        if not (isinstance(part, str) if isinstance(other, str) else _is_number(part)):
            return None
    return key


def _is_number(part: object) -> bool:
    """Whether it is a number that a key may have: Python's JSON also allows larger ones, infinity and NaN."""
    return isinstance(part, (int, float)) and abs(part) < 2**63


def _checksum(data: bytes) -> bytes:
    return hashlib.sha256(b"rootpeople" + data).digest()[:_CHECK_BYTES]
