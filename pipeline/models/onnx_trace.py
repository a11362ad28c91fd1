"""Turns a torch network into ONNX operations, as far as our networks need it, without the onnx packages.

torch.fx (Reed et al. 2022, "torch.fx: Practical Program Capture and Transformation for Deep Learning in Python")
writes down which layers the network calls; each becomes one operation. A layer or an option that is not known here
is an error, never a guess.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import torch
from torch import fx, nn
from torch.fx.passes.shape_prop import ShapeProp
from torch.nn import functional

from pipeline.models.onnx_graph import Array, Attribute, OnnxGraph, OnnxNode, Shape

INPUT: Final = "pixels"


class Untranslatable(ValueError):
    """The network does something that has no translation here."""


@torch.inference_mode()
def trace(network: nn.Module, shape: tuple[int, ...]) -> tuple[OnnxGraph, tuple[str, ...]]:
    """The operations of a network in eval mode over one input [n, *shape], named INPUT, and the names of its answers.

    Raises Untranslatable.
    """
    traced = fx.symbolic_trace(network)
    ShapeProp(traced).propagate(torch.zeros(1, *shape))
    translation = _Translation(network)
    for node in traced.graph.nodes:
        translation.add(node)
    shapes: dict[str, Shape] = {INPUT: ("n", *shape), **translation.shapes}
    return OnnxGraph(tuple(translation.nodes), translation.constants, shapes), translation.outputs


class _Translation:
    """The graph so far."""

    def __init__(self, network: nn.Module) -> None:
        self.nodes: list[OnnxNode] = []
        self.constants: dict[str, Array] = {}
        self.shapes: dict[str, Shape] = {}
        self.outputs: tuple[str, ...] = ()
        self._network = network
        self._names: dict[fx.Node, str] = {}  # of the values that tensors became
        self._lengths: set[fx.Node] = set()  # values that are the number of items, or all lengths

    def add(self, node: fx.Node) -> None:
        if node.op == "placeholder":
            self._names[node] = INPUT
        elif node.op == "output":
            answers = node.args[0] if isinstance(node.args[0], tuple) else (node.args[0],)
            self.outputs = tuple(self._name(answer) for answer in answers)
        elif node.op == "call_module":
            self._add_layer(node, self._network.get_submodule(str(node.target)))
        elif node.op == "call_function" and node.target in _FUNCTIONS:
            _FUNCTIONS[node.target](self, node)
        elif node.op == "call_method" and node.target in _METHODS:
            _METHODS[str(node.target)](self, node)
        else:
            raise _untranslatable(node)

    def emit(
        self, node: fx.Node, op: str, *constants: str, inputs: tuple[object, ...] = (), **options: Attribute
    ) -> None:
        """One operation on `inputs` (the node's first argument, if none are given), then `constants`."""
        names = [self._name(value) for value in inputs or node.args[:1]]
        self._names[node] = node.name
        self.shapes[node.name] = ("n", *node.meta["tensor_meta"].shape[1:])
        self.nodes.append(OnnxNode(op, (*names, *constants), (node.name,), options))

    def alias(self, node: fx.Node) -> None:
        """At rest the node gives back what it got."""
        self._names[node] = self._name(node.args[0])

    def constant(self, name: str, value: Array) -> str:
        self.constants[name] = value
        return name

    def length(self, node: fx.Node) -> None:
        """`x.shape`, and `x.shape[0]`: which only `view` may use."""
        known = node.args[0] in self._lengths
        if node.args[1] != (0 if known else "shape"):
            raise _untranslatable(node)
        self._lengths.add(node)

    def flatten(self, node: fx.Node) -> None:
        """`x.view(x.shape[0], -1)` or `x.flatten(1)`."""
        lengths = node.args[1:]
        if lengths != (1,) and not (len(lengths) == 2 and lengths[0] in self._lengths and lengths[1] == -1):
            raise _untranslatable(node)
        self.emit(node, "Flatten", axis=1)

    def arithmetic(self, node: fx.Node) -> None:
        """A sum or product of two tensors, or of a tensor and a number."""
        op = "Add" if node.target is operator.add else "Mul"
        first, second = node.args
        if isinstance(second, float):
            self.emit(node, op, self.constant(f"{node.name}.number", np.array(second, np.float32)))
        else:
            self.emit(node, op, inputs=(first, second))

    def concatenate(self, node: fx.Node) -> None:
        parts, axis = node.args
        if not isinstance(parts, (tuple, list)) or not isinstance(axis, int):
            raise _untranslatable(node)
        self.emit(node, "Concat", inputs=tuple(parts), axis=axis)

    def normalize(self, node: fx.Node) -> None:
        """To L2 norm 1; torch's guard against a norm below 1e-12 has no counterpart, and no embedding is that small."""
        defaults: dict[str, object] = {"p": 2, "dim": 1, "eps": 1e-12, "out": None}
        if {**defaults, **node.kwargs} != defaults or len(node.args) != 1:
            raise _untranslatable(node)
        self.emit(node, "LpNormalization", axis=1, p=2)

    def _name(self, value: object) -> str:
        if not isinstance(value, fx.Node) or value not in self._names:
            raise Untranslatable(f"{value} is no tensor that was written down")
        return self._names[value]

    def _add_layer(self, node: fx.Node, layer: nn.Module) -> None:
        translate = _LAYERS.get(type(layer))
        if translate is None:
            raise _untranslatable(node)
        translate(self, node, layer)

    def convolution(self, node: fx.Node, layer: nn.Conv2d) -> None:
        if isinstance(layer.padding, str) or layer.padding_mode != "zeros":
            raise _untranslatable(node)
        self.emit(
            node,
            "Conv",
            *self._parameters(node, layer),
            kernel_shape=layer.kernel_size,
            strides=layer.stride,
            pads=(*layer.padding, *layer.padding),
            dilations=layer.dilation,
            group=layer.groups,
        )

    def linear(self, node: fx.Node, layer: nn.Linear) -> None:
        self.emit(node, "Gemm", *self._parameters(node, layer), transB=1)

    def prelu(self, node: fx.Node, layer: nn.PReLU) -> None:
        """One slope a channel; ONNX aligns shapes from the right, so the channels' axis needs the others behind it."""
        behind = len(node.meta["tensor_meta"].shape) - 2
        slope = _array(layer.weight).reshape(-1, *(1,) * behind)
        self.emit(node, "PRelu", self.constant(f"{node.target}.weight", slope))

    def max_pool(self, node: fx.Node, layer: nn.MaxPool2d) -> None:
        if layer.return_indices or _pair(layer.dilation) != (1, 1):
            raise _untranslatable(node)
        padding = _pair(layer.padding)
        self.emit(
            node,
            "MaxPool",
            kernel_shape=_pair(layer.kernel_size),
            strides=_pair(layer.stride),
            pads=(*padding, *padding),
            ceil_mode=int(layer.ceil_mode),
        )

    def average_pool(self, node: fx.Node, layer: nn.AdaptiveAvgPool2d) -> None:
        if layer.output_size not in (1, (1, 1)):
            raise _untranslatable(node)
        self.emit(node, "GlobalAveragePool")

    def _parameters(self, node: fx.Node, layer: nn.Conv2d | nn.Linear) -> list[str]:
        """The weight, and the bias where there is one."""
        names = [self.constant(f"{node.target}.weight", _array(layer.weight))]
        if layer.bias is not None:
            names.append(self.constant(f"{node.target}.bias", _array(layer.bias)))
        return names


def _array(value: torch.Tensor) -> Array:
    return value.detach().cpu().contiguous().numpy()


def _pair(value: int | tuple[int, ...]) -> tuple[int, ...]:
    return (value, value) if isinstance(value, int) else value


def _untranslatable(node: fx.Node) -> Untranslatable:
    return Untranslatable(f"{node.op} {node.target} with {node.args} {node.kwargs}")


_LAYERS: Final[dict[type[nn.Module], Callable[[_Translation, fx.Node, Any], None]]] = {
    nn.Conv2d: _Translation.convolution,
    nn.Linear: _Translation.linear,
    nn.PReLU: _Translation.prelu,
    nn.ReLU: lambda translation, node, _: translation.emit(node, "Relu"),
    nn.MaxPool2d: _Translation.max_pool,
    nn.AdaptiveAvgPool2d: _Translation.average_pool,
    nn.Dropout: lambda translation, node, _: translation.alias(node),
    nn.Identity: lambda translation, node, _: translation.alias(node),
}
_FUNCTIONS: Final[dict[Any, Callable[[_Translation, fx.Node], None]]] = {
    getattr: _Translation.length,
    operator.getitem: _Translation.length,
    operator.add: _Translation.arithmetic,
    operator.mul: _Translation.arithmetic,
    torch.cat: _Translation.concatenate,
    functional.normalize: _Translation.normalize,
}
_METHODS: Final[dict[str, Callable[[_Translation, fx.Node], None]]] = {
    "view": _Translation.flatten,
    "flatten": _Translation.flatten,
}
