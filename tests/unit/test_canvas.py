"""The packing of pyramids into canvases: every cell of every level comes exactly once."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from facenet_pytorch.models.mtcnn import PNet
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.canvas import Level, pack, pyramid

SIDE = 64


def _cells(length: int) -> int:
    """Cells of P-Net along an axis of `length` pixels, with its pooling that rounds up."""
    return -(-(length - 2) // 2) - 4


def test_pyramid_is_the_references() -> None:
    levels = pyramid(250, 200, 20, 0.709)
    assert [(v.height, v.width) for v in levels][:2] == [(151, 121), (107, 86)]
    assert min(levels[-1].height, levels[-1].width) >= 12
    assert pyramid(19, 300, 20, 0.709) == []  # smaller than the smallest face


@given(st.lists(st.tuples(st.integers(13, 150), st.integers(13, 150)), max_size=6))
@settings(deadline=None, max_examples=60)
def test_every_cell_comes_once_and_tiles_do_not_overlap(sizes: list[tuple[int, int]]) -> None:
    packing = pack([[Level(1.0, h, w)] for h, w in sizes], SIDE)
    seen = [np.zeros((_cells(h), _cells(w)), dtype=int) for h, w in sizes]
    for canvas, row, column in np.argwhere(packing.cell_tile >= 0):
        tile = packing.cell_tile[canvas, row, column]
        y, x = packing.origin[tile] + (row, column)
        seen[packing.image[tile]][y, x] += 1
    assert all((cells == 1).all() for cells in seen)
    covered = np.zeros((packing.canvases, SIDE, SIDE), dtype=int)
    for t in packing.tiles:
        covered[t.canvas, t.canvas_y : t.canvas_y + t.height, t.canvas_x : t.canvas_x + t.width] += 1
    assert covered.max(initial=0) <= 1


def test_no_images_need_no_canvas() -> None:
    assert pack([], SIDE).canvases == 0
    assert pack([[], []], SIDE).canvases == 0


@pytest.mark.parametrize("size", [(40, 41), (41, 40), (13, 64), (150, 99)])
def test_cells_equal_the_network_on_the_level_alone(size: tuple[int, int]) -> None:
    """Random weights: what must not matter is where a level lies and what lies beside it."""
    from pipeline.models.mtcnn import CanvasPNet

    torch.manual_seed(0)
    reference = PNet(pretrained=False).eval()
    ours = CanvasPNet().eval()
    ours.net.load_state_dict(reference.state_dict())
    level = torch.randn(3, *size)
    packing = pack([[Level(1.0, 33, 21)], [Level(1.0, *size)], [Level(1.0, 19, 35)]], SIDE)
    canvases = torch.randn(packing.canvases, 3, SIDE, SIDE) * 100
    for t in packing.tiles:
        if t.image == 1:
            part = level[:, t.y : t.y + t.height, t.x : t.x + t.width]
            canvases[t.canvas, :, t.canvas_y : t.canvas_y + t.height, t.canvas_x : t.canvas_x + t.width] = part
    with torch.inference_mode():
        found, _ = ours(
            canvases, torch.from_numpy(packing.inside)[:, None], torch.from_numpy(packing.pooled_inside)[:, None]
        )
        _, expected = reference(level[None])
    got = torch.full(expected.shape[2:], torch.nan)
    for canvas, row, column in np.argwhere(packing.image[packing.cell_tile] == 1):
        if packing.cell_tile[canvas, row, column] >= 0:
            y, x = packing.origin[packing.cell_tile[canvas, row, column]] + (row, column)
            got[y, x] = found[canvas, row, column]
    assert torch.allclose(got, expected[0, 1], atol=1e-5)
