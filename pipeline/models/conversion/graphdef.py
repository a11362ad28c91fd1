"""Reads the float constants of a frozen TensorFlow graph, without TensorFlow.

A frozen graph is one serialised `GraphDef`. Field numbers are those of tensorflow/core/framework: graph.proto,
node_def.proto, attr_value.proto, tensor.proto and tensor_shape.proto.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from pipeline.models.conversion.protobuf import MAX_ELEMENTS, GraphInvalid, fields, messages
from pipeline.types import FloatArray

_FLOAT: Final = 1  # types.proto
# TensorProto.tensor_content is little-endian on every machine that made such files.
_DTYPE: Final = np.dtype("<f4")


def read_float_constants(data: bytes) -> dict[str, FloatArray]:
    """The float32 constants of a serialised GraphDef by name, in file order: weights, and a few scalars. (Whole numbers
    are the graph's shapes and axes.) Raises GraphInvalid."""
    try:
        nodes = [_node(body) for number, body in messages(memoryview(data)) if number == 1]
    except (IndexError, UnicodeDecodeError) as exc:
        raise GraphInvalid(f"not a TensorFlow graph: {exc}") from exc
    if not nodes:
        raise GraphInvalid("the graph holds no nodes")
    return {name: value for name, value in nodes if value is not None}


def _node(view: memoryview) -> tuple[str, FloatArray | None]:
    """The name of a node and its value; None where it is no constant of float32."""
    name, op, value = "", "", None
    for number, body in messages(view):
        if number == 1:
            name = str(body, "utf-8")
        elif number == 2:
            op = str(body, "utf-8")
        elif number == 5 and value is None:
            value = _constant(body)
    return name, value if op == "Const" else None


def _constant(entry: memoryview) -> FloatArray | None:
    """The tensor of one attribute, if the attribute is `value` and holds one."""
    parts = dict(messages(entry))
    if bytes(parts.get(1, b"")) != b"value" or 2 not in parts:
        return None
    return next((_tensor(body) for number, body in messages(parts[2]) if number == 8), None)


def _tensor(view: memoryview) -> FloatArray | None:
    """A TensorProto; None for another type than float32. Raises GraphInvalid where content and shape disagree."""
    dtype, shape, content = 0, [], memoryview(b"")
    for number, body in fields(view):
        if number == 1 and isinstance(body, int):
            dtype = body
        elif number == 2 and isinstance(body, memoryview):
            shape = [_size(dimension) for inner, dimension in messages(body) if inner == 2]
        elif number in (4, 5) and isinstance(body, memoryview):  # tensor_content, or packed floats
            content = body
    if dtype != _FLOAT:
        return None
    size = math.prod(shape)
    if size > MAX_ELEMENTS:
        raise GraphInvalid(f"a tensor of shape {shape}")
    if size and len(content) == _DTYPE.itemsize:  # tensor.proto: a single value stands for all elements
        return np.full(shape, np.frombuffer(content, _DTYPE)[0])
    if len(content) != size * _DTYPE.itemsize:
        raise GraphInvalid(f"a tensor of shape {shape} has {len(content)} bytes instead of {size * _DTYPE.itemsize}")
    return np.frombuffer(content, _DTYPE).reshape(shape)


def _size(dimension: memoryview) -> int:
    return next((size for number, size in fields(dimension) if number == 1 and isinstance(size, int)), 0)
