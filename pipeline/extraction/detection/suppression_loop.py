"""The greedy loop of `nms.suppress` on the host. Needs numba."""

from __future__ import annotations

from typing import Any

import numpy as np

from pipeline.runtime.compiled import EXACT, compiled
from pipeline.types import BoolArray, FloatArray, IntArray


def greedy(boxes: FloatArray, starts: IntArray, limit: float, of_smaller: bool) -> BoolArray:
    """Which boxes [n, 4] are kept, bool [n]. Group k, by falling score, is starts[k] .. starts[k + 1] - 1; starts [g +
    1] int64."""
    kept = np.zeros(len(boxes), np.bool_)
    _greedy(np.ascontiguousarray(boxes), starts, limit, of_smaller, kept)
    return kept


@compiled("void(f4[:,::1], i8[::1], f8, b1, b1[::1])", **EXACT)
def _greedy(boxes: Any, starts: Any, limit: float, of_smaller: bool, kept: Any) -> None:
    """As in torchvision: float32, but shares of the union are compared in float64."""
    extra, zero = np.float32(1 if of_smaller else 0), np.float32(0)
    share = np.float32(limit)
    winners = np.empty((len(boxes), 4), np.float32)
    areas = np.empty(len(boxes), np.float32)
    for group in range(len(starts) - 1):
        count = 0
        for i in range(starts[group], starts[group + 1]):
            x1, y1, x2, y2 = boxes[i, 0], boxes[i, 1], boxes[i, 2], boxes[i, 3]
            width, height = x2 - x1 + extra, y2 - y1 + extra
            area = max(width, zero) * max(height, zero) if of_smaller else width * height
            stays = True
            for k in range(count):
                across = min(winners[k, 2], x2) - max(winners[k, 0], x1) + extra
                down = min(winners[k, 3], y2) - max(winners[k, 1], y1) + extra
                overlap = max(across, zero) * max(down, zero)
                if of_smaller:
                    above = overlap > share * min(areas[k], area)
                else:
                    above = np.float64(overlap / (areas[k] + area - overlap)) > limit
                if above:
                    stays = False
                    break
            if stays:
                winners[count] = boxes[i]
                areas[count] = area
                count += 1
                kept[i] = True
