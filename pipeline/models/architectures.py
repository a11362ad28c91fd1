"""Embedding networks by name: published file to tensors to network."""

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
    """An embedding network: [n, 3, S, S] float32, preprocessed as its registry row says -> [n, d] float32."""

    # Published file -> tensors. Unused for published state dicts.
    convert: Callable[[bytes], dict[str, torch.Tensor]]
    # Tensors -> network in eval mode on the CPU. Raises RuntimeError that names wrong tensors.
    build: Callable[[Mapping[str, torch.Tensor]], nn.Module]


ARCHITECTURES: Final[Mapping[str, Architecture]] = {
    "inception-resnet-v1": Architecture(facenet.convert_graph, inception_resnet.build_network),
    "sface": Architecture(sface.convert_onnx, sface_network.build_network),
}
