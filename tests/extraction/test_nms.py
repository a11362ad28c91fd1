"""Suppression in groups against the plain greedy loop."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pipeline.extraction.detection.nms import _size_classes, grouped_nms, grouped_nms_min, padded_nms

# Limits of the pairs compared at a time: all at once; the largest group just fits; some groups are too large for a
# table; every group of more than one box is.
PAIRS = [2**26, 300**2, 65**2, 1]
Arrays = tuple[np.ndarray, np.ndarray, np.ndarray]


@pytest.fixture(params=PAIRS)
def pairs(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr("pipeline.extraction.detection.nms._PAIRS", request.param)
    return int(request.param)


def _greedy(boxes: np.ndarray, scores: np.ndarray, groups: np.ndarray, limit: float, smaller: bool) -> list[int]:
    extra = 1 if smaller else 0
    kept: list[int] = []
    area = (boxes[:, 2:] - boxes[:, :2] + extra).prod(1)
    for i in np.argsort(-scores, kind="stable"):
        for j in kept:
            wh = np.clip(
                np.minimum(boxes[i, 2:], boxes[j, 2:]) - np.maximum(boxes[i, :2], boxes[j, :2]) + extra, 0, None
            )
            total = min(area[i], area[j]) if smaller else area[i] + area[j] - wh.prod()
            if groups[i] == groups[j] and wh.prod() > limit * total:
                break
        else:
            kept.append(int(i))
    return sorted(kept)


def test_equals_the_greedy_loop(device: str, full: bool) -> None:
    for seed in range(20 if full else 6):
        rng = np.random.default_rng(seed)
        low = rng.integers(-5, 60, (80, 2))
        boxes = np.concatenate([low, low + rng.integers(5, 40, (80, 2))], axis=1).astype(np.float32)
        scores, groups = rng.random(80).astype(np.float32), rng.integers(0, 4, 80)
        args = [torch.from_numpy(a).to(device) for a in (boxes, scores, groups)]
        expected = _greedy(boxes, scores, groups, 0.5, smaller=False)
        assert sorted(padded_nms(*args, 0.5).tolist()) == expected
        assert sorted(grouped_nms(*args, 0.5).tolist()) == expected
        assert grouped_nms_min(*args, 0.7).tolist() == _greedy(boxes, scores, groups, 0.7, smaller=True)


def test_none(device: str) -> None:
    none = (
        torch.zeros((0, 4), device=device),
        torch.zeros(0, device=device),
        torch.zeros(0, dtype=torch.int64, device=device),
    )
    assert grouped_nms(*none, 0.5).tolist() == []
    assert padded_nms(*none, 0.5).tolist() == []
    assert grouped_nms_min(*none, 0.7).tolist() == []


def _assert_as_torchvision(arrays: Arrays, limit: float, device: str) -> None:
    """The same positions in the same order as from torchvision's kernel, group by group on the CPU."""
    boxes, scores, groups = (torch.from_numpy(a) for a in arrays)
    kept = padded_nms(boxes.to(device), scores.to(device), groups.to(device), limit)
    assert kept.dtype == torch.int64
    assert kept.tolist() == grouped_nms(boxes, scores, groups, limit).tolist()


def _crowd(seed: int, sizes: list[int], score_count: int) -> Arrays:
    """Groups of these sizes, mixed, with gaps in their numbers; some boxes without area, some twice, scores tied."""
    rng = np.random.default_rng(seed)
    groups = rng.permutation(np.repeat(np.cumsum(rng.integers(1, 5, len(sizes))) - 7, sizes))
    low, sides = rng.uniform(-20, 80, (len(groups), 2)), rng.uniform(5, 60, (len(groups), 2))
    sides[rng.random(sides.shape) < 0.02] = 0
    boxes = np.concatenate([low, low + sides], axis=1).astype(np.float32)
    twice = rng.random(len(boxes)) < 0.1
    boxes[twice] = boxes[rng.integers(0, len(boxes), twice.sum())]
    scores = rng.integers(0, score_count, len(boxes)).astype(np.float32) / score_count
    return boxes, scores, groups


def test_padded_equals_torchvision(pairs: int, device: str, full: bool) -> None:
    sizes = [*range(70), 1, 2, 65, 300] + [2, 5, 8] * 20
    for seed, score_count in itertools.product(range(5 if full else 1), (1, 7, 1 << 20)):
        for limit in (0.0, 0.3, 0.5, 0.6, 0.7, 1.0):
            _assert_as_torchvision(_crowd(seed, sizes, score_count), limit, device)


def test_tables_hold_like_sizes_and_bounded_pairs(pairs: int) -> None:
    sizes = sorted([*range(1, 70)] * 5 + [300] * 3)
    parts = [(sizes[part], largest) for part, largest in _size_classes(sizes)]
    assert sorted(size for part, _ in parts for size in part) == sizes
    for part, largest in parts:
        assert max(part) == largest
        assert len(part) == 1 or len(part) * largest**2 <= pairs
        assert min(part) * 2 >= largest or largest <= 32
    if pairs == PAIRS[0]:
        assert [largest for _, largest in parts] == [300, 69, 34, 16]


def test_every_second_box_of_a_long_row_stays(pairs: int, device: str) -> None:
    left = torch.arange(200.0, device=device) * 4
    boxes = torch.stack([left, torch.zeros_like(left), left + 10, torch.full_like(left, 10)], 1)
    scores, group = -left, torch.zeros(200, dtype=torch.int64, device=device)
    assert padded_nms(boxes, scores, group, 0.4).tolist() == list(range(0, 200, 2))
    twice = boxes.repeat(2, 1), scores.repeat(2), torch.cat([group + 9, group - 9])
    assert padded_nms(*twice, 0.4).tolist() == [*range(200, 400, 2), *range(0, 200, 2)]


@pytest.mark.parametrize("tenths", range(1, 10))
def test_at_the_limit(tenths: int, pairs: int, device: str) -> None:
    """6 / 10 in float32 is above the 0.6 of float64, 7 / 10 is below its 0.7: the CPU kernel tells them apart."""
    boxes = np.array([[0, 0, 10, 1], [0, 0, tenths, 1]], dtype=np.float32)
    arrays = boxes, np.array([1, 0.5], dtype=np.float32), np.zeros(2, dtype=np.int64)
    _assert_as_torchvision(arrays, tenths / 10, device)


def test_boxes_without_area_stay(device: str) -> None:
    """0 / 0 suppresses nothing, even identical boxes."""
    boxes, scores = torch.ones((40, 4), device=device), torch.ones(40, device=device)
    group = torch.zeros(40, dtype=torch.int64, device=device)
    assert padded_nms(boxes, scores, group, 0.0).tolist() == list(range(40))


SIDE = st.integers(0, 6)
BOX = st.tuples(SIDE, SIDE, SIDE, SIDE, st.integers(0, 3), st.integers(-2, 3))


@given(rows=st.lists(BOX, max_size=60), limit=st.sampled_from([0.0, 0.25, 1 / 3, 0.5, 0.6, 0.7]))
def test_padded_equals_torchvision_on_a_grid(rows: list[tuple[int, ...]], limit: float, device: str) -> None:
    table = np.array(rows, dtype=np.int64).reshape(-1, 6)
    boxes = np.concatenate([table[:, :2], table[:, :2] + table[:, 2:4]], axis=1).astype(np.float32)
    _assert_as_torchvision((boxes, table[:, 4].astype(np.float32), table[:, 5].copy()), limit, device)
