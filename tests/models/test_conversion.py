"""The conversions use every constant and fill every tensor, or say what is wrong. `test_published_graphs`
compares what comes out with the published graphs themselves."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from pipeline.models.conversion.facenet import convert_constants, read_float_constants
from pipeline.models.conversion.onnx import OnnxGraph, OnnxNode, fold_constants, read_onnx
from pipeline.models.conversion.protobuf import GraphInvalid
from pipeline.models.conversion.sface import convert_chain
from pipeline.models.files.converted import check_converted, content_digest
from pipeline.models.registry import weight_set
from pipeline.models.weights import cached_file, package_files
from pipeline.types import FloatArray

WEIGHTS = "InceptionResnetV1/Repeat_1/block17_3/Branch_1/Conv2d_0b_1x7/weights"
SCALE = "InceptionResnetV1/Repeat_2/block8_1/mul/x"


# Another digest is another model.
@pytest.mark.parametrize(
    ("name", "cache", "digest"),
    [
        ("casia-webface", "weights_cache", "0b3a8d92d40fc7473b2083f8fc0ac2c1c18ddde76aa8ee8fe1a61cb55d8b8448"),
        ("sface", "sface_cache", "be4795e9bd08092df248e360f8315a12d264cd5fe02cd7e4dbd70d53ca143f7c"),
    ],
)
def test_the_conversion_gives_exactly_these_tensors(
    name: str, cache: str, digest: str, request: pytest.FixtureRequest
) -> None:
    arrays = check_converted(cached_file(weight_set(name), request.getfixturevalue(cache)))
    assert content_digest(arrays) == digest


# InceptionResnetV1.


@pytest.fixture(scope="module")
def constants() -> dict[str, FloatArray]:
    (graph,) = package_files(weight_set("casia-webface"))
    return read_float_constants(graph.read_bytes())


@pytest.mark.parametrize(
    "name",
    [WEIGHTS, "InceptionResnetV1/Block8/Conv2d_1x1/biases", "InceptionResnetV1/Bottleneck/BatchNorm/moving_mean"],
)
def test_a_missing_constant_is_an_error(constants: dict[str, FloatArray], name: str) -> None:
    with pytest.raises(GraphInvalid, match=r"missing|no part of"):
        convert_constants({key: value for key, value in constants.items() if key != name})


@pytest.mark.parametrize(
    "name",
    ["InceptionResnetV1/Logits/weights", "InceptionResnetV1/Repeat/block35_1/Branch_0/Conv2d_1x1/gamma", "other"],
)
def test_an_unknown_constant_is_an_error(constants: dict[str, FloatArray], name: str) -> None:
    with pytest.raises(GraphInvalid, match="no part of"):
        convert_constants({**constants, name: np.zeros(4, np.float32)})


def test_another_shape_or_residual_scale_than_the_modules_is_an_error(constants: dict[str, FloatArray]) -> None:
    with pytest.raises(GraphInvalid, match="shape"):
        convert_constants({**constants, WEIGHTS: constants[WEIGHTS][:, :5]})
    with pytest.raises(GraphInvalid, match="scale"):
        convert_constants({**constants, SCALE: np.float32(0.3)})  # type: ignore[dict-item]


# SFace.


@pytest.fixture(scope="module")
def graph(sface_installed: None) -> OnnxGraph:
    """The published file, its weights dequantised."""
    (file,) = package_files(weight_set("sface"))
    return fold_constants(read_onnx(file.read_bytes()))


def find(graph: OnnxGraph, op: str, number: int = 0) -> OnnxNode:
    return [node for node in graph.nodes if node.op == op][number]


def with_node(graph: OnnxGraph, old: OnnxNode, **changes: Any) -> OnnxGraph:
    new = dataclasses.replace(old, **changes)
    return OnnxGraph(tuple(new if node is old else node for node in graph.nodes), graph.constants)


def with_constant(graph: OnnxGraph, name: str, value: Any) -> OnnxGraph:
    return OnnxGraph(graph.nodes, {**graph.constants, name: value})


def test_another_stride_kernel_or_grouping_is_an_error(graph: OnnxGraph) -> None:
    conv = find(graph, "Conv", 3)
    for changes in ({"strides": (1, 1)}, {"pads": (0, 0, 1, 1)}, {"group": 1}, {"dilations": (2, 2)}):
        with pytest.raises(GraphInvalid, match=next(iter(changes))):
            convert_chain(with_node(graph, conv, attributes={**conv.attributes, **changes}))


def test_a_missing_node_is_an_error(graph: OnnxGraph) -> None:
    for gone in (find(graph, "PRelu", 5), find(graph, "BatchNormalization", 27), graph.nodes[-1]):
        nodes = tuple(node for node in graph.nodes if node is not gone)
        with pytest.raises(GraphInvalid, match="should come"):
            convert_chain(OnnxGraph(nodes, graph.constants))


def test_a_node_that_reads_another_place_is_an_error(graph: OnnxGraph) -> None:
    relu = find(graph, "PRelu", 4)
    with pytest.raises(GraphInvalid, match="should come"):
        convert_chain(with_node(graph, relu, inputs=("data", relu.inputs[1])))


def test_what_is_left_over_is_an_error(graph: OnnxGraph) -> None:
    with pytest.raises(GraphInvalid, match="no part of SFace: other"):
        convert_chain(with_constant(graph, "other", np.zeros(3, np.float32)))
    last = OnnxNode("Softmax", graph.nodes[-1].outputs, ("end",), {})
    with pytest.raises(GraphInvalid, match="no part of SFace: Softmax"):
        convert_chain(OnnxGraph((*graph.nodes, last), graph.constants))


def test_another_preprocessing_is_an_error(graph: OnnxGraph) -> None:
    with pytest.raises(GraphInvalid, match="preprocessing"):
        convert_chain(with_constant(graph, graph.nodes[0].inputs[1], np.float32(128)))


@pytest.mark.parametrize(
    ("op", "place"), [("Conv", 1), ("PRelu", 1), ("BatchNormalization", 3), ("Gemm", 1), ("Gemm", 2)]
)
def test_a_constant_of_another_shape_is_an_error(graph: OnnxGraph, op: str, place: int) -> None:
    name = find(graph, op, 0).inputs[place]
    with pytest.raises(GraphInvalid, match=r"shape|channels"):
        convert_chain(with_constant(graph, name, graph.constants[name][:-1]))
