"""SFace's conversion uses every node and constant and fills every tensor, or says what is wrong."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from pipeline.models.conversion.onnx import OnnxGraph, OnnxNode, fold_constants, read_onnx
from pipeline.models.conversion.protobuf import GraphInvalid
from pipeline.models.conversion.sface import convert_chain
from pipeline.models.networks.sface import SFace, build_network
from pipeline.models.registry import weight_set
from pipeline.models.weights import package_files


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


def test_the_graph_is_one_chain_from_data(graph: OnnxGraph) -> None:
    """The declared inputs that nothing reads are gone; what is left reads one another and constants."""
    assert graph.nodes[0].inputs[0] == "data"
    assert len(graph.nodes) == 2 + 27 * 3 + 5
    known = {"data", *graph.constants, *(name for node in graph.nodes for name in node.outputs)}
    assert {name for node in graph.nodes for name in node.inputs} <= known


def test_every_tensor_of_the_module_is_filled(graph: OnnxGraph) -> None:
    tensors = convert_chain(graph)
    assert {name: value.shape for name, value in tensors.items()} == {
        name: value.shape for name, value in SFace().state_dict().items()
    }
    assert all(value.dtype == torch.float32 and value.isfinite().all() for value in tensors.values())


def test_folding_equals_the_layers_one_after_the_other(graph: OnnxGraph) -> None:
    """The graph as it stands, evaluated node by node by torch in float64, against the folded module in float32."""
    generator = torch.Generator().manual_seed(0)
    crops = torch.randint(0, 256, (2, 3, 112, 112), generator=generator).float()
    values = {name: torch.from_numpy(np.array(value, np.float64)) for name, value in graph.constants.items()}
    values["data"] = crops.double()
    for node in graph.nodes:
        values[node.outputs[0]] = evaluate(node, [values[name] for name in node.inputs])
    expected = values[graph.nodes[-1].outputs[0]]
    with torch.inference_mode():
        found = build_network(convert_chain(graph))((crops - 127.5) / 128)
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-4)


def evaluate(node: OnnxNode, inputs: list[torch.Tensor]) -> torch.Tensor:
    """One node, as ONNX's operator list defines it."""
    first, *rest = inputs
    known: dict[str, Callable[[], torch.Tensor]] = {
        "Sub": lambda: first - rest[0],
        "Mul": lambda: first * rest[0],
        "PRelu": lambda: torch.where(first < 0, first * rest[0], first),
        "Dropout": lambda: first,
        "Flatten": lambda: first.reshape(len(first), -1),
        "Gemm": lambda: first @ rest[0].T + rest[1],
        "Conv": lambda: convolve(node, first, rest[0]),
        "BatchNormalization": lambda: torch.nn.functional.batch_norm(
            first,
            rest[2],
            rest[3],
            rest[0],
            rest[1],
            eps=float(node.attributes["epsilon"]),  # type: ignore[arg-type]
        ),
    }
    return known[node.op]()


def convolve(node: OnnxNode, pixels: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    top, left, _, _ = node.attributes["pads"]  # type: ignore[misc]
    strides, groups = node.attributes["strides"], node.attributes["group"]
    return torch.nn.functional.conv2d(pixels, weight, None, strides, (top, left), groups=groups)  # type: ignore[arg-type]


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
