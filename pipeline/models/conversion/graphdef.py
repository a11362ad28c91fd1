"""Reads the float constants of a frozen TensorFlow graph, without TensorFlow.

A frozen graph is one serialised `GraphDef`. Field numbers are those of tensorflow/core/framework: graph.proto,
node_def.proto, attr_value.proto, tensor.proto and tensor_shape.proto.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from pipeline.models.conversion.protobuf import GraphInvalid, Message, array, element_count
from pipeline.types import FloatArray

_FLOAT: Final = 1  # types.proto
# TensorProto.tensor_content is little-endian on every machine that made such files.
_DTYPE: Final = np.dtype("<f4")


def read_float_constants(data: bytes) -> dict[str, FloatArray]:
    """The float32 constants of a serialised GraphDef by name, in file order: weights, and a few scalars. (Whole numbers
    are the graph's shapes and axes.) Raises GraphInvalid."""
    nodes = Message(data).messages(1)
    if not nodes:
        raise GraphInvalid("the graph holds no nodes")
    constants = {}
    for node in nodes:
        tensor = _value(node)
        if node.text(2) == "Const" and tensor.number(1) == _FLOAT:
            constants[node.text(1)] = _floats(tensor, node.text(1))
    return constants


def _value(node: Message) -> Message:
    """The TensorProto in the attribute `value` of a node; an empty message if there is none."""
    entry = next((entry for entry in node.messages(5) if entry.text(1) == "value"), Message(b""))
    return entry.message(2).message(8)


def _floats(tensor: Message, name: str) -> FloatArray:
    """A TensorProto of float32. Raises GraphInvalid if content and shape disagree."""
    shape = [dimension.number(1) for dimension in tensor.message(2).messages(2)]
    content = tensor.body(4) or tensor.body(5)  # tensor_content, or packed floats
    if element_count(shape, name) and len(content) == _DTYPE.itemsize:  # tensor.proto: it stands for all elements
        return np.full(shape, np.frombuffer(content, _DTYPE)[0])
    return array(content, _DTYPE, shape, name)
