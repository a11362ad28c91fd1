"""What is written as ONNX is read back as it was, and onnxruntime takes it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.models.exported import read_metadata
from pipeline.models.onnx_graph import OnnxGraph, OnnxNode, read_onnx
from pipeline.models.onnx_write import metadata_entry, write_onnx

INT64 = st.integers(-(2**63), 2**63 - 1)
NAMES = st.text(min_size=1, max_size=200)


def written(nodes: tuple[OnnxNode, ...] = (), constants: dict[str, Any] | None = None, **metadata: str) -> bytes:
    last = OnnxNode("Relu", ("x",), ("y",), {})
    return write_onnx(OnnxGraph((*nodes, last), constants or {}), {"x": ("n", 3)}, ("y",), metadata)


@given(
    NAMES,
    st.lists(NAMES, max_size=4),
    st.dictionaries(
        NAMES, st.one_of(INT64, st.floats(width=32, allow_nan=False), st.lists(INT64).map(tuple)), max_size=4
    ),
)
def test_operations_come_back(op: str, inputs: list[str], attributes: dict[str, Any]) -> None:
    node = OnnxNode(op, tuple(inputs), ("out",), attributes)
    assert read_onnx(written((node,))).nodes[0] == node


@pytest.mark.parametrize("shape", [(), (0,), (1,), (2, 0, 3), (300,), (4, 3, 2, 1)])
@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.dtype(">f4")])
def test_constants_come_back(shape: tuple[int, ...], dtype: Any) -> None:
    value = np.arange(np.prod(shape), dtype=np.float64).reshape(shape).astype(dtype) - 1
    found = read_onnx(written(constants={"weights of a layer": value})).constants["weights of a layer"]
    assert found.shape == shape
    assert found.dtype == np.dtype(dtype).newbyteorder("<")
    np.testing.assert_array_equal(found, value)


def test_what_does_not_lie_in_one_piece_is_written_in_order() -> None:
    value = np.arange(24, dtype=np.float32).reshape(2, 3, 4).transpose(2, 0, 1)[::2]
    np.testing.assert_array_equal(read_onnx(written(constants={"w": value})).constants["w"], value)


def test_a_constant_as_an_attribute_comes_back() -> None:
    node = OnnxNode("Constant", (), ("c",), {"value": np.array([1.5, -2], np.float32)})
    (found,) = read_onnx(written((node,))).nodes[0].attributes.values()
    np.testing.assert_array_equal(found, [1.5, -2])  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", [np.float64, np.float16, np.int32, np.bool_])
def test_other_numbers_are_refused(dtype: Any) -> None:
    with pytest.raises(ValueError, match=f"w is {np.dtype(dtype)}"):
        written(constants={"w": np.zeros(3, dtype)})


@given(st.dictionaries(NAMES, st.text(max_size=300), max_size=4), NAMES)
def test_metadata_come_back_also_what_is_appended(metadata: dict[str, str], more: str) -> None:
    model = written() + b"".join(metadata_entry(*entry) for entry in metadata.items()) + metadata_entry(more, "é")
    assert read_metadata(model) == {**metadata, more: "é"}
    assert len(read_onnx(model).nodes) == 1


def test_onnxruntime_takes_it() -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    model = written((), key="value") + metadata_entry("more", "text")
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"x": np.array([[1, -1, 2], [-3, 0, 4]], np.float32)})
    np.testing.assert_array_equal(found, [[1, 0, 2], [0, 0, 4]])
    assert session.get_modelmeta().custom_metadata_map == {"key": "value", "more": "text"}
