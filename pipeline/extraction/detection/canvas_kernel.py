"""The Triton kernel that paints P-Net's canvases on CUDA. Needs Triton."""

from __future__ import annotations

from bisect import bisect_left

import torch
import triton
import triton.language as tl

from pipeline.extraction.detection.canvases import Canvases, TileTable, pack, paint_by_torch
from pipeline.extraction.detection.pyramid import Level
from pipeline.extraction.images.torch_batch import TorchBatch
from pipeline.extraction.images.triton_kernels import EXACT, PIXELS, TAPS, area_edges, averages, sample_pictures


@triton.jit(do_not_specialize=["begin", "first"])
def _paint(
    pixels, bases, sizes, tiles, begin, first, out, inside, pool, cells, side, PIXELS: tl.constexpr, TAPS: tl.constexpr
):
    """Program (k, b): the b-th PIXELS of the k-th tile from `begin` on. `tiles` int64 is `TileTable.table`."""
    number = begin + tl.program_id(0).to(tl.int64)
    tile = tiles + 11 * number
    height, width = tl.load(tile + 4).to(tl.int32), tl.load(tile + 5).to(tl.int32)
    place = tl.program_id(1) * PIXELS + tl.arange(0, PIXELS)
    if tl.program_id(1) * PIXELS >= height * width:
        return
    wanted = place < height * width
    place = tl.minimum(place, height * width - 1)
    row, column = place // width, place % width
    image = tl.load(tile)
    image_width = tl.load(sizes + 2 * image + 1)
    top, bottom = area_edges(tl.load(tile + 2), row, tl.load(sizes + 2 * image), tl.load(tile + 9))
    left, right = area_edges(tl.load(tile + 3), column, image_width, tl.load(tile + 10))
    corner = pixels + 3 * tl.load(bases + image)
    red, green, blue = averages(corner, image_width, top, bottom, left, right, 1, False, TAPS)
    # As `canvases.normalise`.
    canvas, y, x = tl.load(tile + 6) - first, tl.load(tile + 7) + row, tl.load(tile + 8) + column
    at = out + (3 * canvas * side + y) * side + x
    tl.store(at, (red - 127.5) * 0.0078125, mask=wanted)
    tl.store(at + side * side, (green - 127.5) * 0.0078125, mask=wanted)
    tl.store(at + 2 * side * side, (blue - 127.5) * 0.0078125, mask=wanted)
    # What depends on this tile alone: see `canvases.Canvases`.
    edge, half, cell = side - 2, side // 2 - 1, side // 2 - 5
    shown = wanted & (row < height - 2) & (column < width - 2)
    tl.store(inside + (canvas * edge + y) * edge + x, shown, mask=shown)
    rows, columns = (height - 1) // 2, (width - 1) // 2
    even = wanted & (row % 2 == 0) & (column % 2 == 0)
    shown = even & (row // 2 < rows) & (column // 2 < columns)
    tl.store(pool + (canvas * half + y // 2) * half + x // 2, shown, mask=shown)
    shown = even & (row // 2 < rows - 4) & (column // 2 < columns - 4)
    tl.store(cells + (canvas * cell + y // 2) * cell + x // 2, number, mask=shown)


def paint(batch: TorchBatch, tiles: TileTable, first: int, end: int) -> Canvases:
    """The canvases first .. end - 1 of a packing, in one launch."""
    canvases = Canvases.empty(end - first, tiles.side, batch.device)
    begin, stop = bisect_left(tiles.canvases, first), bisect_left(tiles.canvases, end)
    grid = (stop - begin, triton.cdiv(max(tiles.areas[begin:stop], default=0), PIXELS))
    with torch.cuda.device_of(batch.pixels):
        _paint[grid](
            *(batch.pixels, batch.bases, batch.sizes, tiles.table, begin, first),
            *(canvases.pixels, canvases.inside, canvases.pooled_inside, canvases.cells),
            *(tiles.side, PIXELS, TAPS),
            **EXACT,
        )
    return canvases


def self_check(device: torch.device) -> str | None:
    """How canvases of small pictures differ from torch's on the CPU, or None."""
    pictures = sample_pictures()
    packing = pack([[Level(0.9, 75, 88), Level(0.2, 17, 20), Level(1.3, 109, 127)], [Level(0.8, 33, 13)]], 64)
    batch, tiles = TorchBatch(pictures, device), TileTable(packing, device)
    middle = packing.canvases // 2
    expected = paint_by_torch(TorchBatch(pictures), packing, packing.canvases)
    for first, end in ((0, middle), (middle, packing.canvases)):
        ours, theirs = paint(batch, tiles, first, end), expected[first:end]
        for name, tensor in vars(ours).items():
            differ = (tensor.cpu() != getattr(theirs, name)).sum().item()
            if differ:
                return f"{differ} of the canvases' {name} differ"
    return None
