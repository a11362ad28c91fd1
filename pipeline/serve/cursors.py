"""Cursors: where a page of results ended, as opaque text that the client sends back for the next page."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from typing import Final, TypeAlias

from pipeline.errors import ParameterInvalid

_CHECK_BYTES: Final = 6
Key: TypeAlias = "tuple[str | float, ...]"  # a position in an order


def cursor(order: Sequence[object], key: Key) -> str:
    """Encodes a position in an order, with a checksum against copying mistakes."""
    data = json.dumps([*order, *key]).encode()
    return base64.urlsafe_b64encode(_checksum(data) + data).decode().rstrip("=")


def place_after(
    text: str | None,
    order: Sequence[object],
    like: Key,
    name: str = "after",
    expected: str = "the `next` of the same question",
) -> Key | None:
    """The position of the cursor in the parameter `name`; None without one. Raises ParameterInvalid unless it is a
    cursor of this order, with numbers and texts as in `like`."""
    if text is None:
        return None
    try:
        raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        check, data = raw[:_CHECK_BYTES], raw[_CHECK_BYTES:]
        parts = json.loads(data) if check == _checksum(data) else None
    except (ValueError, RecursionError):  # binascii.Error is a ValueError
        parts = None
    if isinstance(parts, list) and len(parts) == len(order) + len(like) and parts[: len(order)] == [*order]:
        key = tuple(parts[len(order) :])
        if all(isinstance(a, str) if isinstance(b, str) else _is_number(a) for a, b in zip(key, like, strict=True)):
            return key
    raise ParameterInvalid(name=name, expected=expected)


def _is_number(part: object) -> bool:
    """Whether it is a number that a key may have: Python's JSON also allows larger ones, infinity and NaN."""
    return isinstance(part, (int, float)) and abs(part) < 2**63


def _checksum(data: bytes) -> bytes:
    return hashlib.sha256(b"rootpeople" + data).digest()[:_CHECK_BYTES]
