"""InceptionResnetV1 as it is run: facenet-pytorch's module, batch norm folded into the convolutions.

Szegedy et al. 2016, "Inception-v4, Inception-ResNet and the Impact of Residual Connections on Learning", in the
160x160 form of David Sandberg's facenet; embeddings after Schroff et al. 2015, "FaceNet".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from facenet_pytorch.models.inception_resnet_v1 import BasicConv2d, InceptionResnetV1
from torch import nn
from torch.nn.utils.fusion import fuse_conv_bn_eval, fuse_linear_bn_eval

# The classifier over the training identities, in published state dicts: no part of the embedding.
CLASSIFIER = "logits."


def empty_network() -> Any:
    """The module without memory for its tensors (on the meta device): names and shapes to fill."""
    with torch.device("meta"):
        network = InceptionResnetV1(pretrained=None)
    return network.eval()


def build_network(tensors: Mapping[str, torch.Tensor]) -> nn.Module:
    """The network with the weights `tensors` (facenet-pytorch's names), in eval mode, on the CPU, batch norm folded
    and in channels_last layout.

    [n, 3, 160, 160] float32, preprocessed -> [n, 512] float32 of L2 norm 1. Raises RuntimeError, naming the
    tensors, where one is missing, unknown or of another shape.
    """
    network = empty_network()
    wanted = {name: _single(value) for name, value in tensors.items() if not name.startswith(CLASSIFIER)}
    # assign: the given tensors become the parameters, without a second copy.
    network.load_state_dict(wanted, strict=True, assign=True)
    network.requires_grad_(False)
    fold_batch_norm(network)
    folded: nn.Module = network.to(memory_format=torch.channels_last)
    return folded


def fold_batch_norm(network: Any) -> None:
    """Replaces each convolution (and the last linear layer) and its batch norm by one layer, in place."""
    for module in network.modules():
        if isinstance(module, BasicConv2d):
            module.conv = fuse_conv_bn_eval(module.conv, module.bn)
            module.bn = nn.Identity()
    network.last_linear = fuse_linear_bn_eval(network.last_linear, network.last_bn)
    network.last_bn = nn.Identity()


def _single(value: torch.Tensor) -> torch.Tensor:
    """Weights may be stored in half precision; counters stay whole numbers."""
    return value.detach().float() if value.is_floating_point() else value.detach()
