"""The three networks of MTCNN, with facenet-pytorch's weights and layers.

Zhang et al. 2016, "Joint Face Detection and Alignment Using Multitask Cascaded Convolutional Networks". The
layers are those of facenet-pytorch, so that its weights fit; P-Net's forward pass is written anew, because here
many images and scales share one canvas.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from facenet_pytorch.models.mtcnn import ONet, PNet, RNet
from torch import nn


def normalise(pixels: torch.Tensor) -> torch.Tensor:
    """[0, 255] -> about [-1, 1], as the networks were trained."""
    return (pixels - 127.5) * 0.0078125


class CanvasPNet(nn.Module):
    """P-Net over canvases that hold several tiles.

    The convolutions have no padding, so a tile's cells depend on the tile alone, but for the pooling, which
    rounds up (ceil_mode): the last row and column of an odd-sized tile would look at its neighbour. So what lies
    outside a tile is -inf when the pooling sees it, and 0 after.
    """

    def __init__(self) -> None:
        super().__init__()
        self.net = PNet(pretrained=False)

    def forward(
        self, canvases: torch.Tensor, inside: torch.Tensor, pooled_inside: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """canvases [K, 3, S, S] normalised; inside [K, 1, S-2, S-2] and pooled_inside [K, 1, S/2-1, S/2-1] bool:
        what the first convolution's and the pooling's answers owe to one tile alone. Returns probabilities
        [K, S/2-5, S/2-5] and box regressions [K, 4, S/2-5, S/2-5].
        """
        net = self.net
        x = net.prelu1(net.conv1(canvases)).masked_fill_(~inside, -torch.inf)
        x = net.pool1(x).masked_fill_(~pooled_inside, 0.0)
        x = net.prelu2(net.conv2(x))
        x = net.prelu3(net.conv3(x))
        return net.conv4_1(x).softmax(dim=1)[:, 1], net.conv4_2(x)


@dataclass(frozen=True)
class MtcnnNetworks:
    """P-, R- and O-Net on one device, in float32."""

    pnet: CanvasPNet
    rnet: RNet  # [n, 3, 24, 24] -> box regressions [n, 4], probabilities [n, 2]
    onet: ONet  # [n, 3, 48, 48] -> box regressions [n, 4], landmarks [n, 10], probabilities [n, 2]

    @property
    def device(self) -> torch.device:
        return next(self.pnet.parameters()).device


def load_networks(files: Mapping[str, Path], device: torch.device | str) -> MtcnnNetworks:
    """Loads the verified state dicts `files` ("pnet.pt", "rnet.pt", "onet.pt"), without unpickling code."""
    pnet, rnet, onet = CanvasPNet(), RNet(pretrained=False), ONet(pretrained=False)
    for name, module in (("pnet.pt", pnet.net), ("rnet.pt", rnet), ("onet.pt", onet)):
        module.load_state_dict(torch.load(files[name], map_location="cpu", weights_only=True))
    for module in (pnet, rnet, onet):
        module.eval().requires_grad_(False).to(device)
    return MtcnnNetworks(pnet, rnet, onet)
