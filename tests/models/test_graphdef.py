"""The frozen graph's reader, on graphs encoded here field by field."""

from __future__ import annotations

import struct
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.models.conversion.graphdef import float_constants, read_graph
from pipeline.models.conversion.protobuf import GraphInvalid
from tests.models.protobuf_bytes import bytes_field, number_field

FLOAT, INT32, STRING = 1, 3, 7


def tensor(dtype: int, shape: list[int], values: bytes) -> bytes:
    dims = b"".join(bytes_field(2, number_field(1, size)) for size in shape)
    return number_field(1, dtype) + bytes_field(2, dims) + values


def constant(name: str, body: bytes) -> bytes:
    attributes = [
        bytes_field(1, b"dtype") + bytes_field(2, number_field(6, 1)),
        bytes_field(1, b"value") + bytes_field(2, bytes_field(8, body)),
    ]
    fields = bytes_field(1, name.encode()) + bytes_field(2, b"Const")
    return bytes_field(1, fields + b"".join(bytes_field(5, a) for a in attributes))


WEIGHTS = np.arange(6, dtype="<f4").reshape(2, 3)
GRAPH = (
    constant("weights", tensor(FLOAT, [2, 3], bytes_field(4, WEIGHTS.tobytes())))
    + constant("ones", tensor(FLOAT, [3], bytes_field(5, struct.pack("<f", 1.0))))
    + constant("scale", tensor(FLOAT, [], bytes_field(5, struct.pack("<f", 0.17))))
    + constant("shape", tensor(INT32, [2], bytes_field(4, struct.pack("<ii", 1, -1))))
    + constant("label", tensor(STRING, [], bytes_field(8, b"text")))
    + bytes_field(1, b"".join(bytes_field(*f) for f in ((1, b"product"), (2, b"MatMul"), (3, b"x"), (3, b"weights"))))
    + number_field(3, 22)
)


def test_reads_nodes_inputs_and_values() -> None:
    nodes = {node.name: node for node in read_graph(GRAPH)}
    assert [node.op for node in nodes.values()] == ["Const"] * 5 + ["MatMul"]
    assert nodes["product"].inputs == ("x", "weights")
    np.testing.assert_array_equal(nodes["shape"].value, [1, -1])
    assert nodes["label"].value is None


def test_float_constants_have_their_shapes_and_a_single_value_fills_them() -> None:
    constants = float_constants(read_graph(GRAPH))
    assert set(constants) == {"weights", "ones", "scale"}
    np.testing.assert_array_equal(constants["weights"], WEIGHTS)
    np.testing.assert_array_equal(constants["ones"], np.ones(3, np.float32))
    assert constants["scale"].shape == ()
    assert constants["scale"] == np.float32(0.17)


@pytest.mark.parametrize(
    "body",
    [
        tensor(FLOAT, [2, 3], bytes_field(4, WEIGHTS.tobytes()[:-4])),
        tensor(FLOAT, [2, 2**63], bytes_field(4, WEIGHTS.tobytes())),
        tensor(FLOAT, [2**64 - 1], bytes_field(5, struct.pack("<f", 1.0))),
    ],
    ids=["too few bytes", "huge", "negative dimension"],
)
def test_a_shape_that_the_content_cannot_have_is_refused(body: bytes) -> None:
    with pytest.raises(GraphInvalid, match="shape"):
        read_graph(constant("weights", body))


def test_a_truncated_graph_is_refused_or_ends_between_two_nodes() -> None:
    names = [node.name for node in read_graph(GRAPH)]
    refused = 0
    for cut in range(len(GRAPH)):
        try:
            found = [node.name for node in read_graph(GRAPH[:cut])]
        except GraphInvalid:
            refused += 1
        else:
            assert found == names[: len(found)]
    assert refused > 0.9 * len(GRAPH)


@given(st.binary(max_size=200))
def test_no_bytes_break_the_reader(data: bytes) -> None:
    try:
        nodes = read_graph(data)
    except GraphInvalid:
        return
    assert nodes


@given(st.integers(0, len(GRAPH) - 1), st.integers(1, 255))
def test_no_flipped_byte_breaks_the_reader(position: int, flip: int) -> None:
    damaged = bytearray(GRAPH)
    damaged[position] ^= flip
    # Any other exception fails the test.
    with suppress(GraphInvalid):
        float_constants(read_graph(bytes(damaged)))
