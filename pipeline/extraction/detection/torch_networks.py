"""MTCNN's networks (see `cascade`) in torch, with facenet-pytorch's weights and layers. P-Net has its own forward pass,
because many images and scales share a canvas."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Final

import torch
from facenet_pytorch.models.mtcnn import ONet, PNet, RNet
from torch import nn

from pipeline.extraction.detection.canvases import Canvases, Packing, TileTable, normalise, pack, paint_by_torch
from pipeline.extraction.detection.pyramid import Cells, Level
from pipeline.extraction.detection.torch_nms import load_kernel
from pipeline.extraction.images.torch_batch import TorchBatch, load_triton, pinned_memory
from pipeline.runtime.device import padded, prefers_few_shapes
from pipeline.runtime.optional_kernels import SelfCheck, if_checked
from pipeline.runtime.stage_times import RNET, CallCounts
from pipeline.runtime.threads import tell_torch
from pipeline.types import ByteArray

CANVAS_SIDE = 512
# With few shapes, the last call has empty canvases. CUDA's is bounded by memory (some 30 MB per canvas); an H100 takes
# 2.4 ms for 16.
CANVASES_PER_CALL: Final = {"cpu": 4, "cuda": 16}
# For R- or O-Net. CUDA's is not measured, but bounded by memory (0.5 GB for O-Net's first layer).
_CROPS_PER_CALL: Final = {"cpu": 512, "cuda": 2048}
_CROP_COUNTS: Final = (128, 512, 2048)  # per call, if few shapes are preferred


class CanvasPNet(nn.Module):
    """P-Net over canvases with several tiles.

    Without padding, a tile's cells depend on it alone, except that pooling rounds up (ceil_mode) and would see the
    neighbour of an odd-sized tile. So values outside tiles are -inf before the pooling and 0 after.
    """

    def __init__(self) -> None:
        super().__init__()
        self.net = PNet(pretrained=False)

    def forward(
        self, canvases: torch.Tensor, inside: torch.Tensor, pooled_inside: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """canvases [K, 3, S, S] normalised; inside [K, 1, S-2, S-2], pooled_inside [K, 1, S/2-1, S/2-1] bool: outputs
        of the first convolution and the pooling that depend on one tile alone. Returns probabilities [K, S/2-5, S/2-5]
        and box regressions [K, 4, S/2-5, S/2-5]."""
        net = self.net
        x = net.prelu1(net.conv1(canvases)).masked_fill_(~inside, -torch.inf)
        x = net.pool1(x).masked_fill_(~pooled_inside, 0.0)
        x = net.prelu2(net.conv2(x))
        x = net.prelu3(net.conv3(x))
        return net.conv4_1(x).softmax(dim=1)[:, 1], net.conv4_2(x)


@if_checked
def load_painter() -> tuple[ModuleType, SelfCheck]:
    """The kernel that paints canvases on CUDA."""
    from pipeline.extraction.detection import canvas_kernel

    return canvas_kernel, canvas_kernel.self_check


def _painted(batch: TorchBatch, packing: Packing, tiles: TileTable) -> Iterator[tuple[int, Canvases]]:
    """Each call's first canvas number, and its canvases."""
    step, count = CANVASES_PER_CALL[batch.device.type], packing.canvases
    if prefers_few_shapes(batch.device.type):
        count += -count % step
    starts = range(0, count, step)
    if kernel := load_painter(batch.device):
        return ((start, kernel.paint(batch, tiles, start, min(start + step, count))) for start in starts)
    painted = paint_by_torch(batch, packing, count)
    return ((start, painted[start : start + step]) for start in starts)


@dataclass(frozen=True)
class TorchNetworks:
    """P-, R- and O-Net on one device, in float32: see `cascade.MtcnnNetworks`."""

    pnet: CanvasPNet
    rnet: RNet  # [n, 3, 24, 24] -> box regressions [n, 4], probabilities [n, 2]
    onet: ONet  # [n, 3, 48, 48] -> box regressions [n, 4], landmarks [n, 10], probabilities [n, 2]

    @property
    def device(self) -> str:
        return str(next(self.pnet.parameters()).device)

    @property
    def crops_per_call(self) -> int:
        return _CROPS_PER_CALL[next(self.pnet.parameters()).device.type]

    def computing(self) -> AbstractContextManager[object]:
        return torch.inference_mode()

    def memory(self, pixels: int) -> ByteArray:
        return pinned_memory(pixels, self.device)

    def batch(self, images: Sequence[ByteArray | torch.Tensor], memory: ByteArray | None = None) -> TorchBatch:
        return TorchBatch(images, self.device, memory)

    def likely_cells(
        self, batch: TorchBatch, pyramids: Sequence[Sequence[Level]], threshold: float, counts: CallCounts
    ) -> Cells:
        """The cells from `CANVASES_PER_CALL` canvases at a time."""
        packing = pack(pyramids, CANVAS_SIDE)
        tiles = TileTable(packing, batch.device)
        cells = []
        for first, canvases in _painted(batch, packing, tiles):
            cells.append((canvases.cells, *self.pnet(canvases.pixels, canvases.inside, canvases.pooled_inside)))
            counts.add(min(len(canvases.cells), packing.canvases - first))
        if not cells:
            empty, floats = tiles.table[:, 0], tiles.scale
            return Cells(empty, empty, floats, empty, empty, floats, floats.new_zeros((0, 4)))
        tile, probability, regression = (torch.cat(column) for column in zip(*cells, strict=True))
        canvas, y, x = ((probability >= threshold) & (tile >= 0)).nonzero().unbind(1)  # the only wait
        tile = tile[canvas, y, x]
        image, level, row, column = tiles.places(tile, y, x)
        found = probability[canvas, y, x], regression[canvas, :, y, x]
        return Cells(image, level, tiles.scale[tile], column, row, *found)

    def run(self, stage: str, pixels: torch.Tensor) -> tuple[torch.Tensor, ...]:
        network = self.rnet if stage == RNET else self.onet
        outputs: tuple[torch.Tensor, ...] = network(normalise(padded(pixels, _CROP_COUNTS)))
        return tuple(output[: len(pixels)] for output in outputs)


def load_networks(files: Mapping[str, Path], device: torch.device | str) -> TorchNetworks:
    """Loads the verified state dicts `files` ("pnet.pt", "rnet.pt", "onet.pt"), without unpickling code."""
    tell_torch()  # torch may be imported only now
    pnet, rnet, onet = CanvasPNet(), RNet(pretrained=False), ONet(pretrained=False)
    for name, module in (("pnet.pt", pnet.net), ("rnet.pt", rnet), ("onet.pt", onet)):
        module.load_state_dict(torch.load(files[name], map_location="cpu", weights_only=True))
    for module in (pnet, rnet, onet):
        module.eval().requires_grad_(False).to(device)
    networks = TorchNetworks(pnet, rnet, onet)
    for load in (load_triton, load_painter, load_kernel):
        load(torch.device(networks.device))  # now: during a batch their check might lack memory
    return networks
