"""R- and O-Net, the second and third stage of MTCNN, on crops in [0, 255]: as torch has them, or with
their convolutions in compiled loops on the CPU, which for such small pictures are faster."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias, cast

import torch
from facenet_pytorch.models.mtcnn import ONet, RNet
from torch import nn

from pipeline.extraction.detection.kernels import Kernels
from pipeline.extraction.detection.networks import normalise
from pipeline.extraction.detection.packed_layers import packed_layer
from pipeline.runtime.threads import over_threads
from pipeline.types import FloatArray

# [n, 3, size, size] float32 in [0, 255] -> the network's answers, [n, width] each, the probabilities last.
CropNetwork: TypeAlias = Callable[[torch.Tensor], tuple[torch.Tensor, ...]]
_CROPS_PER_JOB = 32  # four times what the loops take at a time


def crop_network(network: nn.Module, kernels: Kernels | None) -> CropNetwork:
    """`network`, compiled where that can be had: for facenet-pytorch's own modules on the CPU."""
    if kernels is not None and isinstance(network, RNet):
        return _compiled_rnet(network, kernels)
    if kernels is not None and isinstance(network, ONet):
        return _compiled_onet(network, kernels)
    return lambda pixels: cast(tuple[torch.Tensor, ...], network(normalise(pixels)))


def _compiled_rnet(net: RNet, kernels: Kernels) -> CropNetwork:
    hidden = ((net.conv1, net.prelu1), (net.conv2, net.prelu2), (net.conv3, net.prelu3))
    layers = [packed_layer(*pair) for pair in hidden]

    def judge(pixels: torch.Tensor) -> tuple[torch.Tensor, ...]:
        features = _features(kernels.rnet_features, layers, pixels, net.dense4.in_features)
        dense = net.prelu4(net.dense4(features))
        return net.dense5_2(dense), net.softmax5_1(net.dense5_1(dense))

    return judge


def _compiled_onet(net: ONet, kernels: Kernels) -> CropNetwork:
    hidden = ((net.conv1, net.prelu1), (net.conv2, net.prelu2), (net.conv3, net.prelu3), (net.conv4, net.prelu4))
    layers = [packed_layer(*pair) for pair in hidden]

    def judge(pixels: torch.Tensor) -> tuple[torch.Tensor, ...]:
        features = _features(kernels.onet_features, layers, pixels, net.dense5.in_features)
        dense = net.prelu5(net.dense5(features))
        return net.dense6_2(dense), net.dense6_3(dense), net.softmax6_1(net.dense6_1(dense))

    return judge


def _features(loop: Callable[..., None], layers: list[FloatArray], pixels: torch.Tensor, width: int) -> torch.Tensor:
    crops, out = pixels.numpy(), torch.empty((len(pixels), width))
    features = out.numpy()
    jobs = [slice(start, start + _CROPS_PER_JOB) for start in range(0, len(crops), _CROPS_PER_JOB)]
    over_threads(lambda job: loop(crops[job], *layers, features[job]), jobs)
    return out
