"""The readers of the frozen graph and of the ONNX file, with its folding of constants, on graphs encoded here field by
field."""

from __future__ import annotations

import struct
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.models.conversion.facenet import read_float_constants
from pipeline.models.conversion.onnx import OnnxGraph, OnnxNode, fold_constants, read_onnx
from pipeline.models.conversion.protobuf import GraphInvalid


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


# The frozen graph.

FLOAT, INT32, STRING = 1, 3, 7


def graph_tensor(dtype: int, shape: list[int], values: bytes) -> bytes:
    dims = b"".join(bytes_field(2, number_field(1, size)) for size in shape)
    return number_field(1, dtype) + bytes_field(2, dims) + values


def graph_constant(name: str, body: bytes) -> bytes:
    attributes = [
        bytes_field(1, b"dtype") + bytes_field(2, number_field(6, 1)),
        bytes_field(1, b"value") + bytes_field(2, bytes_field(8, body)),
    ]
    fields = bytes_field(1, name.encode()) + bytes_field(2, b"Const")
    return bytes_field(1, fields + b"".join(bytes_field(5, a) for a in attributes))


WEIGHTS = np.arange(6, dtype="<f4").reshape(2, 3)
GRAPH = (
    graph_constant("weights", graph_tensor(FLOAT, [2, 3], bytes_field(4, WEIGHTS.tobytes())))
    + graph_constant("ones", graph_tensor(FLOAT, [3], bytes_field(5, struct.pack("<f", 1.0))))
    + graph_constant("scale", graph_tensor(FLOAT, [], bytes_field(5, struct.pack("<f", 0.17))))
    + graph_constant("shape", graph_tensor(INT32, [2], bytes_field(4, struct.pack("<ii", 1, -1))))
    + graph_constant("label", graph_tensor(STRING, [], bytes_field(8, b"text")))
    + bytes_field(1, b"".join(bytes_field(*f) for f in ((1, b"product"), (2, b"MatMul"), (3, b"x"), (3, b"weights"))))
    + number_field(3, 22)
)


def test_float_constants_have_their_shapes_and_a_single_value_fills_them() -> None:
    constants = read_float_constants(GRAPH)
    assert list(constants) == ["weights", "ones", "scale"]
    np.testing.assert_array_equal(constants["weights"], WEIGHTS)
    np.testing.assert_array_equal(constants["ones"], np.ones(3, np.float32))
    assert constants["scale"].shape == ()
    assert constants["scale"] == np.float32(0.17)


@pytest.mark.parametrize(
    "body",
    [
        graph_tensor(FLOAT, [2, 3], bytes_field(4, WEIGHTS.tobytes()[:-4])),
        graph_tensor(FLOAT, [2, 2**63], bytes_field(4, WEIGHTS.tobytes())),
        graph_tensor(FLOAT, [2**64 - 1], bytes_field(5, struct.pack("<f", 1.0))),
    ],
    ids=["too few bytes", "huge", "negative dimension"],
)
def test_a_shape_that_the_content_cannot_have_is_refused(body: bytes) -> None:
    with pytest.raises(GraphInvalid, match="shape"):
        read_float_constants(graph_constant("weights", body))


def test_a_truncated_graph_is_refused_or_ends_between_two_nodes() -> None:
    names = list(read_float_constants(GRAPH))
    refused = 0
    for cut in range(len(GRAPH)):
        try:
            found = list(read_float_constants(GRAPH[:cut]))
        except GraphInvalid:
            refused += 1
        else:
            assert found == names[: len(found)] != []
    assert refused > 0.9 * len(GRAPH)


# The ONNX file.

KINDS = {"float32": 1, "uint8": 2, "int8": 3, "int64": 7, "float64": 11}


def tensor(name: str, value: npt.NDArray[Any]) -> bytes:
    """An initializer."""
    body = b"".join(number_field(1, size) for size in value.shape)
    body += number_field(2, KINDS[value.dtype.name]) + bytes_field(8, name.encode())
    return bytes_field(5, body + bytes_field(9, value.tobytes()))


def attribute(name: str, value: float | int | list[int] | str) -> bytes:
    body = bytes_field(1, name.encode())
    if isinstance(value, float):
        body += fixed32_field(2, struct.pack("<f", value)) + number_field(20, 1)
    elif isinstance(value, int):
        body += number_field(3, value) + number_field(20, 2)
    elif isinstance(value, str):
        body += bytes_field(4, value.encode()) + number_field(20, 3)
    else:
        body += b"".join(number_field(8, each) for each in value) + number_field(20, 7)
    return bytes_field(5, body)


def node(op: str, inputs: list[str], output: str, **attributes: float | int | list[int] | str) -> bytes:
    body = b"".join(bytes_field(1, each.encode()) for each in inputs) + bytes_field(2, output.encode())
    body += bytes_field(3, b"a name") + bytes_field(4, op.encode())
    return bytes_field(1, body + b"".join(attribute(key, value) for key, value in attributes.items()))


def model(*parts: bytes) -> bytes:
    """A ModelProto with an input that no node reads."""
    declared = bytes_field(11, bytes_field(1, b"dangling"))
    return number_field(1, 8) + bytes_field(7, b"".join(parts) + declared) + bytes_field(8, number_field(2, 21))


# Seven columns in blocks of three: the last block has one.
VALUES = np.arange(-7, 7, dtype=np.int8).reshape(2, 7)
SCALES = np.array([[0.5, 2.0, 3.0], [1.0, 0.25, 10.0]], np.float32)
ZEROS = np.array([[1, -128, 0], [0, 127, 3]], np.int8)
FILE = model(
    tensor("values", VALUES),
    tensor("scales", SCALES),
    tensor("zeros", ZEROS),
    tensor("shape", np.array([7, 2], np.int64)),
    tensor("bias", np.array([1.5, -2.5], np.float32)),
    node("DequantizeLinear", ["values", "scales", "zeros"], "plain", axis=-1, block_size=3),
    node("Reshape", ["plain", "shape"], "weight", allowzero=0),
    node("Conv", ["data", "weight", "bias"], "out", strides=[2, 1], pads=[-1, 0], group=1, epsilon=0.5, mode="same"),
    node("Reshape", ["out", "shape"], "flat"),
)


def dequantised() -> npt.NDArray[np.float32]:
    """By the definition in ONNX's operator list, one number at a time."""
    rows = [
        [(int(x) - int(ZEROS[i, j // 3])) * SCALES[i, j // 3] for j, x in enumerate(r)] for i, r in enumerate(VALUES)
    ]
    return np.array(rows, np.float32)


def test_reads_nodes_attributes_and_constants() -> None:
    graph = read_onnx(FILE)
    assert [each.op for each in graph.nodes] == ["DequantizeLinear", "Reshape", "Conv", "Reshape"]
    conv = graph.nodes[2]
    assert (conv.inputs, conv.outputs) == (("data", "weight", "bias"), ("out",))
    assert conv.attributes == {"strides": (2, 1), "pads": (-1, 0), "group": 1, "epsilon": 0.5}
    assert graph.nodes[0].attributes == {"axis": -1, "block_size": 3}
    np.testing.assert_array_equal(graph.constants["bias"], np.array([1.5, -2.5], np.float32))
    np.testing.assert_array_equal(graph.constants["values"], VALUES)


def test_what_rests_on_constants_is_evaluated_and_the_rest_stays() -> None:
    graph = fold_constants(read_onnx(FILE))
    assert [each.op for each in graph.nodes] == ["Conv", "Reshape"]  # that Reshape is of what the network computes
    assert set(graph.constants) == {"weight", "bias", "shape"}
    assert graph.constants["weight"].dtype == np.float32
    np.testing.assert_array_equal(graph.constants["weight"], dequantised().reshape(7, 2))


def test_a_constant_that_no_node_reads_is_not_forgotten() -> None:
    unread = {"more": np.zeros(1, np.float32)}
    graph = read_onnx(FILE)
    assert "more" in fold_constants(OnnxGraph(graph.nodes, {**graph.constants, **unread})).constants


@pytest.mark.parametrize(
    ("inputs", "attributes"),
    [
        ({"scales": SCALES[:, :2]}, {"axis": 1, "block_size": 3}),
        ({"zeros": ZEROS[:1]}, {"axis": 1, "block_size": 3}),
        ({"scales": SCALES.astype(np.float64)}, {"axis": 1, "block_size": 3}),
        ({"scales": np.full_like(SCALES, 3e38)}, {"axis": -1, "block_size": 3}),
        ({}, {"axis": 1, "block_size": 2}),
        ({}, {"axis": 2, "block_size": 3}),
        ({}, {"axis": 1}),
    ],
    ids=["scales", "zero points", "float64", "beyond float32", "block", "axis", "no blocks"],
)
def test_a_quantisation_of_another_form_is_refused(
    inputs: dict[str, npt.NDArray[Any]], attributes: dict[str, int]
) -> None:
    constants = {"values": VALUES, "scales": SCALES, "zeros": ZEROS, **inputs}
    quantised = OnnxNode("DequantizeLinear", ("values", "scales", "zeros"), ("plain",), attributes)
    with pytest.raises(GraphInvalid, match="plain"):
        fold_constants(OnnxGraph((quantised,), constants))


@pytest.mark.parametrize("shape", [[7, 3], [-1, 2], [0, 2]])
def test_a_shape_that_does_not_fit_is_refused(shape: list[int]) -> None:
    constants = {"values": VALUES, "shape": np.array(shape, np.int64)}
    with pytest.raises(GraphInvalid, match="shape"):
        fold_constants(OnnxGraph((OnnxNode("Reshape", ("values", "shape"), ("out",), {}),), constants))


@pytest.mark.parametrize(
    "file",
    [
        b"",
        number_field(1, 8),
        model(),
        model(tensor("w", np.zeros(3, np.float64)), node("Conv", ["data", "w"], "out")),
        model(bytes_field(5, number_field(1, 2) + number_field(2, 1) + bytes_field(9, b"123"))),
        model(bytes_field(5, number_field(1, -2) + number_field(2, 1) + bytes_field(9, b""))),
        model(bytes_field(5, number_field(1, 0) + number_field(1, 2**62) + number_field(2, 1))),
        model(bytes_field(1, bytes_field(4, b"Conv"))),
    ],
    ids=["empty", "no graph", "no nodes", "float64", "too few bytes", "negative size", "huge size", "no output"],
)
def test_what_is_no_graph_of_ours_is_refused(file: bytes) -> None:
    with pytest.raises(GraphInvalid):
        read_onnx(file)


def test_a_truncated_file_is_refused() -> None:
    whole = read_onnx(FILE)
    for cut in range(len(FILE)):
        with suppress(GraphInvalid):
            # Cut between two fields of the model, behind the graph, it is whole.
            assert read_onnx(FILE[:cut]).nodes == whole.nodes


# Either reader.

READERS: dict[str, tuple[Callable[[bytes], object], bytes]] = {
    "frozen graph": (read_float_constants, GRAPH),
    "onnx": (lambda data: fold_constants(read_onnx(data)), FILE),
}


@pytest.mark.parametrize(("read", "whole"), READERS.values(), ids=READERS)
def test_no_bytes_break_a_reader(read: Callable[[bytes], object], whole: bytes) -> None:
    """Anything else than GraphInvalid fails the test."""

    @given(st.binary(max_size=200))
    def any_bytes(data: bytes) -> None:
        with suppress(GraphInvalid):
            read(data)

    @given(st.integers(0, len(whole) - 1), st.integers(1, 255))
    def flipped_byte(position: int, flip: int) -> None:
        damaged = bytearray(whole)
        damaged[position] ^= flip
        with suppress(GraphInvalid):
            read(bytes(damaged))

    any_bytes()
    flipped_byte()
