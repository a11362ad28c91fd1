"""The embedding networks by name: how a published file becomes tensors, and how tensors become a network."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import torch
from torch import nn

from pipeline.models.conversion import facenet, sface
from pipeline.models.networks import inception_resnet
from pipeline.models.networks import sface as sface_network


@dataclass(frozen=True)
class Architecture:
    """One embedding network: [n, 3, S, S] float32, preprocessed as its registry row says -> [n, d] float32."""

    # The bytes of the published file -> tensors; raises GraphInvalid. Not for sets published as a state dict.
    convert: Callable[[bytes], dict[str, torch.Tensor]]
    # Tensors -> the network in eval mode on the CPU; raises RuntimeError, naming the tensors that do not fit.
    build: Callable[[Mapping[str, torch.Tensor]], nn.Module]


ARCHITECTURES: Final[Mapping[str, Architecture]] = {
    "inception-resnet-v1": Architecture(facenet.convert_graph, inception_resnet.build_network),
    "sface": Architecture(sface.convert_onnx, sface_network.build_network),
}
