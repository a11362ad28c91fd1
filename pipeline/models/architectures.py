"""The embedding networks by name: how a published file becomes tensors, and tensors a network."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import torch
from torch import nn

from pipeline.models.conversion import facenet as convert
from pipeline.models.conversion import sface as convert_sface
from pipeline.models.networks import inception_resnet, sface


@dataclass(frozen=True)
class Architecture:
    """One embedding network: [n, 3, S, S] float32, preprocessed as its registry row says -> [n, d] float32."""

    # The bytes of the published file -> tensors; raises GraphInvalid. Not for sets published as a state dict.
    convert: Callable[[bytes], dict[str, torch.Tensor]]
    # Tensors -> the network in eval mode on the CPU; raises RuntimeError, naming the tensors that do not fit.
    build: Callable[[Mapping[str, torch.Tensor]], nn.Module]
    # Whether onnxruntime is faster than torch on a CPU, which `run.backend: auto` goes by.
    gains_from_onnxruntime: bool


ARCHITECTURES: Final[Mapping[str, Architecture]] = MappingProxyType(
    {
        "inception-resnet-v1": Architecture(
            convert.convert_graph, inception_resnet.build_network, gains_from_onnxruntime=True
        ),
        "sface": Architecture(convert_sface.convert_onnx, sface.build_network, gains_from_onnxruntime=False),
    }
)
