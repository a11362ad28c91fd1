"""The greedy loop of `cascade.suppress` for torch: one launch on CUDA, torchvision's loop on the host."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from types import ModuleType

import numpy as np
import torch
from torchvision.ops import nms

from pipeline.runtime.optional_kernels import SelfCheck, if_checked
from pipeline.types import FloatArray


@if_checked
def load_kernel() -> tuple[ModuleType, SelfCheck]:
    """The suppression for CUDA."""
    from pipeline.extraction.detection import suppression_kernel

    return suppression_kernel, partial(suppression_kernel.self_check, by_torch=on_host)


def greedy(boxes: torch.Tensor, starts: torch.Tensor, limit: float, of_smaller: bool) -> torch.Tensor:
    """Which boxes [n, 4] are kept, bool [n]; groups and `starts` [g + 1] int64 as in `network_kernels.greedy`."""
    kernel = load_kernel(boxes.device)
    kept: torch.Tensor = (on_host if kernel is None else kernel.greedy)(boxes, starts, limit, of_smaller)
    return kept


def on_host(boxes: torch.Tensor, starts: torch.Tensor, limit: float, of_smaller: bool) -> torch.Tensor:
    """`greedy` without a kernel."""
    host, bounds = boxes.cpu(), starts.tolist()
    falling = torch.arange(len(host), 0, -1, dtype=torch.float32)
    kept = [torch.zeros(0, dtype=torch.int64)]
    for start, end in pairwise(bounds):
        if of_smaller:
            stay = torch.tensor(_of_smaller(host[start:end].numpy(), limit), dtype=torch.int64)
        else:
            stay = nms(host[start:end], falling[start:end], limit)
        kept.append(stay + start)
    mask = torch.zeros(len(host), dtype=torch.bool)
    mask[torch.cat(kept)] = True
    return mask.to(boxes.device)


def _of_smaller(boxes: FloatArray, share: float) -> Sequence[int]:
    """The kept boxes of one group, by falling score."""
    low, high = boxes[:, :2], boxes[:, 2:]
    area = (high - low + 1).clip(0).prod(1)
    kept, left = [], np.arange(len(boxes))
    while len(left):
        best, left = left[0], left[1:]
        overlap = (np.minimum(high[best], high[left]) - np.maximum(low[best], low[left]) + 1).clip(0).prod(1)
        left = left[overlap <= share * np.minimum(area[best], area[left])]
        kept.append(best)
    return kept
