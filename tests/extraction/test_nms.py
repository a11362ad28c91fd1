"""Suppression in groups, on every path, against the plain greedy loop and torchvision."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import nullcontext
from types import ModuleType

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torchvision.ops import nms as torchvision_nms

from pipeline.extraction.detection import torch_nms
from pipeline.extraction.detection.cascade import suppress
from tests.extraction.helpers import interpreted

Arrays = tuple[np.ndarray, np.ndarray, np.ndarray]


@pytest.fixture(scope="module")
def kernel(device: str) -> Iterator[ModuleType]:
    """The kernel; on the CPU in Triton's interpreter."""
    module = pytest.importorskip("pipeline.extraction.detection.suppression_kernel", exc_type=ImportError)
    with interpreted(module) if device == "cpu" else nullcontext():
        yield module


@pytest.fixture(scope="module", params=["host", "kernel", "loop"])
def path(request: pytest.FixtureRequest) -> Iterator[None]:
    """Suppression by torchvision on the host, in the kernel, and of NumPy's arrays in the compiled loop."""
    found = request.getfixturevalue("kernel") if request.param == "kernel" else None
    if request.param == "loop":
        pytest.importorskip("pipeline.extraction.detection.network_kernels", exc_type=ImportError)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch_nms, "load_kernel", lambda _: found)
        patch.setitem(globals(), "LOOP", request.param == "loop")
        yield


LOOP = False


pytestmark = pytest.mark.usefixtures("path")


def _kept(arrays: Arrays, count: int, limit: float, of_smaller: bool, device: str) -> list[int]:
    """The positions that stay, in order of group and falling score."""
    boxes, scores, groups = (a if LOOP else torch.from_numpy(a).to(device) for a in arrays)
    order, kept = suppress(boxes, scores, groups, count, limit, of_smaller)
    assert (order.dtype, kept.dtype) == ((np.int64, np.bool_) if LOOP else (torch.int64, torch.bool))
    assert order.tolist() == np.lexsort((-arrays[1], arrays[2])).tolist()  # stable
    return order[kept].tolist()


def _greedy(arrays: Arrays, count: int, limit: float, of_smaller: bool) -> list[int]:
    boxes, scores, groups = arrays
    extra = np.float32(of_smaller)
    area = (boxes[:, 2:] - boxes[:, :2] + extra).prod(1)
    kept: list[int] = []
    for i in np.lexsort((-scores, groups)):
        for j in kept:
            wh = np.clip(
                np.minimum(boxes[i, 2:], boxes[j, 2:]) - np.maximum(boxes[i, :2], boxes[j, :2]) + extra, 0, None
            )
            total = min(area[i], area[j]) if of_smaller else area[i] + area[j] - wh.prod()
            if groups[i] == groups[j] and wh.prod() > limit * total:
                break
        else:
            kept += [int(i)] * bool(groups[i] < count)
    return kept


def _torchvision(arrays: Arrays, count: int, limit: float) -> list[int]:
    """Group by group, on the CPU."""
    boxes, scores = (torch.from_numpy(a) for a in arrays[:2])
    kept: list[int] = []
    for group in range(count):
        of_group = torch.from_numpy(arrays[2] == group).nonzero()[:, 0]
        kept += of_group[torchvision_nms(boxes[of_group], scores[of_group], limit)].tolist()
    return kept


def _crowd(seed: int, sizes: list[int], score_count: int) -> Arrays:
    """Groups of these sizes, mixed; some boxes without area, some twice, scores tied."""
    rng = np.random.default_rng(seed)
    groups = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
    low, sides = rng.uniform(-20, 80, (len(groups), 2)), rng.uniform(5, 60, (len(groups), 2))
    sides[rng.random(sides.shape) < 0.02] = 0
    boxes = np.concatenate([low, low + sides], axis=1).astype(np.float32)
    twice = rng.random(len(boxes)) < 0.1
    boxes[twice] = boxes[rng.integers(0, len(boxes), twice.sum())]
    scores = rng.integers(0, score_count, len(boxes)).astype(np.float32) / score_count
    return boxes, scores, groups


@pytest.mark.parametrize(("limit", "of_smaller"), [(0.5, False), (0.7, True)])
def test_equals_the_greedy_loop(limit: float, of_smaller: bool, device: str, full: bool) -> None:
    for seed, score_count in itertools.product(range(10 if full else 2), (7, 1 << 20)):
        crowd = _crowd(seed, [40, 0, 1, 2, 150, 3, 20], score_count)
        assert _kept(crowd, 6, limit, of_smaller, device) == _greedy(crowd, 6, limit, of_smaller)


@pytest.mark.slow
def test_equals_torchvision(device: str, full: bool) -> None:
    """Group sizes around those of the kernel's blocks. The last group is out already."""
    sizes = [0, 1, 2, 5, 63, 64, 65, 0, 127, 129, 300, 40]
    limits = (0.0, 0.3, 0.5, 0.6, 0.7, 1.0)
    for seed, (number, score_count) in itertools.product(range(5 if full else 1), enumerate((1, 7, 1 << 20))):
        crowd = _crowd(seed, sizes, score_count)
        for limit in limits if full else limits[number::3]:
            kept = _kept(crowd, len(sizes) - 1, limit, False, device)
            assert kept == _torchvision(crowd, len(sizes) - 1, limit)


@pytest.mark.parametrize("of_smaller", [False, True])
@pytest.mark.parametrize("count", [0, 3])
def test_none(count: int, of_smaller: bool, device: str) -> None:
    none = np.zeros((0, 4), np.float32), np.zeros(0, np.float32), np.zeros(0, np.int64)
    assert _kept(none, count, 0.5, of_smaller, device) == []


def test_boxes_that_are_out_drop_none_and_do_not_stay(device: str) -> None:
    boxes = np.tile(np.array([0, 0, 9, 9], np.float32), (5, 1))
    arrays = boxes, np.array([0.9, 0.8, 0.7, 0.6, 0.5], np.float32), np.array([2, 1, 0, 1, 2])
    assert _kept(arrays, 2, 0.5, False, device) == _kept(arrays, 2, 0.5, True, device) == [2, 1]


def test_every_second_box_of_a_long_row_stays(device: str) -> None:
    """Whether a box stays depends on all before it."""
    left = np.arange(200) * 4
    boxes = np.stack([left, left * 0, left + 10, left * 0 + 10], axis=1).astype(np.float32)
    row = boxes, (200 - np.arange(200)).astype(np.float32), np.zeros(200, np.int64)
    assert _kept(row, 1, 0.4, False, device) == list(range(0, 200, 2))
    twice = np.tile(boxes, (2, 1)), np.tile(row[1], 2), np.repeat([1, 0], 200)
    assert _kept(twice, 2, 0.4, False, device) == [*range(200, 400, 2), *range(0, 200, 2)]


@pytest.mark.parametrize("tenths", range(1, 10))
def test_at_the_limit(tenths: int, device: str) -> None:
    """6 / 10 in float32 is above the 0.6 of float64, 7 / 10 is below its 0.7: the CPU kernel tells them apart."""
    boxes = np.array([[0, 0, 10, 1], [0, 0, tenths, 1]], dtype=np.float32)
    arrays = boxes, np.array([1, 0.5], dtype=np.float32), np.zeros(2, dtype=np.int64)
    assert _kept(arrays, 1, tenths / 10, False, device) == _torchvision(arrays, 1, tenths / 10)


def test_boxes_without_area_stay(device: str) -> None:
    """0 / 0 suppresses nothing, even identical boxes."""
    arrays = np.ones((70, 4), np.float32), np.ones(70, np.float32), np.zeros(70, np.int64)
    assert _kept(arrays, 1, 0.0, False, device) == list(range(70))


SIDE = st.integers(0, 6)
BOX = st.tuples(SIDE, SIDE, SIDE, SIDE, st.integers(0, 3), st.integers(0, 4))


@given(rows=st.lists(BOX, max_size=60), limit=st.sampled_from([0.0, 0.25, 1 / 3, 0.5, 0.6, 0.7]))
def test_equals_torchvision_on_a_grid(rows: list[tuple[int, ...]], limit: float, device: str) -> None:
    table = np.array(rows, dtype=np.int64).reshape(-1, 6)
    boxes = np.concatenate([table[:, :2], table[:, :2] + table[:, 2:4]], axis=1).astype(np.float32)
    arrays = boxes, table[:, 4].astype(np.float32), table[:, 5].copy()
    assert _kept(arrays, 4, limit, False, device) == _torchvision(arrays, 4, limit)
