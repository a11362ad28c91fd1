"""Encodes protocol buffer messages field by field, for the tests of what reads them."""

from __future__ import annotations


def varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def number_field(field: int, value: int) -> bytes:
    """A varint; negative numbers as two's complement."""
    return varint(field << 3) + varint(value % 2**64)


def bytes_field(field: int, body: bytes) -> bytes:
    return varint(field << 3 | 2) + varint(len(body)) + body


def fixed32_field(field: int, body: bytes) -> bytes:
    return varint(field << 3 | 5) + body
