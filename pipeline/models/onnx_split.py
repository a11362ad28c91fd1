"""Cuts a network at the convolutions that the compiled loops of `winograd` do with fewer products than onnxruntime.

Between the cuts the network stays as it is: one part for onnxruntime, and a run of layers for the loops, in turn.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from pipeline.models.onnx_graph import OnnxGraph, OnnxNode
from pipeline.models.winograd import Convolution, Layer, Pool, is_winograd, load_kernels

# Channels in times channels out of a 3 x 3 convolution for which a cut pays: in a run that has none, what is saved is
# less than what it takes to hand the pictures over (measured: 32 x 32 does not, 80 x 192 saves two thirds).
_CHANNELS: Final = 64 * 64


@dataclass(frozen=True)
class GraphPart:
    """Operations for onnxruntime; `outputs` are what later parts read, or the network's answers."""

    graph: OnnxGraph
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True)
class Run:
    """Layers for the compiled loops, from one value to another."""

    layers: tuple[Layer, ...]
    nodes: tuple[OnnxNode, ...]
    input: str
    output: str


def cut(graph: OnnxGraph, outputs: Sequence[str]) -> list[GraphPart | Run] | None:
    """The parts of a network, where there are compiled loops and a convolution for them; else None."""
    kernels = load_kernels()
    parts = [] if kernels is None else split(graph, outputs, kernels.LANES)
    return parts if any(isinstance(part, Run) for part in parts) else None


def split(graph: OnnxGraph, outputs: Sequence[str], lanes: int) -> list[GraphPart | Run]:
    """The parts in an order of evaluation: none for the loops where no cut pays. `lanes`: what numbers of channels
    must be multiples of."""
    parts: list[GraphPart | Run] = []
    waiting = list(graph.nodes)
    for run in _runs(graph, outputs, lanes):
        waiting = [node for node in waiting if node not in run.nodes]
        needed = _ancestors(waiting, [run.input])
        later = [name for node in graph.nodes if node not in needed for name in node.inputs]
        parts += [_part(graph, needed, [*later, *outputs])] if needed else []
        parts.append(run)
        waiting = [node for node in waiting if node not in needed]
    return [*parts, _part(graph, waiting, outputs)] if waiting else parts


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


def _runs(graph: OnnxGraph, outputs: Sequence[str], lanes: int) -> list[Run]:
    """Those that pay, from and to a 3 x 3 convolution; no value inside is read elsewhere."""
    readers = Counter([*(name for node in graph.nodes for name in node.inputs), *outputs])
    links = _links(graph, readers, lanes)
    after = {link.input: link for link in links if readers[link.input] == 1}
    follows = {after[link.output].output for link in links if link.output in after}
    chains = []
    for link in links:
        if link.output not in follows:
            chain = [link]
            while chain[-1].output in after:
                chain.append(after[chain[-1].output])
            chains.append(_trimmed(chain))
    return [_joined(chain) for chain in chains if any(_pays(link.layers[0]) for link in chain)]


def _trimmed(chain: list[Run]) -> list[Run]:
    places = [i for i, link in enumerate(chain) if is_winograd(link.layers[0])]
    return chain[places[0] : places[-1] + 1] if places else []


def _joined(chain: Sequence[Run]) -> Run:
    layers = tuple(layer for link in chain for layer in link.layers)
    return Run(layers, tuple(node for link in chain for node in link.nodes), chain[0].input, chain[-1].output)


def _pays(layer: Layer) -> bool:
    if not isinstance(layer, Convolution) or not is_winograd(layer):
        return False
    outputs, channels, _, _ = layer.weights.shape
    return bool(outputs * channels >= _CHANNELS)


def _links(graph: OnnxGraph, readers: Counter[str], lanes: int) -> list[Run]:
    """Every layer that the loops can do, as a run of its own."""
    relus = {node.inputs[0]: node for node in graph.nodes if node.op == "Relu"}
    links = []
    for node in graph.nodes:
        value = node.outputs[0]
        pool = _pool(node)
        convolution = _convolution(node, graph, lanes)
        if pool is not None:
            links.append(Run((pool,), (node,), node.inputs[0], value))
        elif convolution is not None and value in relus and readers[value] == 1:
            relu = relus[value]
            links.append(Run((convolution,), (node, relu), node.inputs[0], relu.outputs[0]))
    return links


def _pool(node: OnnxNode) -> Pool | None:
    sides, steps = node.attributes.get("kernel_shape"), node.attributes.get("strides")
    if node.op != "MaxPool" or node.attributes.get("ceil_mode") or node.attributes.get("pads") != (0, 0, 0, 0):
        return None
    if not isinstance(sides, tuple) or not isinstance(steps, tuple) or {len({*sides}), len({*steps})} != {1}:
        return None
    return Pool(sides[0], steps[0])


def _convolution(node: OnnxNode, graph: OnnxGraph, lanes: int) -> Convolution | None:
    """What the node does, where the loops do it: step 1, 3 x 3 or 1 x 1, all channels with each other, a bias."""
    plain = {"strides": (1, 1), "dilations": (1, 1), "group": 1}
    if node.op != "Conv" or len(node.inputs) != 3 or any(node.attributes.get(k) != v for k, v in plain.items()):
        return None
    weights, bias = graph.constants[node.inputs[1]], graph.constants[node.inputs[2]]
    form = weights.shape[2:], node.attributes.get("pads")
    if weights.shape[0] % lanes or weights.shape[1] % lanes:
        return None
    if form not in (((3, 3), (0,) * 4), ((3, 3), (1,) * 4), ((1, 1), (0,) * 4)):
        return None
    return Convolution(weights, bias, int(form[1] == (1,) * 4))
