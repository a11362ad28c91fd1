"""The three networks of MTCNN, with facenet-pytorch's weights and layers.

Zhang et al. 2016, "Joint Face Detection and Alignment Using Multitask Cascaded Convolutional Networks". The layers are
those of facenet-pytorch, so that its weights fit. P-Net has a forward pass of its own, because here many images and
scales share one canvas; R- and O-Net have their convolutions in compiled loops on the CPU, which are faster for such
small pictures.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TypeAlias, cast

import torch
from facenet_pytorch.models.mtcnn import ONet, PNet, RNet
from torch import nn

from pipeline.extraction.detection.packing import packed_layer
from pipeline.runtime.threads import over_threads
from pipeline.types import FloatArray


def normalise(pixels: torch.Tensor) -> torch.Tensor:
    """[0, 255] -> about [-1, 1], the range that the networks were trained on."""
    return (pixels - 127.5) * 0.0078125


class CanvasPNet(nn.Module):
    """P-Net over canvases that hold several tiles.

    The convolutions have no padding, so a tile's cells depend on the tile alone, except for the pooling, which rounds
    up (ceil_mode): at the last row and column of an odd-sized tile it would see the neighbouring tile. So all values
    outside a tile are -inf before the pooling, and 0 after it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.net = PNet(pretrained=False)

    def forward(
        self, canvases: torch.Tensor, inside: torch.Tensor, pooled_inside: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """canvases [K, 3, S, S] normalised; inside [K, 1, S-2, S-2] and pooled_inside [K, 1, S/2-1, S/2-1] bool: which
        outputs of the first convolution and of the pooling depend on one tile alone. Returns probabilities
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


def packed_layers(net: nn.Module, count: int) -> list[FloatArray]:
    """The first `count` convolutions of a network with their activations, as the compiled loops take them."""
    return [packed_layer(getattr(net, f"conv{k}"), getattr(net, f"prelu{k}")) for k in range(1, count + 1)]


# [n, 3, size, size] float32 in [0, 255] -> the network's outputs, [n, width] each, the probabilities last.
CropNetwork: TypeAlias = Callable[[torch.Tensor], tuple[torch.Tensor, ...]]
_CROPS_PER_JOB = 32  # the loops take 8 at a time


def crop_network(net: nn.Module, kernels: ModuleType | None) -> CropNetwork:
    """`net` on crops; with compiled convolutions if it is facenet-pytorch's own module and there are kernels."""
    if kernels is not None and isinstance(net, RNet):
        outputs = [net.dense5_2, nn.Sequential(net.dense5_1, net.softmax5_1)]
        return _compiled(kernels.rnet_features, packed_layers(net, 3), net.dense4, net.prelu4, outputs)
    if kernels is not None and isinstance(net, ONet):
        outputs = [net.dense6_2, net.dense6_3, nn.Sequential(net.dense6_1, net.softmax6_1)]
        return _compiled(kernels.onet_features, packed_layers(net, 4), net.dense5, net.prelu5, outputs)
    return lambda pixels: cast(tuple[torch.Tensor, ...], net(normalise(pixels)))


def _compiled(
    loop: Callable[..., None],
    layers: Sequence[FloatArray],
    dense: nn.Linear,
    activation: nn.PReLU,
    outputs: Sequence[nn.Module],
) -> CropNetwork:
    """The hidden convolutions in `loop`, and the dense layers after them in torch."""

    def run(pixels: torch.Tensor) -> tuple[torch.Tensor, ...]:
        crops, features = pixels.numpy(), torch.empty((len(pixels), dense.in_features))
        rows = features.numpy()
        jobs = [slice(start, start + _CROPS_PER_JOB) for start in range(0, len(crops), _CROPS_PER_JOB)]
        over_threads(lambda job: loop(crops[job], *layers, rows[job]), jobs)
        x = activation(dense(features))
        return tuple(output(x) for output in outputs)

    return run
