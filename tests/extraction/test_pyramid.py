"""The packing of pyramids into canvases: every cell of every level comes exactly once."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import interpolate

from pipeline.config import DetectSettings
from pipeline.extraction.detection.canvases import TileTable, normalise, pack, paint_by_torch
from pipeline.extraction.detection.pyramid import CELL, STRIDE, Level, most_overlap, pyramid
from pipeline.extraction.images.torch_batch import TorchBatch

SIDE = 64
CPU = torch.device("cpu")


def _cells(length: int) -> int:
    """Cells of P-Net along an axis of `length` pixels, with its pooling that rounds up."""
    return -(-(length - 2) // 2) - 4


def test_pyramid_equals_the_references() -> None:
    levels = pyramid(250, 200, 20, 0.709)
    assert [(v.height, v.width) for v in levels][:2] == [(151, 121), (107, 86)]
    assert min(levels[-1].height, levels[-1].width) >= 12
    assert pyramid(19, 300, 20, 0.709) == []  # smaller than the smallest face


@given(st.lists(st.tuples(st.integers(13, 150), st.integers(13, 150)), max_size=6))
def test_every_cell_comes_once_and_tiles_do_not_overlap(sizes: list[tuple[int, int]]) -> None:
    packing = pack([[Level(1.0, h, w)] for h, w in sizes], SIDE)
    batch = TorchBatch([np.zeros((1, 1, 3), np.uint8)] * len(sizes))
    cells = paint_by_torch(batch, packing, packing.canvases + 1).cells
    seen = [np.zeros((_cells(h), _cells(w)), dtype=int) for h, w in sizes]
    assert len(cells) == packing.canvases + 1
    assert (cells[-1] == -1).all()
    canvas, y, x = (cells >= 0).nonzero().unbind(1)
    places = TileTable(packing, CPU).places(cells[canvas, y, x], y, x)
    for image, level, row, column in torch.stack(places, dim=1).tolist():
        assert level == 0
        seen[image][row, column] += 1
    assert all((cells == 1).all() for cells in seen)
    covered = np.zeros((packing.canvases, SIDE, SIDE), dtype=int)
    for t in packing.tiles:
        covered[t.canvas, t.canvas_y : t.canvas_y + t.height, t.canvas_x : t.canvas_x + t.width] += 1
    assert covered.max(initial=0) <= 1


def test_no_images_need_no_canvas() -> None:
    assert pack([], SIDE).canvases == 0
    assert pack([[], []], SIDE).canvases == 0


@given(st.integers(12, 200), st.floats(0.5, 0.9), st.integers(0, 60), st.integers(0, 8))
def test_boxes_of_two_levels_overlap_by_no_more_than_the_bound(
    min_face_px: int, factor: float, cell: int, shift: int
) -> None:
    """Of two neighbouring levels, the cells that lie nearest each other, as the cascade makes boxes of them."""
    scales = torch.tensor([CELL / min_face_px, CELL / min_face_px * factor], dtype=torch.float32)
    cells = torch.tensor([cell, max(0, int(cell * factor) + shift - 4)]) * STRIDE
    first, last = ((cells + 1) / scales).floor(), ((cells + CELL) / scales).floor()
    overlap = (last.min() - first.max()).clamp(min=0) ** 2
    assert overlap / (((last - first) ** 2).sum() - overlap) <= most_overlap(min_face_px, factor)


def test_with_the_default_factor_no_box_drops_one_of_another_level() -> None:
    assert all(most_overlap(side, DetectSettings().factor) < 0.7 for side in range(CELL, 1000))
    assert most_overlap(20, 0.8) > 0.7


def test_painted_levels_equal_torchs_area_resampling(device: str) -> None:
    """Shrunk, enlarged and unchanged, in one tile and in many, of images of any sizes; zeros between them."""
    rng = np.random.default_rng(0)
    images = [rng.integers(0, 256, (h, w, 3), dtype=np.uint8) for h, w in ((40, 50), (31, 17), (90, 200), (1, 1))]
    levels = [
        [Level(0.6, 24, 30), Level(0.4, 17, 13)],
        [Level(1.0, 31, 17), Level(1.0, 13, 15)],
        [Level(1.0, 90, 200), Level(0.6, 55, 121), Level(0.1, 12, 21)],
        [],
    ]
    packing = pack(levels, SIDE)
    canvases = paint_by_torch(TorchBatch(images, device), packing, packing.canvases).pixels.cpu()
    assert len(canvases) == packing.canvases > 4
    for t in packing.tiles:
        level = levels[t.image][t.level]
        planes = torch.from_numpy(images[t.image]).permute(2, 0, 1)[None].float()
        expected = interpolate(planes, size=(level.height, level.width), mode="area")[0]
        place = (
            t.canvas,
            slice(None),
            slice(t.canvas_y, t.canvas_y + t.height),
            slice(t.canvas_x, t.canvas_x + t.width),
        )
        expected = normalise(expected[:, t.y : t.y + t.height, t.x : t.x + t.width])
        torch.testing.assert_close(canvases[place], expected, rtol=0, atol=1e-5)
        canvases[place] = 0
    assert not canvases.any()
