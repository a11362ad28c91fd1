"""Reads the protocol buffer wire format, as far as published model files need it.

https://protobuf.dev/programming-guides/encoding/: varints, 64-bit, 32-bit and length-delimited fields. `facenet` and
`sface` know their meaning. The files' SHA-256 is checked before, so nothing here looks for damage.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Final

_VARINT, _BYTES = 0, 2
_FIXED_BYTES: Final = {1: 8, 5: 4}  # by wire type


class Message:
    """One message: fields by number, in file order.

    Singular methods return a number's last field, or 0, "" or b""; fields of other types are skipped.
    """

    def __init__(self, view: bytes | memoryview) -> None:
        self._varints: dict[int, list[int]] = defaultdict(list)
        self._bodies: dict[int, list[memoryview]] = defaultdict(list)
        view, at = memoryview(view), 0
        while at < len(view):
            key, at = _varint(view, at)
            number, wire = key >> 3, key & 7
            if wire == _VARINT:
                value, at = _varint(view, at)
                self._varints[number].append(value)
                continue
            length, at = _varint(view, at) if wire == _BYTES else (_FIXED_BYTES[wire], at)
            self._bodies[number].append(view[at : at + length])
            at += length

    def numbers(self, field: int) -> list[int]:
        return self._varints[field]

    def number(self, field: int) -> int:
        return next(reversed(self._varints[field]), 0)

    def body(self, field: int) -> memoryview:
        return next(reversed(self._bodies[field]), memoryview(b""))

    def texts(self, field: int) -> list[str]:
        return [str(body, "utf-8") for body in self._bodies[field]]

    def text(self, field: int) -> str:
        return str(self.body(field), "utf-8")

    def messages(self, field: int) -> list[Message]:
        return [Message(body) for body in self._bodies[field]]

    def message(self, field: int) -> Message:
        return Message(self.body(field))


def _varint(view: memoryview, at: int) -> tuple[int, int]:
    """The base-128 number at `at`, and the position after it."""
    result = shift = 0
    while view[at] >= 0x80:
        result |= (view[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
    return result | view[at] << shift, at + 1
