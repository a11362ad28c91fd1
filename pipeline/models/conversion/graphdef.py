"""Reads the constants of a frozen TensorFlow graph, without TensorFlow.

A frozen graph is one serialised `GraphDef`. Field numbers are those of tensorflow/core/framework: graph.proto,
node_def.proto, attr_value.proto, tensor.proto and tensor_shape.proto.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TypeGuard

import numpy as np
import numpy.typing as npt

from pipeline.models.conversion.protobuf import MAX_ELEMENTS, GraphInvalid, fields
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
        nodes = [_node(body) for number, body in fields(view) if number == 1 and isinstance(body, memoryview)]
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
    for number, body in fields(view):
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
    parts = {number: body for number, body in fields(entry) if isinstance(body, memoryview)}
    if bytes(parts.get(1, b"")) != b"value" or 2 not in parts:
        return None
    for number, body in fields(parts[2]):
        if number == 8 and isinstance(body, memoryview):
            return _tensor(body)
    return None


def _tensor(view: memoryview) -> npt.NDArray[np.generic] | None:
    """A TensorProto; None for a type that is no number. Raises GraphInvalid where content and shape disagree."""
    dtype, shape, content = 0, [], memoryview(b"")
    for number, body in fields(view):
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
    if size > MAX_ELEMENTS:
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
    for number, body in fields(view):
        if number == 2 and isinstance(body, memoryview):
            dims = [size for inner, size in fields(body) if inner == 1 and isinstance(size, int)]
            sizes.append(dims[0] if dims else 0)
    return sizes
