"""Reads the constants of a frozen TensorFlow graph, without TensorFlow.

A frozen graph is one serialised `GraphDef`. Of the protocol buffer wire format
(https://protobuf.dev/programming-guides/encoding/) only what such a file uses is read: varints, 64-bit, 32-bit
and length-delimited fields. Field numbers are those of tensorflow/core/framework: graph.proto, node_def.proto,
attr_value.proto, tensor.proto and tensor_shape.proto.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeGuard

import numpy as np
import numpy.typing as npt

from pipeline.types import FloatArray

# tensorflow/core/framework/types.proto, little-endian as TensorProto.tensor_content is written on every machine
# that made such files.
_DTYPES: dict[int, np.dtype[np.generic]] = {
    1: np.dtype("<f4"),
    2: np.dtype("<f8"),
    3: np.dtype("<i4"),
    9: np.dtype("<i8"),
    10: np.dtype("?"),
}
_MAX_ELEMENTS = 2**28
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


class GraphInvalid(ValueError):
    """The bytes are not a graph that this reader understands."""


@dataclass(frozen=True)
class Node:
    """One operation of the graph."""

    name: str
    op: str
    inputs: tuple[str, ...]
    value: npt.NDArray[np.generic] | None = field(default=None, compare=False)  # of a `Const`


def read_graph(data: bytes) -> list[Node]:
    """Every node of a serialised GraphDef, in file order. Raises GraphInvalid."""
    view = memoryview(data)
    try:
        nodes = [_node(body) for number, body in _fields(view) if number == 1 and isinstance(body, memoryview)]
    except (IndexError, UnicodeDecodeError) as exc:
        raise GraphInvalid(f"not a TensorFlow graph: {exc}") from exc
    if not nodes:
        raise GraphInvalid("the graph holds no nodes")
    return nodes


def float_constants(nodes: list[Node]) -> dict[str, FloatArray]:
    """The float32 constants, by name: weights, and a few scalars. (Whole numbers are the graph's shapes and axes.)"""
    return {node.name: node.value for node in nodes if _is_float32(node.value)}


def _is_float32(value: npt.NDArray[np.generic] | None) -> TypeGuard[FloatArray]:
    return value is not None and value.dtype == np.float32


def _node(view: memoryview) -> Node:
    name, op, inputs, value = "", "", [], None
    for number, body in _fields(view):
        if not isinstance(body, memoryview):
            continue
        if number == 1:
            name = str(body, "utf-8")
        elif number == 2:
            op = str(body, "utf-8")
        elif number == 3:
            inputs.append(str(body, "utf-8"))
        elif number == 5:
            value = _constant(body) if value is None else value
    return Node(name, op, tuple(inputs), value if op == "Const" else None)


def _constant(entry: memoryview) -> npt.NDArray[np.generic] | None:
    """The tensor of one attribute, if the attribute is `value` and holds one."""
    parts = {number: body for number, body in _fields(entry) if isinstance(body, memoryview)}
    if bytes(parts.get(1, b"")) != b"value" or 2 not in parts:
        return None
    for number, body in _fields(parts[2]):
        if number == 8 and isinstance(body, memoryview):
            return _tensor(body)
    return None


def _tensor(view: memoryview) -> npt.NDArray[np.generic] | None:
    """A TensorProto; None for a type that is no number. Raises GraphInvalid where content and shape disagree."""
    dtype, shape, content = 0, [], memoryview(b"")
    for number, body in _fields(view):
        if number == 1 and isinstance(body, int):
            dtype = body
        elif number == 2 and isinstance(body, memoryview):
            shape = _shape(body)
        elif number in (4, 5, 6) and isinstance(body, memoryview):  # tensor_content, or packed floats and doubles
            content = body
    if dtype not in _DTYPES:
        return None
    return _array(_DTYPES[dtype], shape, content)


def _array(dtype: np.dtype[np.generic], shape: list[int], content: memoryview) -> npt.NDArray[np.generic] | None:
    size = math.prod(shape)
    if size > _MAX_ELEMENTS:  # also a negative dimension, which reads as a huge number
        raise GraphInvalid(f"a tensor of shape {shape}")
    if size and len(content) == dtype.itemsize:  # tensor.proto: a single value stands for all elements
        return np.full(shape, np.frombuffer(content, dtype)[0])
    if len(content) != size * dtype.itemsize:
        if not shape:
            return None  # a scalar in one of the packed-varint fields: never a weight
        raise GraphInvalid(f"a tensor of shape {shape} has {len(content)} bytes instead of {size * dtype.itemsize}")
    return np.frombuffer(content, dtype).reshape(shape)


def _shape(view: memoryview) -> list[int]:
    """A TensorShapeProto's dimensions."""
    sizes = []
    for number, body in _fields(view):
        if number == 2 and isinstance(body, memoryview):
            dims = [size for inner, size in _fields(body) if inner == 1 and isinstance(size, int)]
            sizes.append(dims[0] if dims else 0)
    return sizes


def _fields(view: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """(field number, value) of one message: an int for a varint, the bytes for every other type."""
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
