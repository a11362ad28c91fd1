"""Converts SFace's ONNX file to our module's tensors.

The graph is a chain: each node must be the module's next operation, with its kernel, stride, padding and groups. Batch
norms are folded, in float64, into the neighbouring layer. Leftovers on either side are an error.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from pipeline.models.conversion.facenet import check_complete
from pipeline.models.conversion.onnx import Array, Attribute, OnnxGraph, OnnxNode, fold_constants, read_onnx
from pipeline.models.conversion.protobuf import GraphInvalid
from pipeline.models.networks.sface import empty_network
from pipeline.models.registry import SFACE, weight_set
from pipeline.types import DoubleArray

_INPUT = "data"
_EPSILON = 1e-5  # ONNX's default for batch norms


def convert_onnx(data: bytes) -> dict[str, torch.Tensor]:
    """The state dict of `SFace` from the published ONNX file. Raises GraphInvalid."""
    return convert_chain(fold_constants(read_onnx(data)))


def convert_chain(graph: OnnxGraph) -> dict[str, torch.Tensor]:
    """The state dict from the folded graph. Raises GraphInvalid unless it is the same network, with all constants used
    and all tensors filled."""
    network, chain = empty_network(), _Chain(graph)
    tensors: dict[str, Array] = {}
    channels = 3
    _check_preprocessing(chain)
    for name, layer in network.layers.named_children():
        convolution = layer.get_submodule("conv")
        assert isinstance(convolution, nn.Conv2d)
        weight, bias = _convolution(chain, convolution)
        channels = convolution.out_channels
        tensors.update({f"layers.{name}.conv.weight": weight, f"layers.{name}.conv.bias": bias})
        (slope,) = chain.take("PRelu", 1)
        tensors[f"layers.{name}.relu.weight"] = slope.reshape(-1)
    tensors["embedding.weight"], tensors["embedding.bias"] = _linear(chain, network.embedding, channels)
    chain.check_finished()
    converted = {name: torch.from_numpy(np.array(value, np.float32, order="C")) for name, value in tensors.items()}
    check_complete(converted, network)
    return converted


class _Chain:
    """A graph's nodes, taken in turn; each must read the previous output."""

    node: OnnxNode  # the last one taken

    def __init__(self, graph: OnnxGraph) -> None:
        self._nodes = list(graph.nodes)
        self._constants = dict(graph.constants)
        self._at = _INPUT

    def take(self, op: str, constants: int) -> list[Array]:
        """Takes the next node, which must be an `op`, and its constants, usable once. Raises GraphInvalid."""
        if not self._nodes:
            raise GraphInvalid(f"the graph ends where {op} should come")
        self.node = self._nodes.pop(0)
        first, *rest = self.node.inputs or ("",)
        if self.node.op != op or first != self._at or len(rest) != constants:
            raise GraphInvalid(f"{self.node.op}({', '.join(self.node.inputs)}) stands where {op} should come")
        self._at = self.node.outputs[0]
        try:
            return [self._constants.pop(name) for name in rest]
        except KeyError as exc:
            raise GraphInvalid(f"{op} reads {exc}, which is no constant of its own") from exc

    def check_finished(self) -> None:
        """Raises GraphInvalid if nodes or weights are left."""
        # The file also has unused integer shapes.
        weights = [name for name, value in self._constants.items() if value.dtype.kind == "f"]
        left = [node.op for node in self._nodes] + sorted(weights)
        if left:
            raise GraphInvalid(f"{len(left)} nodes and constants are no part of SFace: {', '.join(left[:5])}")


def _check_preprocessing(chain: _Chain) -> None:
    """The graph must begin with our embedder's preprocessing, else GraphInvalid."""
    (mean,), (scale,) = chain.take("Sub", 1), chain.take("Mul", 1)
    known = weight_set(SFACE).preprocessing
    if mean.size != 1 or scale.size != 1 or (mean.item(), scale.item()) != (known.mean, known.scale):
        raise GraphInvalid(f"the graph's preprocessing ({mean}, {scale}) is not the registry's")


def _convolution(chain: _Chain, module: nn.Conv2d) -> tuple[DoubleArray, DoubleArray]:
    """Weight and bias of a convolution with the next batch norm."""
    (weight,) = chain.take("Conv", 1)
    assert isinstance(module.padding, tuple)
    wanted: dict[str, Attribute] = {
        "kernel_shape": module.kernel_size,
        "strides": module.stride,
        "pads": (*module.padding, *module.padding),
        "dilations": module.dilation,
        "group": module.groups,
    }
    _check_attributes(chain.node, {"dilations": (1, 1), "group": 1, "pads": (0, 0, 0, 0), "strides": (1, 1)}, wanted)
    if weight.shape != module.weight.shape:
        raise GraphInvalid(f"{chain.node.outputs[0]} has weights of shape {weight.shape}")
    scale, shift = _batch_norm(chain, module.out_channels)
    return weight * scale[:, None, None, None], shift


def _linear(chain: _Chain, module: nn.Linear, channels: int) -> tuple[DoubleArray, DoubleArray]:
    """Weight and bias of the last layer with the batch norms around it."""
    scale, shift = _batch_norm(chain, channels)
    chain.take("Dropout", 1)  # without effect outside training
    chain.take("Flatten", 0)
    _check_attributes(chain.node, {"axis": 1}, {})
    weight, bias = chain.take("Gemm", 2)
    _check_attributes(chain.node, {"alpha": 1.0, "beta": 1.0, "transA": 0, "transB": 0}, {"transB": 1})
    if weight.shape != (module.out_features, module.in_features) or bias.shape != (module.out_features,):
        raise GraphInvalid(f"{chain.node.outputs[0]} has weights of shape {weight.shape}")
    wide, cells = weight.astype(np.float64), module.in_features // channels
    bias = bias + wide @ np.repeat(shift, cells)
    after_scale, after_shift = _batch_norm(chain, module.out_features)
    return after_scale[:, None] * wide * np.repeat(scale, cells), after_scale * bias + after_shift


def _batch_norm(chain: _Chain, channels: int) -> tuple[DoubleArray, DoubleArray]:
    """A batch norm in eval mode as y = scale * x + shift, per channel."""
    gamma, beta, mean, variance = (value.astype(np.float64) for value in chain.take("BatchNormalization", 4))
    epsilon = chain.node.attributes.get("epsilon", _EPSILON)
    if not isinstance(epsilon, float) or any(value.shape != (channels,) for value in (gamma, beta, mean, variance)):
        raise GraphInvalid(f"{chain.node.outputs[0]} is no batch norm of {channels} channels")
    scale = gamma / np.sqrt(variance + epsilon)
    return scale, beta - mean * scale


def _check_attributes(node: OnnxNode, defaults: dict[str, Attribute], wanted: dict[str, Attribute]) -> None:
    found = {**defaults, **node.attributes}
    wrong = {key for key in defaults.keys() | wanted.keys() if found.get(key) != wanted.get(key, defaults.get(key))}
    if wrong:
        raise GraphInvalid(f"{node.outputs[0]} has { ({key: found.get(key) for key in sorted(wrong)}) }, unlike SFace")
