"""Cursors: where a page of results ended, as opaque text that its client sends back for the next page."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from typing import Final, TypeAlias

_CHECK_BYTES: Final = 6
Key: TypeAlias = "tuple[str | float, ...]"  # a place in an order


def cursor(order: Sequence[object], key: Key) -> str:
    """A place in an order. Its checksum reveals mistakes in copying."""
    data = json.dumps([*order, *key]).encode()
    return base64.urlsafe_b64encode(_checksum(data) + data).decode().rstrip("=")


def cursor_key(text: str, order: Sequence[object], like: Key) -> Key | None:
    """The place that `cursor` wrote; None unless it is one of this order, with numbers and texts where `like` has
    them."""
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
    """One that a place may have: Python's JSON has larger ones, infinity and NaN as well."""
    return isinstance(part, (int, float)) and abs(part) < 2**63


def _checksum(data: bytes) -> bytes:
    return hashlib.sha256(b"rootpeople" + data).digest()[:_CHECK_BYTES]
