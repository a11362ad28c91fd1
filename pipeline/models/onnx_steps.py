"""Operations of a network as steps for the compiled `loops`, as far as single operations and their neighbours tell."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np

from pipeline.models.layers import Convolution, Pool, Step
from pipeline.models.onnx_graph import Array, OnnxGraph, OnnxNode
from pipeline.models.onnx_trace import INPUT


@dataclass(frozen=True)
class Found:
    """A step, and the operations that it does."""

    step: Step
    nodes: tuple[OnnxNode, ...]


def find_steps(graph: OnnxGraph, outputs: Sequence[str], lanes: int) -> list[Found]:
    """What the loops can do, as far as a single operation tells, in an order of evaluation. `lanes`: what numbers of
    channels must be multiples of."""
    readers = Counter([*(name for node in graph.nodes for name in node.inputs), *outputs])
    # What alone reads a value, and is in no step yet: of two convolutions that are added, the first one has the sum.
    following = {name: node for node in graph.nodes for name in node.inputs if readers[name] == 1}
    found: list[Found] = []
    for node in graph.nodes:
        pool, convolution = _pool(node), _convolution(node, graph.constants, lanes)
        if pool is not None:
            done = Found(Step(pool, node.inputs[0], node.outputs[0]), (node,))
        elif convolution is not None:
            done = _finished(convolution, node, graph.constants, following)
        else:
            continue
        found.append(done)
        for name in (name for other in done.nodes for name in other.inputs):
            following.pop(name, None)
    places = {node.outputs: place for place, node in enumerate(graph.nodes)}
    # What is added to a convolution's answer may be made behind the convolution.
    found.sort(key=lambda each: places[each.nodes[-1].outputs])
    for node in graph.nodes:
        found = _joined(node, found, graph, readers)
    return found


def _finished(
    convolution: Convolution, node: OnnxNode, constants: Mapping[str, Array], following: Mapping[str, OnnxNode]
) -> Found:
    """A convolution with what follows: a factor, another value added to it, a ReLU."""
    nodes, added = [node], None
    scale = following.get(node.outputs[0])
    factor = None if scale is None else _factor(scale, constants)
    if scale is not None and factor is not None:
        scaled = (numbers * np.float32(factor) for numbers in (convolution.weights, convolution.bias))
        convolution = replace(convolution, **dict(zip(("weights", "bias"), scaled, strict=True)))
        nodes.append(scale)
    total = following.get(nodes[-1].outputs[0])
    if total is not None and total.op == "Add" and convolution.pointwise:
        others = [name for name in total.inputs if name != nodes[-1].outputs[0] and name not in constants]
        if len(others) == 1:
            (added,) = others
            nodes.append(total)
    relu = following.get(nodes[-1].outputs[0])
    if relu is not None and relu.op == "Relu":
        convolution = replace(convolution, relu=True)
        nodes.append(relu)
    return Found(Step(convolution, node.inputs[0], nodes[-1].outputs[0], added=added), tuple(nodes))


def _joined(node: OnnxNode, found: list[Found], graph: OnnxGraph, readers: Counter[str]) -> list[Found]:
    """The steps, those that make the parts of the concatenation `node` writing into it; as they were, if it is no such
    concatenation, or something else makes or reads a part."""
    made = {each.step.target for each in found}
    if node.op != "Concat" or node.attributes.get("axis") != 1:
        return found
    shapes = [shape_of(graph, name) for name in node.inputs if name in made and readers[name] == 1]
    channels = [shape[0] for shape in shapes if shape is not None]
    if len(channels) != len(node.inputs):
        return found
    places = dict(zip(node.inputs, accumulate(channels, initial=0), strict=False))
    (target,) = node.outputs
    joined = []
    for each in found:
        if each.step.target in places:
            step = replace(each.step, target=target, first=places[each.step.target] + each.step.first)
            joined.append(Found(step, (*each.nodes, node)))
        else:
            joined.append(each)
    return joined


def _pool(node: OnnxNode) -> Pool | None:
    sides, steps = node.attributes.get("kernel_shape"), node.attributes.get("strides")
    if node.op != "MaxPool" or node.attributes.get("ceil_mode") or node.attributes.get("pads") != (0, 0, 0, 0):
        return None
    if not isinstance(sides, tuple) or not isinstance(steps, tuple) or {len({*sides}), len({*steps})} != {1}:
        return None
    return Pool(sides[0], steps[0])


def _convolution(node: OnnxNode, constants: Mapping[str, Array], lanes: int) -> Convolution | None:
    """What the node does, where the loops may do it: all channels with each other, as many zeros on both sides."""
    plain = {"dilations": (1, 1), "group": 1}
    if node.op != "Conv" or any(node.attributes.get(key) != value for key, value in plain.items()):
        return None
    steps, pads = node.attributes.get("strides"), node.attributes.get("pads")
    if not isinstance(steps, tuple) or not isinstance(pads, tuple) or len({*steps}) != 1 or pads[:2] != pads[2:]:
        return None
    weights = constants[node.inputs[1]]
    if len(weights) % lanes or (weights.shape[1] % lanes and node.inputs[0] != INPUT):
        return None
    bias = constants[node.inputs[2]] if len(node.inputs) == 3 else np.zeros(len(weights), np.float32)
    return Convolution(weights, bias, (pads[0], pads[1]), steps[0])


def _factor(node: OnnxNode, constants: Mapping[str, Array]) -> float | None:
    """The number by which the node multiplies everything, if it does just that."""
    numbers = [constants[name] for name in node.inputs if name in constants]
    if node.op != "Mul" or len(numbers) != 1 or numbers[0].size != 1:
        return None
    return float(numbers[0].item())


def shape_of(graph: OnnxGraph, name: str) -> tuple[int, int, int] | None:
    """Of each picture of a value, [c, h, w]; None where it is not known."""
    lengths = [length for length in graph.shapes.get(name, ())[1:] if isinstance(length, int)]
    return (lengths[0], lengths[1], lengths[2]) if len(lengths) == 3 else None
