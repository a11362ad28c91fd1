"""Greedy non-maximum suppression within groups of boxes."""

from __future__ import annotations

import numpy as np

from pipeline.runtime.arrays import float_bits, like, module_of, stable_order
from pipeline.types import Array


def suppress(
    boxes: Array, scores: Array, groups: Array, count: int, limit: float, of_smaller: bool = False
) -> tuple[Array, Array]:
    """By falling score, each box drops those of its group that overlap it by > `limit`.

    boxes [n, 4] float32 xyxy, scores [n] float32 >= 0, groups [n] int64: images, or their levels. Boxes of group
    `count` are excluded. The overlap is relative to the union, or with `of_smaller` (MTCNN's last step) to the smaller
    area, with sides that count both end pixels. Returns indices by group, falling score and index, [n] int64, and which
    are kept, [n] bool. Does not wait for a CUDA device.
    """
    keys, order = by_group(scores, groups)
    boxes = boxes[order]
    starts = module_of(keys).searchsorted(keys, like(keys, np.arange(count + 1, dtype=np.int64) << 32))
    if isinstance(boxes, np.ndarray):
        from pipeline.extraction.detection import suppression_loop

        return order, suppression_loop.greedy(boxes, starts, limit, of_smaller)
    from pipeline.extraction.detection import torch_nms

    return order, torch_nms.greedy(boxes, starts, limit, of_smaller)


def by_group(scores: Array, groups: Array) -> tuple[Array, Array]:
    """Sort keys, those of group g from g << 32 on, and indices by group, falling score and index; [n] int64. Scores are
    >= 0."""
    # Bits of floats >= 0 sort like the floats, so one key suffices.
    keys = (groups + 1 << 32) - 1 - float_bits(scores)
    order = stable_order(keys)
    return keys[order], order
