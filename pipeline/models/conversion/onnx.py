"""Reads an ONNX file's operations and constants without the onnx package.

Field numbers are from onnx/onnx.proto (ONNX 1.16). Supported is what the published network needs: float and integer
tensors as raw bytes, numeric attributes, unpacked lists of numbers. `fold_constants` turns block-quantised weights into
float32.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from pipeline.models.conversion.protobuf import GraphInvalid, Message, array

Array: TypeAlias = npt.NDArray[Any]
Attribute: TypeAlias = "float | int | tuple[int, ...] | Array"

# TensorProto.DataType -> dtype; raw_data is always little-endian.
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
    """Operations in file order, which ONNX requires to be an evaluation order, and constants by name."""

    nodes: tuple[OnnxNode, ...]
    constants: Mapping[str, Array]


def read_onnx(data: bytes) -> OnnxGraph:
    """The graph of a serialised ModelProto. Raises GraphInvalid."""
    graphs = Message(data).messages(7)
    if len(graphs) != 1:
        raise GraphInvalid("the file holds no graph")
    nodes = tuple(_node(node) for node in graphs[0].messages(1))
    if not nodes:
        raise GraphInvalid("the graph holds no nodes")
    return OnnxGraph(nodes, dict(_tensor(tensor) for tensor in graphs[0].messages(5)))


def fold_constants(graph: OnnxGraph) -> OnnxGraph:
    """Evaluates Constant nodes, and DequantizeLinear and Reshape of constants; drops constants that only they read.
    Raises GraphInvalid for unsupported forms."""
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
    """DequantizeLinear of opset 21 with `block_size`: (x - zero point) * scale, both per block of `axis`."""
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
    # 8-bit differences are exact: only the product is rounded.
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


def _node(node: Message) -> OnnxNode:
    op, outputs = node.text(4), tuple(node.texts(2))
    if not outputs:
        raise GraphInvalid(f"a node {op!r} without an output")
    attributes = {each.text(1): _attribute(each) for each in node.messages(5)}
    known = {name: value for name, value in attributes.items() if value is not None}
    return OnnxNode(op, tuple(node.texts(1)), outputs, known)


def _attribute(attribute: Message) -> Attribute | None:
    """An AttributeProto's value; None for a text or a graph."""
    kind = attribute.number(20)
    if kind == _FLOAT:
        return attribute.float32(2)
    if kind == _INT:
        return attribute.number(3)
    if kind == _TENSOR:
        return _tensor(attribute.message(5))[1]
    return tuple(attribute.numbers(8)) if kind == _INTS else None


def _tensor(tensor: Message) -> tuple[str, Array]:
    """A TensorProto's name and array. Raises GraphInvalid for an unknown type or wrong size."""
    name, kind = tensor.text(8), tensor.number(2)
    if kind not in _DTYPES:
        raise GraphInvalid(f"the tensor {name} has the type {kind}, which is not read here")
    content = tensor.body(9) or tensor.body(4)  # raw bytes, or packed floats
    return name, array(content, _DTYPES[kind], tensor.numbers(1), name)
