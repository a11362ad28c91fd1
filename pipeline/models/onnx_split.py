"""Takes out of a network what the compiled `loops` do with fewer products than onnxruntime.

What is before, behind and beside it stays as it is, for onnxruntime.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from pipeline.models.layers import Convolution, Step, Unfit
from pipeline.models.loops import Loops, load_kernels
from pipeline.models.onnx_graph import OnnxGraph, OnnxNode
from pipeline.models.onnx_steps import Found, find_steps, shape_of

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
    steps = [] if kernels is None else find_steps(graph, outputs, kernels.LANES)
    run = _run(graph, outputs, steps) if any(_pays(each.step) for each in steps) else None
    if run is None:
        return None
    rest = [node for node in graph.nodes if node not in run.nodes]
    before = _ancestors(rest, [run.input])
    behind = [node for node in rest if node not in before]
    later = [name for node in (*run.nodes, *behind) for name in node.inputs]
    parts = _part(graph, before, [*later, *outputs]), run, _part(graph, behind, outputs)
    return [part for part in parts if isinstance(part, Run) or part.outputs]


def _run(graph: OnnxGraph, outputs: Sequence[str], found: Sequence[Found]) -> Run | None:
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
    shape = shape_of(graph, source)
    if shape is None:
        return None
    try:
        return Run(Loops([each.step for each in found], source, target, shape), nodes, source, target)
    except Unfit:
        return None


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
