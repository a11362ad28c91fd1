"""Greedy suppression on CUDA, in one launch for a batch.

A program walks its group's boxes by falling score, `_BLOCK` at a time: earlier boxes drop some, then the block resolves
itself. Arithmetic and results are those of `torch_nms.on_host`. Needs Triton.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import torch
import triton
import triton.language as tl

_BLOCK: Final = 64  # not measured on a GPU yet, nor the warps
_LAUNCH: Final = {"num_warps": 8, "enable_fp_fusion": False}  # fusion would skip a rounding
_PAIRS: Final = 64  # in `self_check`
RULES: Final = ((0.5, False), (0.7, False), (0.7, True))  # limit and `of_smaller` in MTCNN


def greedy(boxes: torch.Tensor, starts: torch.Tensor, limit: float, of_smaller: bool) -> torch.Tensor:
    """`torch_nms.on_host` on the device of boxes [n, 4] float32 and starts [g + 1] int64, without waiting."""
    kept = torch.zeros(len(boxes), dtype=torch.bool, device=boxes.device)
    if not of_smaller:
        limit = _float32_below(limit)  # torchvision compares with the float64
    with torch.cuda.device_of(boxes):
        winners = torch.empty_like(boxes)
        _greedy[(len(starts) - 1,)](boxes, starts, kept, winners, limit, of_smaller, _BLOCK, **_LAUNCH)
    return kept


def self_check(device: torch.device, by_torch: Callable[..., torch.Tensor]) -> str | None:
    """How the kernel's results on the device differ from `torch_nms.on_host`, or None."""
    for limit, of_smaller in RULES:
        boxes, starts = _sample(limit, of_smaller)
        expected = by_torch(boxes, starts, limit, of_smaller)
        different = (greedy(boxes.to(device), starts.to(device), limit, of_smaller).cpu() != expected).sum().item()
        if different:
            share = "the smaller area" if of_smaller else "the union"
            return f"suppression above {limit} of {share} differs for {different} of {len(boxes)} boxes"
    return None


def _sample(limit: float, of_smaller: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Boxes and group starts: a crowd, an empty group, a single box, and pairs that overlap by exactly the limit, where
    the last bit decides. Boxes without a group follow."""
    numbers = torch.rand((300, 4), generator=torch.Generator().manual_seed(0))
    corner, sides = numbers[:, :2] * 80, numbers[:, 2:] * 40 + 3
    crowd = torch.cat([corner, corner + sides], dim=1)
    first = torch.cat([torch.zeros_like(sides), sides], dim=1)[:_PAIRS]
    width = first[:, 2:3]
    shift = (width + 1) * (1 - limit) if of_smaller else width * (1 - limit) / (1 + limit)
    pairs = torch.stack([first, first + shift * torch.tensor([1, 0, 1, 0])], dim=1).view(-1, 4)
    starts = torch.cat([torch.tensor([0, 200, 200]), torch.arange(201, 202 + 2 * _PAIRS, 2)])
    return torch.cat([crowd[:201], pairs, crowd[201:]]), starts


@triton.jit
def _greedy(boxes, starts, kept, winners, limit, OF_SMALLER: tl.constexpr, BLOCK: tl.constexpr):
    """One program per group. `winners` [n, 4] gets the group's kept boxes, from its start on."""
    start, end = tl.load(starts + tl.program_id(0)), tl.load(starts + tl.program_id(0) + 1)
    lane = tl.arange(0, BLOCK)
    count = start
    for first in range(start, end, BLOCK):
        own = first + lane
        x1, y1, x2, y2 = _corners(boxes, own, end)
        free = own < end
        for earlier in range(start, count, BLOCK):
            a1, b1, a2, b2 = _corners(winners, earlier + lane, count)
            above = _above(a1, b1, a2, b2, x1, y1, x2, y2, limit, OF_SMALLER) & (earlier + lane < count)[:, None]
            free = free & (tl.max(above.to(tl.int32), 0) == 0)
        above = _above(x1, y1, x2, y2, x1, y1, x2, y2, limit, OF_SMALLER) & (lane[:, None] < lane[None, :])
        # The k-th box depends on earlier ones, so it is right after k steps. Few suffice.
        stay, changed = free, 1
        while changed > 0:
            before = stay
            stay = free & (tl.max((above & before[:, None]).to(tl.int32), 0) == 0)
            changed = tl.max((stay != before).to(tl.int32), 0)
        tl.store(kept + own, stay, mask=own < end)
        place = winners + (count + tl.cumsum(stay.to(tl.int32), 0) - 1) * 4
        tl.store(place, x1, mask=stay)
        tl.store(place + 1, y1, mask=stay)
        tl.store(place + 2, x2, mask=stay)
        tl.store(place + 3, y2, mask=stay)
        count += tl.sum(stay.to(tl.int32), 0)
        tl.debug_barrier()  # other threads of the program read the winners


@triton.jit
def _corners(boxes, index, end):
    """The boxes [BLOCK] at `index`; zeros from `end` on."""
    first = boxes + index * 4
    inside = index < end
    return (
        tl.load(first, mask=inside, other=0.0),
        tl.load(first + 1, mask=inside, other=0.0),
        tl.load(first + 2, mask=inside, other=0.0),
        tl.load(first + 3, mask=inside, other=0.0),
    )


@triton.jit
def _above(a1, b1, a2, b2, x1, y1, x2, y2, limit, OF_SMALLER: tl.constexpr):
    """[i, j]: whether box i of the first overlaps box j of the second by more than `limit`."""
    extra: tl.constexpr = 1.0 if OF_SMALLER else 0.0
    width = tl.minimum(a2[:, None], x2[None, :]) - tl.maximum(a1[:, None], x1[None, :]) + extra
    height = tl.minimum(b2[:, None], y2[None, :]) - tl.maximum(b1[:, None], y1[None, :]) + extra
    overlap = tl.maximum(width, 0.0) * tl.maximum(height, 0.0)
    if OF_SMALLER:
        area = tl.maximum(a2 - a1 + extra, 0.0) * tl.maximum(b2 - b1 + extra, 0.0)
        other = tl.maximum(x2 - x1 + extra, 0.0) * tl.maximum(y2 - y1 + extra, 0.0)
        return overlap > limit * tl.minimum(area[:, None], other[None, :])
    area, other = (a2 - a1) * (b2 - b1), (x2 - x1) * (y2 - y1)
    return tl.div_rn(overlap, area[:, None] + other[None, :] - overlap) > limit


def _float32_below(value: float) -> float:
    """The largest float32 <= value; a float32 exceeds it iff it exceeds `value`."""
    nearest = np.float32(value)
    return float(nearest if float(nearest) <= value else np.nextafter(nearest, np.float32(-np.inf)))
