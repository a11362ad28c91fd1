"""Writes operations and constants as an ONNX file, without the onnx package: the other direction of `onnx_graph`.

Field numbers are those of onnx/onnx.proto. The version of the format and of the operators are old enough for every
onnxruntime that Python 3.10 can have.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

import numpy as np

from pipeline.models.onnx_graph import Array, Attribute, OnnxGraph, OnnxNode, Shape

OPSET: Final = 17  # of the operators that `onnx_trace` writes
_IR_VERSION: Final = 8

# A message as the pieces that it is made of: weights are large, and are copied once, when the file is joined.
Pieces: TypeAlias = "list[bytes | memoryview]"

_KINDS: Final = {np.dtype("<f4"): 1, np.dtype("<i8"): 7}  # TensorProto.DataType
_FLOAT, _INT, _TENSOR, _INTS = 1, 2, 4, 7  # AttributeProto.AttributeType


def write_onnx(
    graph: OnnxGraph, inputs: Mapping[str, Shape | None], outputs: Sequence[str], metadata: Mapping[str, str]
) -> bytes:
    """The serialised ModelProto of a graph with float32 `inputs` (None: of any shape) and `outputs`, whose shapes
    onnxruntime infers where `graph` does not say them.

    Raises ValueError for a constant that is neither float32 nor int64.
    """
    body: Pieces = []
    for node in graph.nodes:
        body += _message(1, _node(node))
    body += _text(2, "facepipe")
    for name, value in graph.constants.items():
        body += _message(5, _tensor(value, name))
    for name, shape in inputs.items():
        body += _message(11, _value(name, shape))
    for name in outputs:
        body += _message(12, _value(name, graph.shapes.get(name)))
    for name, shape in graph.shapes.items():
        if name not in inputs and name not in outputs:
            body += _message(13, _value(name, shape))
    model = [*_number(1, _IR_VERSION), *_message(7, body), *_message(8, [*_text(1, ""), *_number(2, OPSET)])]
    return b"".join(model) + b"".join(metadata_entry(key, text) for key, text in metadata.items())


def metadata_entry(key: str, text: str) -> bytes:
    """One entry of a model's metadata. It may be appended to a serialised model, which it then belongs to."""
    return b"".join(_message(14, [*_text(1, key), *_text(2, text)]))


def _node(node: OnnxNode) -> Pieces:
    pieces: Pieces = []
    for name in node.inputs:
        pieces += _text(1, name)
    for name in node.outputs:
        pieces += _text(2, name)
    pieces += _text(3, node.outputs[0])
    pieces += _text(4, node.op)
    for name, value in node.attributes.items():
        pieces += _message(5, [*_text(1, name), *_attribute(value)])
    return pieces


def _attribute(value: Attribute) -> Pieces:
    if isinstance(value, tuple):
        return [*(piece for each in value for piece in _number(8, each)), *_number(20, _INTS)]
    if isinstance(value, int):
        return [*_number(3, value), *_number(20, _INT)]
    if isinstance(value, float):
        return [_varint(2 << 3 | 5), struct.pack("<f", value), *_number(20, _FLOAT)]
    return [*_message(5, _tensor(value, "")), *_number(20, _TENSOR)]


def _tensor(value: Array, name: str) -> Pieces:
    kind = _KINDS.get(value.dtype.newbyteorder("<"))
    if kind is None:
        raise ValueError(f"the constant {name} is {value.dtype}, neither float32 nor int64")
    content = np.ascontiguousarray(value, value.dtype.newbyteorder("<"))
    dims = [piece for length in value.shape for piece in _number(1, length)]
    return [*dims, *_number(2, kind), *_text(8, name), *_message(9, [content.reshape(-1).view(np.uint8).data])]


def _value(name: str, shape: Shape | None) -> Pieces:
    """A float32 value of the graph; of unknown rank where `shape` is None."""
    kind = _number(1, 1)
    if shape is not None:
        dims = [_text(2, length) if isinstance(length, str) else _number(1, length) for length in shape]
        kind += _message(2, [piece for dim in dims for piece in _message(1, dim)])
    return [*_text(1, name), *_message(2, _message(1, kind))]


def _message(field: int, pieces: Pieces) -> Pieces:
    """A length-delimited field."""
    return [_varint(field << 3 | 2), _varint(sum(map(len, pieces))), *pieces]


def _text(field: int, text: str) -> Pieces:
    return _message(field, [text.encode()])


def _number(field: int, number: int) -> Pieces:
    return [_varint(field << 3), _varint(number % 2**64)]


def _varint(number: int) -> bytes:
    pieces = bytearray()
    while number > 0x7F:
        pieces.append(number & 0x7F | 0x80)
        number >>= 7
    pieces.append(number)
    return bytes(pieces)
