"""Reads the protocol buffer wire format, as far as model files need it.

https://protobuf.dev/programming-guides/encoding/: varints, 64-bit, 32-bit and length-delimited fields. `facenet` and
`onnx` know their meaning.
"""

from __future__ import annotations

import math
import struct
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

# Far above any model here; damaged dimensions are huge.
_MAX_ELEMENTS: Final = 2**28
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


class GraphInvalid(ValueError):
    """The bytes are not a graph that this reader understands."""


class Message:
    """One message: fields by number, in file order.

    Singular methods return a number's last field, or 0, "" or b""; fields of other types are skipped. All methods raise
    GraphInvalid.
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
            if wire == _BYTES:
                length, at = _varint(view, at)
            elif wire in (_FIXED64, _FIXED32):
                length = 8 if wire == _FIXED64 else 4
            else:
                raise GraphInvalid(f"wire type {wire} at byte {at}")
            if at + length > len(view):
                raise GraphInvalid(f"a field of {length} bytes reaches past the end of the file")
            self._bodies[number].append(view[at : at + length])
            at += length

    def numbers(self, field: int) -> list[int]:
        """As int64, in two's complement."""
        return [number - 2**64 if number >= 2**63 else number for number in self._varints[field]]

    def number(self, field: int) -> int:
        return next(reversed(self.numbers(field)), 0)

    def float32(self, field: int) -> float:
        body = self.body(field)
        if len(body) not in (0, 4):
            raise GraphInvalid(f"a number of {len(body)} bytes")
        return float(struct.unpack("<f", body)[0]) if body else 0.0

    def body(self, field: int) -> memoryview:
        return next(reversed(self._bodies[field]), memoryview(b""))

    def texts(self, field: int) -> list[str]:
        try:
            return [str(body, "utf-8") for body in self._bodies[field]]
        except UnicodeDecodeError as exc:
            raise GraphInvalid(f"a name is no text: {exc}") from exc

    def text(self, field: int) -> str:
        return next(reversed(self.texts(field)), "")

    def messages(self, field: int) -> list[Message]:
        return [Message(body) for body in self._bodies[field]]

    def message(self, field: int) -> Message:
        return Message(self.body(field))


def array(content: memoryview, dtype: np.dtype[Any], shape: Sequence[int], name: str) -> npt.NDArray[Any]:
    """The tensor `name`, a view of its bytes. Raises GraphInvalid if the size is wrong."""
    if element_count(shape, name) * dtype.itemsize != len(content):
        raise GraphInvalid(f"the tensor {name} of shape {shape} has {len(content)} bytes")
    return np.frombuffer(content, dtype).reshape(shape)


def element_count(shape: Sequence[int], name: str) -> int:
    """The product of the shape. Raises GraphInvalid if it is implausible."""
    if min(shape, default=0) < 0 or max(shape, default=0) > _MAX_ELEMENTS or math.prod(shape) > _MAX_ELEMENTS:
        raise GraphInvalid(f"the tensor {name} has the shape {shape}")
    return math.prod(shape)


def _varint(view: memoryview, at: int) -> tuple[int, int]:
    """The base-128 number at `at`, and the position after it."""
    result = 0
    for count, byte in enumerate(view[at : at + 10]):
        result |= (byte & 0x7F) << 7 * count
        if byte < 0x80:
            return result, at + count + 1
    raise GraphInvalid(f"the number at byte {at} has no end")
