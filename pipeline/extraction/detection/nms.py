"""Non-maximum suppression within groups of boxes, without a host sync per group."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import torch
from torchvision.ops import nms

# Pairs of boxes compared at a time: at most 0.8 GB, three float32 maps.
_PAIRS = 2**26
# Groups of up to this many boxes share a table whatever their size: they have few pairs, padded or not.
_SMALL = 32
# Steps towards the greedy result between two checks whether it is reached.
_STEPS = 4


def grouped_nms(boxes: torch.Tensor, scores: torch.Tensor, groups: torch.Tensor, iou: float) -> torch.Tensor:
    """Greedy suppression at intersection over union > `iou`, within each group.

    boxes [n, 4] float32 xyxy, scores [n], groups [n] int64 (an image, or an image's level). Returns the kept positions,
    int64, in order of group and falling score. On the CPU one group after the other is faster than `padded_nms`,
    because there is no device to wait for.
    """
    if boxes.is_cuda:
        return padded_nms(boxes, scores, groups, iou)
    order = _by_group(scores, groups)
    if len(order) == 0:
        return order
    boxes, scores = boxes[order], scores[order]
    counts = torch.unique_consecutive(groups[order], return_counts=True)[1].tolist()
    kept, start = [], 0
    for count in counts:
        part = slice(start, start + count)
        kept.append(nms(boxes[part], scores[part], iou).sort().values + start)
        start += count
    return order[torch.cat(kept)]


def padded_nms(boxes: torch.Tensor, scores: torch.Tensor, groups: torch.Tensor, iou: float) -> torch.Tensor:
    """`grouped_nms` with many groups at a time, which waits for the device only a few times; runs on any device.

    Groups of similar size are padded to one table [g, m] and only pairs within a row are compared, `_PAIRS` at a time;
    torchvision's kernel would compare every box with every other. Groups too large for a table go to that kernel.
    """
    order = _by_group(scores, groups)
    if len(order) == 0:
        return order
    # One more box, to fill up the tables with.
    boxes, scores = torch.cat((boxes[order], boxes.new_zeros(1, 4))), scores[order]
    keep = torch.zeros(len(boxes), dtype=torch.bool, device=boxes.device)
    limit = _float32_below(iou)
    for tables in _together(_tables(groups[order])):
        if tables[0].shape[1] ** 2 > _PAIRS:
            row = tables[0][0]
            keep[row[nms(boxes[row], scores[row], limit)]] = True
            continue
        stay = _greedy([_suppressed_by(boxes[table], limit) for table in tables])
        for table, kept in zip(tables, stay, strict=True):
            keep[table] = kept
    return order[keep[:-1]]


def _by_group(scores: torch.Tensor, groups: torch.Tensor) -> torch.Tensor:
    """The positions, int64 [n], in order of group, falling score and position."""
    order = scores.argsort(descending=True, stable=True)
    return order[groups[order].argsort(stable=True)]


def _tables(groups: torch.Tensor) -> Iterator[torch.Tensor]:
    """Positions in `groups` (sorted, int64 [n]) as tables [g, m] int64, one group a row, filled up with n.

    All groups of a table have at least m / 2 boxes, or m is small; g * m * m is at most `_PAIRS`, or g is 1. Waits for
    the device before the first table only.
    """
    counts = torch.unique_consecutive(groups, return_counts=True)[1]
    starts = counts.cumsum(0) - counts
    counts, by_size = counts.sort()
    starts = starts[by_size]
    for part, largest in _size_classes(counts.tolist()):
        column = torch.arange(largest, device=groups.device)
        yield torch.where(column < counts[part, None], starts[part, None] + column, len(groups))


def _size_classes(sizes: list[int]) -> Iterator[tuple[slice, int]]:
    """Splits ascending group sizes into the parts that share a table, each with its largest size."""
    end = len(sizes)
    while end:
        largest = sizes[end - 1]
        at_least_half = 0 if largest <= _SMALL else bisect_left(sizes, (largest + 1) // 2)
        first = max(at_least_half, end - max(1, _PAIRS // largest**2))
        yield slice(first, end), largest
        end = first


def _suppressed_by(boxes: torch.Tensor, limit: float) -> torch.Tensor:
    """For boxes [g, m, 4] float32 xyxy in falling score, bool [g, m, m]: whether box i would suppress box j, at
    [., j, i].

    It would if it has the higher score and their intersection over union is > limit, in torchvision's own arithmetic,
    so that every box gets the same verdict. 0 / 0 is not above any limit.
    """
    x1, y1, x2, y2 = boxes.unbind(2)
    area = (x2 - x1) * (y2 - y1)
    overlap = _overlaps(x1, x2).mul_(_overlaps(y1, y2))
    union = (area[:, :, None] + area[:, None, :]).sub_(overlap)
    return overlap.div_(union).gt(limit).tril_(diagonal=-1)


def _overlaps(low: torch.Tensor, high: torch.Tensor) -> torch.Tensor:
    """The length of the overlap of each pair of the intervals low .. high, each [g, m]: [g, m, m]."""
    end = torch.minimum(high[:, :, None], high[:, None, :])
    return end.sub_(torch.maximum(low[:, :, None], low[:, None, :])).clamp_(min=0)


def _float32_below(value: float) -> float:
    """The largest float32 <= value, which a float32 exceeds iff it exceeds `value`.

    torchvision compares with the float64 on the CPU; torch, and torchvision on CUDA, with the nearest float32.
    """
    nearest = np.float32(value)
    return float(nearest if float(nearest) <= value else np.nextafter(nearest, np.float32(-np.inf)))


def _together(tables: Iterable[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """The tables in lists of at most `_PAIRS` pairs, as long as one table has no more."""
    some: list[torch.Tensor] = []
    pairs = 0
    for table in tables:
        more = table.shape[0] * table.shape[1] ** 2
        if some and pairs + more > _PAIRS:
            yield some
            some, pairs = [], 0
        some, pairs = [*some, table], pairs + more
    yield some


def _greedy(suppressed_by: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Which boxes stay, of each table bool [..., m], where its `suppressed_by` [..., j, i] says that i, a better box,
    would suppress j.

    A box stays iff no better box that stays suppresses it. That rule is applied to all boxes at once until nothing
    changes: the greedy result is reached after as many steps as the longest chain of suppressions has, two or three in
    photographs, and further steps keep it. All tables are checked at once: each check waits for the device.
    """
    keep = [by.new_ones(by.shape[:-1]) for by in suppressed_by]
    while True:
        for _ in range(_STEPS):
            before, keep = keep, [~(by & k[..., None, :]).any(-1) for by, k in zip(suppressed_by, keep, strict=True)]
        if not torch.stack([(b != k).any() for b, k in zip(before, keep, strict=True)]).any():
            return keep


def grouped_nms_min(boxes: torch.Tensor, scores: torch.Tensor, groups: torch.Tensor, share: float) -> torch.Tensor:
    """Greedy suppression at intersection over the *smaller* area > `share`, the last step of MTCNN.

    Box sides count both end pixels (the + 1 convention of the original). Returns the kept positions, ascending. Makes
    n x n values, so it is only for the few boxes after O-Net.
    """
    order = scores.argsort(descending=True, stable=True)
    boxes, groups = boxes[order], groups[order]
    sides = (boxes[:, 2:] - boxes[:, :2] + 1).clamp(min=0)
    area = sides.prod(1)
    low = torch.maximum(boxes[:, None, :2], boxes[None, :, :2])
    high = torch.minimum(boxes[:, None, 2:], boxes[None, :, 2:])
    overlap = (high - low + 1).clamp(min=0).prod(2)
    above = overlap > share * torch.minimum(area[:, None], area[None, :])
    suppressed_by = (above & (groups[:, None] == groups[None, :])).tril(diagonal=-1)
    (keep,) = _greedy([suppressed_by])
    return order[keep].sort().values
