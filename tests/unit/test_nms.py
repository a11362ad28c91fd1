"""Suppression in groups against the plain greedy loop."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pipeline.nms import grouped_nms, grouped_nms_min


def _greedy(boxes: np.ndarray, scores: np.ndarray, groups: np.ndarray, limit: float, smaller: bool) -> list[int]:
    extra = 1 if smaller else 0
    kept: list[int] = []
    area = (boxes[:, 2:] - boxes[:, :2] + extra).prod(1)
    for i in np.argsort(-scores, kind="stable"):
        for j in kept:
            wh = np.clip(
                np.minimum(boxes[i, 2:], boxes[j, 2:]) - np.maximum(boxes[i, :2], boxes[j, :2]) + extra, 0, None
            )
            whole = min(area[i], area[j]) if smaller else area[i] + area[j] - wh.prod()
            if groups[i] == groups[j] and wh.prod() > limit * whole:
                break
        else:
            kept.append(int(i))
    return sorted(kept)


@pytest.mark.parametrize("seed", range(20))
def test_equals_the_greedy_loop(seed: int, device: str) -> None:
    rng = np.random.default_rng(seed)
    low = rng.integers(-5, 60, (80, 2))
    boxes = np.concatenate([low, low + rng.integers(5, 40, (80, 2))], axis=1).astype(np.float32)
    scores, groups = rng.random(80).astype(np.float32), rng.integers(0, 4, 80)
    args = [torch.from_numpy(a).to(device) for a in (boxes, scores, groups)]
    assert sorted(grouped_nms(*args, 0.5).tolist()) == _greedy(boxes, scores, groups, 0.5, smaller=False)
    assert grouped_nms_min(*args, 0.7).tolist() == _greedy(boxes, scores, groups, 0.7, smaller=True)


def test_none(device: str) -> None:
    none = (
        torch.zeros((0, 4), device=device),
        torch.zeros(0, device=device),
        torch.zeros(0, dtype=torch.int64, device=device),
    )
    assert grouped_nms(*none, 0.5).tolist() == []
    assert grouped_nms_min(*none, 0.7).tolist() == []
