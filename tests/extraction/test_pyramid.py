"""The packing of pyramids into canvases: every cell of every level comes exactly once."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import interpolate

from pipeline.extraction.detection.pyramid import CanvasMaps, Level, TilePixels, TileTable, pack, pyramid
from pipeline.extraction.images.batch import ImageBatch

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
    tiles = TileTable(packing, CPU)
    # In parts, as the network takes them.
    parts = [CanvasMaps(tiles, k, min(k + 3, packing.canvases)).cells() for k in range(0, packing.canvases, 3)]
    cells = torch.cat([tiles.image.new_empty(0, SIDE // 2 - 5, SIDE // 2 - 5), *parts])
    seen = [np.zeros((_cells(h), _cells(w)), dtype=int) for h, w in sizes]
    assert len(cells) == packing.canvases
    canvas, row, column = (cells >= 0).nonzero().unbind(1)
    tile = cells[canvas, row, column]
    first_row, first_column = tiles.origin(tile)
    for image, y, x in zip(
        tiles.image[tile].tolist(), (first_row + row).tolist(), (first_column + column).tolist(), strict=True
    ):
        seen[image][y, x] += 1
    assert all((cells == 1).all() for cells in seen)
    covered = np.zeros((packing.canvases, SIDE, SIDE), dtype=int)
    for t in packing.tiles:
        covered[t.canvas, t.canvas_y : t.canvas_y + t.height, t.canvas_x : t.canvas_x + t.width] += 1
    assert covered.max(initial=0) <= 1


def test_no_images_need_no_canvas() -> None:
    assert pack([], SIDE).canvases == 0
    assert pack([[], []], SIDE).canvases == 0


def test_painted_levels_equal_torchs_area_resampling(device: str) -> None:
    """Shrunk, enlarged and unchanged, in one tile and in many, of images of any sizes; black between them."""
    rng = np.random.default_rng(0)
    images = [rng.integers(0, 256, (h, w, 3), dtype=np.uint8) for h, w in ((40, 50), (31, 17), (90, 200), (1, 1))]
    levels = [
        [Level(0.6, 24, 30), Level(0.4, 17, 13)],
        [Level(1.0, 31, 17), Level(1.0, 13, 15)],
        [Level(1.0, 90, 200), Level(0.6, 55, 121), Level(0.1, 12, 21)],
        [],
    ]
    packing = pack(levels, SIDE)
    tiles, tables = TileTable(packing, torch.device(device)), ImageBatch(images, device).tables
    pixels = TilePixels(tiles, tables)
    halves = [pixels.paint(CanvasMaps(tiles, *part)).cpu() for part in ((0, 2), (2, packing.canvases))]
    canvases = torch.cat(halves)
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
        assert torch.allclose(canvases[place], expected[:, t.y : t.y + t.height, t.x : t.x + t.width], atol=1e-3)
        canvases[place] = 0
    assert not canvases.any()
