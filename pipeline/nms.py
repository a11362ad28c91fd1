"""Non-maximum suppression within groups of boxes, without a host sync per group."""

from __future__ import annotations

import torch
from torchvision.ops import nms


def grouped_nms(boxes: torch.Tensor, scores: torch.Tensor, groups: torch.Tensor, iou: float) -> torch.Tensor:
    """Greedy suppression at intersection over union > `iou`, each group for itself.

    boxes [n, 4] float32 xyxy, scores [n], groups [n] int64 (an image, or an image's level). Returns the kept
    positions, int64, in order of group and falling score. On CUDA one kernel serves all groups: they are shifted
    apart, in float64 so that no coordinate is rounded. On the CPU that would compare every box with every other,
    so the groups are split; nothing has to be waited for there.
    """
    if len(boxes) == 0:
        return torch.zeros(0, dtype=torch.int64, device=boxes.device)
    order = scores.argsort(descending=True, stable=True)
    order = order[groups[order].argsort(stable=True)]
    boxes, scores, groups = boxes[order], scores[order], groups[order]
    if boxes.is_cuda:
        low, high = boxes.amin().double(), boxes.amax().double()
        shifted = boxes.double() - low + (groups.double() * (high - low + 1))[:, None]
        return order[nms(shifted, scores.double(), iou).sort().values]
    counts = torch.unique_consecutive(groups, return_counts=True)[1].tolist()
    kept, start = [], 0
    for count in counts:
        part = slice(start, start + count)
        kept.append(nms(boxes[part], scores[part], iou).sort().values + start)
        start += count
    return order[torch.cat(kept)]


def grouped_nms_min(boxes: torch.Tensor, scores: torch.Tensor, groups: torch.Tensor, share: float) -> torch.Tensor:
    """Greedy suppression at intersection over the *smaller* area > `share`, as MTCNN's last step has it.

    Box sides count both end pixels (the + 1 convention of the original). A box stays iff no better box that
    stays suppresses it: that rule is applied to all boxes at once until nothing changes, which gives the greedy
    result after as many steps as the longest chain of suppressions, two or three in photographs. Returns the
    kept positions, ascending. Only for the few boxes after O-Net: n x n values are made.
    """
    order = scores.argsort(descending=True, stable=True)
    boxes, groups = boxes[order], groups[order]
    sides = (boxes[:, 2:] - boxes[:, :2] + 1).clamp(min=0)
    area = sides.prod(1)
    low = torch.maximum(boxes[:, None, :2], boxes[None, :, :2])
    high = torch.minimum(boxes[:, None, 2:], boxes[None, :, 2:])
    overlap = (high - low + 1).clamp(min=0).prod(2)
    suppresses = (overlap > share * torch.minimum(area[:, None], area[None, :])) & (groups[:, None] == groups[None, :])
    suppresses = suppresses.triu(diagonal=1)
    keep = torch.ones(len(boxes), dtype=torch.bool, device=boxes.device)
    while True:
        new = ~(suppresses & keep[:, None]).any(0)
        if torch.equal(new, keep):
            return order[keep].sort().values
        keep = new
