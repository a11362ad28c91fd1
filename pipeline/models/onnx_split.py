"""Takes out of a network what the compiled `loops` do with fewer products than onnxruntime.

What is before, behind and beside it stays as it is, for onnxruntime.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Final

import numpy as np

from pipeline.models.layers import Convolution, Pool, Step, Unfit
from pipeline.models.loops import Loops, load_kernels
from pipeline.models.onnx_graph import Array, OnnxGraph, OnnxNode
from pipeline.models.onnx_trace import INPUT

# Channels in times channels out of a convolution for which a cut pays: in a run that has none so large, less is saved
# than it takes to hand the pictures over.
_CHANNELS: Final = 64 * 64


@dataclass(frozen=True)
class GraphPart:
    """Operations for onnxruntime; `outputs` are what later parts read, or the network's answers."""

    graph: OnnxGraph
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True)
class Run:
    """Steps for the compiled loops, from one value to another."""

    loops: Loops
    nodes: tuple[OnnxNode, ...]
    input: str
    output: str


def cut(graph: OnnxGraph, outputs: Sequence[str]) -> list[GraphPart | Run] | None:
    """The parts of a network in an order of evaluation, where there is a run for the compiled loops; else None.

    There is one at most: all convolutions and pools of whole vectors of channels, their sums and concatenations, if
    these lie between two values, if the loops have a form for each and if one convolution pays.
    """
    kernels = load_kernels()
    steps = [] if kernels is None else _steps(graph, outputs, kernels.LANES)
    run = _run(graph, outputs, steps) if any(_pays(each.step) for each in steps) else None
    if run is None:
        return None
    rest = [node for node in graph.nodes if node not in run.nodes]
    before = _ancestors(rest, [run.input])
    behind = [node for node in rest if node not in before]
    later = [name for node in (*run.nodes, *behind) for name in node.inputs]
    parts = _part(graph, before, [*later, *outputs]), run, _part(graph, behind, outputs)
    return [part for part in parts if isinstance(part, Run) or part.outputs]


@dataclass(frozen=True)
class _Found:
    """A step, and the operations that it does."""

    step: Step
    nodes: tuple[OnnxNode, ...]


def _run(graph: OnnxGraph, outputs: Sequence[str], found: Sequence[_Found]) -> Run | None:
    """All steps as one run; None where they are not between two values, or do not fit the loops."""
    inside = {name for each in found for node in each.nodes for name in node.outputs}
    nodes = tuple(node for node in graph.nodes if inside.issuperset(node.outputs))
    made = {each.step.target for each in found}
    elsewhere = {name for node in graph.nodes if node not in nodes for name in node.inputs} | {*outputs}
    read = {name for each in found for name in each.step.reads} - made
    answers = inside & elsewhere
    if len(read) != 1 or len(answers) != 1:
        return None
    (source,), (target,) = read, answers
    shape = _shape(graph, source)
    if shape is None:
        return None
    try:
        return Run(Loops([each.step for each in found], source, target, shape), nodes, source, target)
    except Unfit:
        return None


def _shape(graph: OnnxGraph, name: str) -> tuple[int, int, int] | None:
    """Of each picture of a value, [c, h, w]; None where it is not known."""
    lengths = [length for length in graph.shapes.get(name, ())[1:] if isinstance(length, int)]
    return (lengths[0], lengths[1], lengths[2]) if len(lengths) == 3 else None


def _part(graph: OnnxGraph, nodes: Sequence[OnnxNode], wanted: Iterable[str]) -> GraphPart:
    read = dict.fromkeys(name for node in nodes for name in node.inputs)
    made = dict.fromkeys(name for node in nodes for name in node.outputs)
    constants = {name: graph.constants[name] for name in read if name in graph.constants}
    inputs = tuple(name for name in read if name not in made and name not in constants)
    return GraphPart(
        OnnxGraph(tuple(nodes), constants), inputs, tuple(name for name in dict.fromkeys(wanted) if name in made)
    )


def _ancestors(nodes: Sequence[OnnxNode], names: Iterable[str]) -> list[OnnxNode]:
    """Those of `nodes`, which are in an order of evaluation, that the values `names` rest on."""
    wanted, found = set(names), []
    for node in reversed(nodes):
        if wanted.intersection(node.outputs):
            wanted.update(node.inputs)
            found.append(node)
    return found[::-1]


def _pays(step: Step) -> bool:
    layer = step.layer
    if not isinstance(layer, Convolution) or layer.pointwise:
        return False
    outputs, channels = layer.weights.shape[:2]
    return bool(outputs * channels >= _CHANNELS)


def _steps(graph: OnnxGraph, outputs: Sequence[str], lanes: int) -> list[_Found]:
    """What the loops can do, as far as a single operation tells, in an order of evaluation. `lanes`: what numbers of
    channels must be multiples of."""
    readers = Counter([*(name for node in graph.nodes for name in node.inputs), *outputs])
    found: list[_Found] = []
    for node in graph.nodes:
        pool, convolution = _pool(node), _convolution(node, graph.constants, lanes)
        if pool is not None:
            found.append(_Found(Step(pool, node.inputs[0], node.outputs[0]), (node,)))
        elif convolution is not None:
            done = {name for each in found for other in each.nodes for name in other.outputs}
            found.append(_finished(convolution, node, graph, readers, done))
    places = {node.outputs: place for place, node in enumerate(graph.nodes)}
    # What is added to a convolution's answer may be made behind the convolution.
    found.sort(key=lambda each: places[each.nodes[-1].outputs])
    for node in graph.nodes:
        found = _joined(node, found, graph, readers)
    return found


def _finished(
    convolution: Convolution, node: OnnxNode, graph: OnnxGraph, readers: Counter[str], done: Set[str]
) -> _Found:
    """A convolution with what follows, each as the only reader: a factor, another value added to it, a ReLU. `done`:
    values that other steps make; of two convolutions that are added, the first one has the sum."""
    nodes, added = [node], None
    rest = [other for other in graph.nodes if done.isdisjoint(other.outputs)]
    following = {name: other for other in rest for name in other.inputs if readers[name] == 1}
    scale = following.get(node.outputs[0])
    factor = None if scale is None else _factor(scale, graph.constants)
    if scale is not None and factor is not None:
        scaled = (numbers * np.float32(factor) for numbers in (convolution.weights, convolution.bias))
        convolution = replace(convolution, **dict(zip(("weights", "bias"), scaled, strict=True)))
        nodes.append(scale)
    total = following.get(nodes[-1].outputs[0])
    if total is not None and total.op == "Add" and convolution.pointwise:
        others = [name for name in total.inputs if name != nodes[-1].outputs[0] and name not in graph.constants]
        if len(others) == 1:
            (added,) = others
            nodes.append(total)
    relu = following.get(nodes[-1].outputs[0])
    if relu is not None and relu.op == "Relu":
        convolution = replace(convolution, relu=True)
        nodes.append(relu)
    return _Found(Step(convolution, node.inputs[0], nodes[-1].outputs[0], added=added), tuple(nodes))


def _joined(node: OnnxNode, found: list[_Found], graph: OnnxGraph, readers: Counter[str]) -> list[_Found]:
    """The steps, those that make the parts of the concatenation `node` writing into it; as they were, if it is no such
    concatenation, or something else makes or reads a part."""
    made = {each.step.target for each in found}
    if node.op != "Concat" or node.attributes.get("axis") != 1:
        return found
    shapes = [_shape(graph, name) for name in node.inputs if name in made and readers[name] == 1]
    channels = [shape[0] for shape in shapes if shape is not None]
    if len(channels) != len(node.inputs):
        return found
    places = dict(zip(node.inputs, accumulate(channels, initial=0), strict=False))
    (target,) = node.outputs
    joined = []
    for each in found:
        if each.step.target in places:
            step = replace(each.step, target=target, first=places[each.step.target] + each.step.first)
            joined.append(_Found(step, (*each.nodes, node)))
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
