"""InceptionResnetV1: facenet-pytorch's module with folded batch norm.

Szegedy et al. 2016, "Inception-v4, Inception-ResNet and the Impact of Residual Connections on Learning", in the 160x160
form of David Sandberg's facenet; embeddings after Schroff et al. 2015, "FaceNet".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from facenet_pytorch.models.inception_resnet_v1 import BasicConv2d, InceptionResnetV1
from torch import nn
from torch.nn.utils.fusion import fuse_conv_bn_eval, fuse_linear_bn_eval

# The training classifier in published state dicts, unused.
CLASSIFIER = "logits."


def empty_network() -> Any:
    """The module on the meta device: names and shapes only."""
    with torch.device("meta"):
        network = InceptionResnetV1(pretrained=None)
    return network.eval()


def build_network(tensors: Mapping[str, torch.Tensor]) -> nn.Module:
    """The network with weights `tensors` (facenet-pytorch's names): eval mode, CPU, folded batch norm, channels_last.

    [n, 3, 160, 160] float32, preprocessed -> [n, 512] float32 of L2 norm 1. Raises RuntimeError that names missing,
    unknown or misshapen tensors.
    """
    network = empty_network()
    wanted = {name: _single(value) for name, value in tensors.items() if not name.startswith(CLASSIFIER)}
    # assign=True avoids a second copy.
    network.load_state_dict(wanted, strict=True, assign=True)
    network.requires_grad_(False)
    fold_batch_norm(network)
    folded: nn.Module = network.to(memory_format=torch.channels_last)
    return folded


def fold_batch_norm(network: Any) -> None:
    """Merges convolutions, and the last linear layer, with their batch norms, in place."""
    for module in network.modules():
        if isinstance(module, BasicConv2d):
            module.conv = fuse_conv_bn_eval(module.conv, module.bn)
            module.bn = nn.Identity()
    network.last_linear = fuse_linear_bn_eval(network.last_linear, network.last_bn)
    network.last_bn = nn.Identity()


def _single(value: torch.Tensor) -> torch.Tensor:
    """Half precision becomes float32; integer counters stay."""
    return value.detach().float() if value.is_floating_point() else value.detach()
