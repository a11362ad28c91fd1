"""SFace, a MobileFaceNet: aligned face to 128 numbers.

Zhong et al. 2021, "SFace: Sigmoid-Constrained Hypersphere Loss for Robust Face Recognition", as published by OpenCV Zoo
(face_recognition_sface_2021dec); depth-wise separable convolutions after Howard et al. 2017, "MobileNets".
`convert_onnx` folds the batch norms.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping

import torch
from torch import nn

# (channels, stride) of the depth-wise separable pairs after the first convolution; names count from 2.
_PAIRS = ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), *((512, 2), *((512, 1),) * 5), (1024, 2), (1024, 1))
_FIRST = 32
_MAP = 7  # sides of the last feature map, for crops of 112
EMBEDDING_SIZE = 128


class SFace(nn.Module):
    """[n, 3, 112, 112] float32 RGB, preprocessed -> [n, 128] float32, of any norm."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(OrderedDict(_layers()))
        self.embedding = nn.Linear(_PAIRS[-1][0] * _MAP**2, EMBEDDING_SIZE)

    def forward(self, crops: torch.Tensor) -> torch.Tensor:
        embeddings: torch.Tensor = self.embedding(self.layers(crops).flatten(1))
        return embeddings


def _layers() -> Iterator[tuple[str, nn.Module]]:
    """The convolutions, named as in the published graph."""
    yield "conv_1", _layer(3, _FIRST, kernel=3)
    before = _FIRST
    for number, (channels, stride) in enumerate(_PAIRS, start=2):
        yield f"conv_{number}_dw", _layer(before, before, kernel=3, stride=stride, groups=before)
        yield f"conv_{number}", _layer(before, channels, kernel=1)
        before = channels


def _layer(before: int, channels: int, kernel: int, stride: int = 1, groups: int = 1) -> nn.Module:
    conv = nn.Conv2d(before, channels, kernel, stride, padding=kernel // 2, groups=groups)
    return nn.Sequential(OrderedDict(conv=conv, relu=nn.PReLU(channels)))


def empty_network() -> SFace:
    """The module on the meta device: names, shapes and strides only."""
    with torch.device("meta"):
        return SFace().eval()


def build_network(tensors: Mapping[str, torch.Tensor]) -> nn.Module:
    """The network with weights `tensors` (from `convert_onnx`): eval mode, CPU, channels_last.

    Raises RuntimeError that names missing, unknown or misshapen tensors.
    """
    network = empty_network()
    network.load_state_dict(tensors, strict=True, assign=True)
    network.requires_grad_(False)
    laid_out: nn.Module = network.to(memory_format=torch.channels_last)
    return laid_out
