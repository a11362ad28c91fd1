"""Reads an ONNX file's operations and constants, without the onnx package, and evaluates what depends on constants.

Field numbers are those of onnx/onnx.proto (ONNX 1.16). It reads what the published network contains: float and integer
tensors as raw bytes, attributes that are numbers, and lists of numbers that are not packed. `fold_constants` turns
weights quantised in blocks into float32.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from pipeline.models.conversion.protobuf import MAX_ELEMENTS, GraphInvalid, fields, messages, signed

Array: TypeAlias = npt.NDArray[Any]
Attribute: TypeAlias = "float | int | tuple[int, ...] | Array"

# TensorProto.DataType -> little-endian, as raw_data is written everywhere.
_DTYPES: dict[int, np.dtype[Any]] = {
    1: np.dtype("<f4"),
    2: np.dtype("u1"),
    3: np.dtype("i1"),
    6: np.dtype("<i4"),
    7: np.dtype("<i8"),
}
_FLOAT, _INT, _TENSOR, _INTS = 1, 2, 4, 7  # AttributeProto.AttributeType


@dataclass(frozen=True)
class OnnxNode:
    """One operation."""

    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Attribute]


@dataclass(frozen=True)
class OnnxGraph:
    """The operations in file order, which ONNX requires to be an order of evaluation, and the constants by name."""

    nodes: tuple[OnnxNode, ...]
    constants: Mapping[str, Array]


def read_onnx(data: bytes) -> OnnxGraph:
    """The graph of a serialised ModelProto, without the inputs that no node reads.

    Raises GraphInvalid.
    """
    nodes: list[OnnxNode] = []
    constants: dict[str, Array] = {}
    try:
        for number, body in messages(_graph(memoryview(data))):
            if number == 1:
                nodes.append(_node(body))
            elif number == 5:
                name, value = _tensor(body)
                constants[name] = value
    except (IndexError, UnicodeDecodeError, struct.error) as exc:
        raise GraphInvalid(f"not an ONNX file: {exc}") from exc
    if not nodes:
        raise GraphInvalid("the graph holds no nodes")
    return OnnxGraph(tuple(nodes), constants)


def fold_constants(graph: OnnxGraph) -> OnnxGraph:
    """The same graph with its Constant nodes, and the DequantizeLinear and Reshape nodes of constants, evaluated.
    Constants that only those read are dropped. Raises GraphInvalid for a form of them that is not supported."""
    constants, kept = dict(graph.constants), []
    for node in graph.nodes:
        if node.op in _FOLDED and all(name in constants for name in node.inputs):
            constants[node.outputs[0]] = _FOLDED[node.op](node, [constants[name] for name in node.inputs])
        else:
            kept.append(node)
    read = {name for node in kept for name in node.inputs}
    unread = set(graph.constants) - {name for node in graph.nodes for name in node.inputs}
    named = {name: value for name, value in constants.items() if name in read | unread}
    return OnnxGraph(tuple(kept), named)


def _dequantize(node: OnnxNode, inputs: list[Array]) -> Array:
    """DequantizeLinear of opset 21 with `block_size`: (x - zero point) * scale, both given once a block of `axis`."""
    axis, block = node.attributes.get("axis", 1), node.attributes.get("block_size", 0)
    if len(inputs) != 3 or not isinstance(axis, int) or not isinstance(block, int) or block < 1:
        raise GraphInvalid(f"{node.outputs[0]} is quantised, but not in blocks with a zero point")
    values, scales, zeros = inputs
    wanted = list(values.shape)
    if not -values.ndim <= axis < values.ndim or values.dtype.itemsize != 1 or zeros.dtype != values.dtype:
        raise GraphInvalid(f"{node.outputs[0]} has no axis {axis}, or values of more than 8 bits")
    wanted[axis] = math.ceil(wanted[axis] / block)
    if list(scales.shape) != wanted or list(zeros.shape) != wanted or scales.dtype != np.float32:
        raise GraphInvalid(f"{node.outputs[0]} of shape {values.shape} has scales of shape {scales.shape}")
    spread = np.arange(values.shape[axis]) // block
    # The difference of 8-bit integers is exact, so only the product is rounded.
    difference = values.astype(np.int32) - zeros.astype(np.int32).take(spread, axis)
    with np.errstate(over="ignore", invalid="ignore"):
        plain = np.asarray(difference.astype(np.float32) * scales.take(spread, axis), np.float32)
    if not np.isfinite(plain).all():
        raise GraphInvalid(f"{node.outputs[0]} has scales that are no usable numbers")
    return plain


def _reshape(node: OnnxNode, inputs: list[Array]) -> Array:
    if len(inputs) != 2:
        raise GraphInvalid(f"{node.outputs[0]} is reshaped without a shape")
    values, shape = inputs
    if shape.dtype != np.int64 or shape.ndim != 1 or math.prod(shape.tolist()) != values.size or (shape < 1).any():
        raise GraphInvalid(f"{node.outputs[0]} of shape {values.shape} cannot have the shape {shape.tolist()}")
    reshaped: Array = values.reshape(shape.tolist())
    return reshaped


def _constant(node: OnnxNode, _inputs: list[Array]) -> Array:
    value = node.attributes.get("value")
    if not isinstance(value, np.ndarray):
        raise GraphInvalid(f"the constant {node.outputs[0]} has no value that is read here")
    return value


_FOLDED = {"Constant": _constant, "DequantizeLinear": _dequantize, "Reshape": _reshape}


def _graph(model: memoryview) -> memoryview:
    found = [body for number, body in messages(model) if number == 7]
    if len(found) != 1:
        raise GraphInvalid("the file holds no graph")
    return found[0]


def _node(view: memoryview) -> OnnxNode:
    inputs, outputs, op, attributes = [], [], "", {}
    for number, body in messages(view):
        if number == 1:
            inputs.append(str(body, "utf-8"))
        elif number == 2:
            outputs.append(str(body, "utf-8"))
        elif number == 4:
            op = str(body, "utf-8")
        elif number == 5:
            attributes.update(_attribute(body))
    if not outputs:
        raise GraphInvalid(f"a node {op!r} without an output")
    return OnnxNode(op, tuple(inputs), tuple(outputs), attributes)


def _attribute(view: memoryview) -> dict[str, Attribute]:
    """One attribute, by name; nothing for a text or a graph."""
    name, kind, whole, fraction, many = "", 0, 0, 0.0, []
    tensor: Array = np.empty(0, np.float32)
    for number, body in fields(view):
        if number == 1 and isinstance(body, memoryview):
            name = str(body, "utf-8")
        elif number == 2 and isinstance(body, memoryview):
            (fraction,) = struct.unpack("<f", body)
        elif number == 3 and isinstance(body, int):
            whole = signed(body)
        elif number == 5 and isinstance(body, memoryview):
            _, tensor = _tensor(body)
        elif number == 8 and isinstance(body, int):
            many.append(signed(body))
        elif number == 20 and isinstance(body, int):
            kind = body
    values: dict[int, Attribute] = {_FLOAT: fraction, _INT: whole, _TENSOR: tensor, _INTS: tuple(many)}
    return {name: values[kind]} if kind in values else {}


def _tensor(view: memoryview) -> tuple[str, Array]:
    """A TensorProto with its name. Raises GraphInvalid unless it holds numbers of a known type as raw bytes."""
    name, kind, content = "", 0, memoryview(b"")
    shape: list[int] = []
    for number, body in fields(view):
        if number == 1 and isinstance(body, int):
            shape.append(signed(body))
        elif number == 2 and isinstance(body, int):
            kind = body
        elif number == 8 and isinstance(body, memoryview):
            name = str(body, "utf-8")
        elif number in (4, 9) and isinstance(body, memoryview):  # packed floats, or raw bytes
            content = body
    if kind not in _DTYPES:
        raise GraphInvalid(f"the tensor {name} has the type {kind}, which is not read here")
    size, sane = math.prod(shape), all(0 <= length <= MAX_ELEMENTS for length in shape)
    if not sane or size > MAX_ELEMENTS or len(content) != size * _DTYPES[kind].itemsize:
        raise GraphInvalid(f"the tensor {name} of shape {shape} has {len(content)} bytes")
    return name, np.frombuffer(content, _DTYPES[kind]).reshape(shape)
