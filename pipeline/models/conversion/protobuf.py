"""Reads the protocol buffer wire format, as far as model files use it, without a generated reader.

https://protobuf.dev/programming-guides/encoding/: varints, 64-bit, 32-bit and length-delimited fields. `graphdef` and
`onnx` know what the fields mean.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

# No model here comes near it; a damaged or negative dimension reads as a huge number.
MAX_ELEMENTS: Final = 2**28

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


class GraphInvalid(ValueError):
    """The bytes are not a graph that this reader understands."""


def fields(view: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """(field number, value) of one message: an int for a varint, the bytes for every other type.

    Raises GraphInvalid, or IndexError where the bytes end inside a number.
    """
    at = 0
    while at < len(view):
        key, at = _varint(view, at)
        number, wire = key >> 3, key & 7
        if wire == _VARINT:
            value, at = _varint(view, at)
            yield number, value
            continue
        if wire == _BYTES:
            length, at = _varint(view, at)
        elif wire in (_FIXED64, _FIXED32):
            length = 8 if wire == _FIXED64 else 4
        else:
            raise GraphInvalid(f"wire type {wire} at byte {at}")
        if at + length > len(view):
            raise GraphInvalid(f"a field of {length} bytes reaches past the end of the file")
        yield number, view[at : at + length]
        at += length


def messages(view: memoryview) -> list[tuple[int, memoryview]]:
    """The length-delimited fields of one message: messages, texts and packed numbers. Raises as `fields` does."""
    return [(number, body) for number, body in fields(view) if isinstance(body, memoryview)]


def signed(number: int) -> int:
    """A varint as the int64 that it stands for: negative numbers are written as two's complement."""
    return number - 2**64 if number >= 2**63 else number


def _varint(view: memoryview, at: int) -> tuple[int, int]:
    """The base-128 number at `at`, and where the next field begins."""
    result = 0
    for shift in range(0, 70, 7):
        byte = view[at]
        at += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            return result, at
    raise GraphInvalid(f"a number of more than ten bytes at byte {at}")
