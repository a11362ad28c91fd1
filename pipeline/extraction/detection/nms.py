"""Greedy non-maximum suppression within groups of boxes."""

from __future__ import annotations

import numpy as np

from pipeline.runtime.arrays import float_bits, like, module_of, stable_order
from pipeline.types import Array


def suppress(
    boxes: Array, scores: Array, groups: Array, count: int, limit: float, of_smaller: bool = False
) -> tuple[Array, Array]:
    """Which boxes stay when each, from the highest score on, drops those of its group that overlap it by > `limit`.

    boxes [n, 4] float32 xyxy, scores [n] float32 >= 0, groups [n] int64: an image, or an image's level. Boxes of group
    `count` are out already: they drop none and do not stay. The overlap is a share of the union, or `of_smaller`, the
    last step of MTCNN, a share of the smaller area, where sides count both end pixels. Returns the positions in order
    of group, falling score and position, [n] int64, and which of them stay, [n] bool. Waits for no CUDA device.
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
    """Positions in order of group, falling score and position, [n] int64, and before them the keys that have this
    order: those of group g begin at g << 32. Scores are >= 0."""
    # The bits of floats >= 0 are in the order of the floats, so one key sorts by both.
    keys = (groups + 1 << 32) - 1 - float_bits(scores)
    order = stable_order(keys)
    return keys[order], order
