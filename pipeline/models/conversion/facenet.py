"""Converts InceptionResnetV1's frozen graph to tensors under facenet-pytorch's names.

The graph's float constants are those of the module's layers, in the same order; residual scales between them are
constants in the module's code. A frozen graph is a serialised `GraphDef`; field numbers are from
tensorflow/core/framework: graph.proto, node_def.proto, attr_value.proto, tensor.proto and tensor_shape.proto. The file
is known by its SHA-256, so its form is not checked.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import torch
from facenet_pytorch.models.inception_resnet_v1 import BasicConv2d
from torch import nn

from pipeline.models.conversion.protobuf import Message
from pipeline.models.networks.inception_resnet import empty_network

_SCALE: Final = "/mul/x"  # end of a residual scale's name
_BOTTLENECK: Final = (
    *("last_linear.weight", "last_bn.bias", "last_bn.weight"),
    *("last_bn.running_mean", "last_bn.running_var"),
)
_FLOAT: Final = 1  # types.proto
# TensorProto.tensor_content is little-endian in practice.
_DTYPE: Final = np.dtype("<f4")


def convert_graph(data: bytes) -> dict[str, torch.Tensor]:
    """The state dict of `InceptionResnetV1` from a serialised frozen graph."""
    constants = _constants(data)
    tensors: dict[str, torch.Tensor] = {}
    for name, module in empty_network().named_modules():
        if isinstance(module, BasicConv2d):
            tensors[f"{name}.conv.weight"], tensors[f"{name}.bn.bias"] = next(constants), next(constants)
            tensors.update({f"{name}.bn.{key}": value for key, value in _folded(module.bn).items()})
        elif name.endswith(".conv2d"):
            tensors[f"{name}.weight"], tensors[f"{name}.bias"] = next(constants), next(constants)
    tensors.update(zip(_BOTTLENECK, constants, strict=False))  # the last is the L2 norm's epsilon
    tensors["last_bn.num_batches_tracked"] = torch.zeros((), dtype=torch.int64)
    return tensors


def _constants(data: bytes) -> Iterator[torch.Tensor]:
    """The graph's float32 constants in file order, without residual scales."""
    for node in Message(data).messages(1):
        if node.text(2) == "Const" and not node.text(1).endswith(_SCALE):
            value = next(entry for entry in node.messages(5) if entry.text(1) == "value")
            tensor = value.message(2).message(8)
            if tensor.number(1) == _FLOAT:
                yield _tensor(tensor)


def _tensor(tensor: Message) -> torch.Tensor:
    """A float32 TensorProto; TensorFlow's layout (height, width, in, out; in, out) becomes torch's (out, in, height,
    width; out, in)."""
    shape = [dimension.number(1) for dimension in tensor.message(2).messages(2)]
    numbers = np.frombuffer(tensor.body(4) or tensor.body(5), _DTYPE)  # tensor_content, or packed floats
    value = np.full(shape, numbers[0]) if len(numbers) == 1 else numbers.reshape(shape)  # tensor.proto: one fills all
    axes = {4: (3, 2, 0, 1), 2: (1, 0)}.get(value.ndim)
    # Copies: constants are read-only views of the file.
    return torch.from_numpy(np.array(value if axes is None else value.transpose(axes), order="C"))


def _folded(norm: nn.BatchNorm2d) -> dict[str, torch.Tensor]:
    """Parts that the graph's folded batch norms lack: scale 1, mean 0, and a variance with sqrt(var + eps) = 1."""
    return {
        "weight": torch.ones(norm.num_features),
        "running_mean": torch.zeros(norm.num_features),
        "running_var": torch.full((norm.num_features,), 1 - norm.eps),
        "num_batches_tracked": torch.zeros((), dtype=torch.int64),
    }
