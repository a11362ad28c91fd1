"""Converts InceptionResnetV1's frozen graph to tensors under facenet-pytorch's names.

A frozen graph is a serialised `GraphDef`; field numbers are from tensorflow/core/framework: graph.proto,
node_def.proto, attr_value.proto, tensor.proto and tensor_shape.proto. The file is known by its SHA-256, so its form is
not checked.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
import torch
from facenet_pytorch.models.inception_resnet_v1 import BasicConv2d
from torch import nn

from pipeline.models.conversion.protobuf import Message
from pipeline.models.networks.inception_resnet import empty_network
from pipeline.types import FloatArray

_PREFIX = "InceptionResnetV1/"
_REPEATS = {"repeat_1": "Repeat/block35", "repeat_2": "Repeat_1/block17", "repeat_3": "Repeat_2/block8"}
_BOTTLENECK = {
    "last_linear.weight": "weights",
    "last_bn.weight": "BatchNorm/Const",
    "last_bn.bias": "BatchNorm/beta",
    "last_bn.running_mean": "BatchNorm/moving_mean",
    "last_bn.running_var": "BatchNorm/moving_variance",
}
_FLOAT: Final = 1  # types.proto
# TensorProto.tensor_content is little-endian in practice.
_DTYPE: Final = np.dtype("<f4")


def convert_graph(data: bytes) -> dict[str, torch.Tensor]:
    """The state dict of `InceptionResnetV1` from a serialised frozen graph."""
    constants = _float_constants(data)
    tensors = {name: _tensor(constants, f"Bottleneck/{constant}") for name, constant in _BOTTLENECK.items()}
    tensors["last_bn.num_batches_tracked"] = torch.zeros((), dtype=torch.int64)
    for name, module in empty_network().named_modules():
        if isinstance(module, BasicConv2d):
            layer = _graph_layer(name, module.conv)
            tensors[f"{name}.conv.weight"] = _tensor(constants, f"{layer}/weights")
            tensors[f"{name}.bn.bias"] = _tensor(constants, f"{layer}/Conv2D_bn_offset")
            tensors.update({f"{name}.bn.{key}": value for key, value in _folded(module.bn).items()})
        elif name.endswith(".conv2d"):
            layer = f"{_graph_block(name.removesuffix('.conv2d'))}/Conv2d_1x1"
            tensors[f"{name}.weight"] = _tensor(constants, f"{layer}/weights")
            tensors[f"{name}.bias"] = _tensor(constants, f"{layer}/biases")
    return tensors


def _float_constants(data: bytes) -> dict[str, FloatArray]:
    """The graph's float32 constants by name."""
    constants = {}
    for node in Message(data).messages(1):
        if node.text(2) == "Const":
            value = next(entry for entry in node.messages(5) if entry.text(1) == "value")
            tensor = value.message(2).message(8)
            if tensor.number(1) == _FLOAT:
                constants[node.text(1)] = _floats(tensor)
    return constants


def _floats(tensor: Message) -> FloatArray:
    """A float32 TensorProto."""
    shape = [dimension.number(1) for dimension in tensor.message(2).messages(2)]
    values = np.frombuffer(tensor.body(4) or tensor.body(5), _DTYPE)  # tensor_content, or packed floats
    return np.full(shape, values[0]) if len(values) == 1 else values.reshape(shape)  # tensor.proto: one fills all


def _tensor(constants: Mapping[str, FloatArray], name: str) -> torch.Tensor:
    """A constant; TensorFlow's layout (height, width, in, out; in, out) becomes torch's (out, in, height, width; out,
    in)."""
    value = constants[_PREFIX + name]
    axes = {4: (3, 2, 0, 1), 2: (1, 0)}.get(value.ndim)
    # Copies: constants are read-only views of the file.
    return torch.from_numpy(np.array(value if axes is None else value.transpose(axes), order="C"))


def _graph_layer(name: str, convolution: nn.Conv2d) -> str:
    """`conv2d_1a` -> `Conv2d_1a_3x3`; `repeat_1.0.branch1.1` -> `Repeat/block35_1/Branch_1/Conv2d_0b_3x3`. A branch's
    layers are 0a, 0b, 0c, a strided one 1a, a single one has no number."""
    kernel = "x".join(map(str, convolution.kernel_size))
    block, _, branch = name.partition(".branch")
    if not branch:
        return f"{block.capitalize()}_{kernel}"
    number, _, position = branch.partition(".")
    place = f"0{'abc'[int(position)]}_" if position else ""
    if convolution.stride != (1, 1):
        place = "1a_"
    return f"{_graph_block(block)}/Branch_{number}/Conv2d_{place}{kernel}"


def _graph_block(name: str) -> str:
    """`repeat_2.2` -> `Repeat_1/block17_3`; `block8` -> `Block8`."""
    repeat, _, number = name.partition(".")
    return f"{_REPEATS[repeat]}_{int(number) + 1}" if number else name.capitalize()


def _folded(norm: nn.BatchNorm2d) -> dict[str, torch.Tensor]:
    """Parts that the graph's folded batch norms lack: scale 1, mean 0, and a variance with sqrt(var + eps) = 1."""
    return {
        "weight": torch.ones(norm.num_features),
        "running_mean": torch.zeros(norm.num_features),
        "running_var": torch.full((norm.num_features,), 1 - norm.eps),
        "num_batches_tracked": torch.zeros((), dtype=torch.int64),
    }
