"""The compiled loops of R- and O-Net on the CPU: the layers before the dense ones, for 8 crops at a time.

The rows of such small crops are too short for vector instructions, so the same pixel of up to 8 crops lies side by
side, and a row of pixels is one long row of numbers. Arrays are [rows, channels, n] float32, n a row of pixels and the
room behind it that `row_convolutions` asks for. Of a layer that is pooled only four rows are kept.

Importing this module needs numba; it compiles, or loads what an earlier process compiled.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from pipeline.extraction.detection import packed_layers, row_convolutions
from pipeline.extraction.detection.packed_layers import OUTPUTS
from pipeline.extraction.detection.row_convolutions import convolve_pair, four_products, row_room
from pipeline.runtime import vector_code
from pipeline.runtime.compiled import FUSED, compiled

_LANES: Final = 8  # one vector
_INLINED: Final = (vector_code, packed_layers, row_convolutions)


@compiled(**FUSED)
def _side_by_side(crops: Any) -> Any:
    """Crops [n, 3, size, size] in [0, 255], normalised as `networks.normalise` does."""
    lanes, channels, height, width = crops.shape
    out = np.zeros((height, channels, row_room(width * lanes)), np.float32)
    for n in range(lanes):
        for y in range(height):
            for channel in range(channels):
                for x in range(width):
                    value = (crops[n, channel, y, x] - np.float32(127.5)) * np.float32(0.0078125)
                    out[y, channel, x * lanes + n] = value
    return out


@compiled(**FUSED)
def _convolve_rows(x: Any, y: int, layer: Any, taps: int, lanes: int, count: int, products: Any, out: Any) -> None:
    """Rows y and y + 1 of a convolution of taps x taps: row k to out[k modulo the rows of `out`], a power of two."""
    last, kept = len(x) - 1, len(out) - 1
    # A 2 x 2 convolution has a third row of zero weights: nothing depends on the last row, and the fourth product is 0.
    four_products(x[y], x[y + 1], x[min(y + 2, last)], x[min(y + 3, last)], products)
    fourth = y + 3 <= last and taps == 3
    convolve_pair(products, layer, taps, lanes, count, out, y & kept, (y + 1) & kept, fourth)


@compiled(**FUSED)
def _convolve(x: Any, layer: Any, width: int, lanes: int) -> Any:
    """A 2 x 2 convolution of rows of `width` pixels."""
    rows, count = len(x) - 1, (width - 1) * lanes
    products = np.empty((4, x.shape[1], x.shape[2]), np.float32)
    out = np.zeros((4, OUTPUTS * len(layer), row_room(count)), np.float32)
    for y in range(0, rows, 2):
        _convolve_rows(x, y, layer, 2, lanes, count, products, out)
    return out[:rows]


@compiled(**FUSED)
def _pool_row(upper: Any, middle: Any, lower: Any, side: int, lanes: int, width: int, highest: Any, out: Any) -> None:
    """The largest value of three rows of `width` pixels and of `side` columns, at every second pixel: a row of `out`.

    `highest` [>= (width + 1) * lanes] is scratch.
    """
    count = width * lanes
    highest[count : count + lanes] = -np.inf  # windows are clipped at the end
    for channel in range(len(out)):
        top, centre, bottom, row = upper[channel], middle[channel], lower[channel], out[channel]
        for i in range(count):
            highest[i] = max(max(top[i], centre[i]), bottom[i])
        for x in range((width - side + 1) // 2 + 1):
            to, left, right = x * lanes, 2 * x * lanes, (2 * x + side - 1) * lanes
            for i in range(lanes):
                row[to + i] = max(max(highest[left + i], highest[left + lanes + i]), highest[right + i])


@compiled(**FUSED)
def _convolve_and_pool(x: Any, layer: Any, width: int, side: int, lanes: int) -> Any:
    """A 3 x 3 convolution of rows of `width` pixels, and the largest of each side x side of its outputs, 2 apart;
    windows that reach over the end are clipped. Returns also the width of the output."""
    channels, rows, width = OUTPUTS * len(layer), len(x) - 2, width - 2
    pooled_rows, pooled_width = (rows - side + 1) // 2 + 1, (width - side + 1) // 2 + 1
    products = np.empty((4, x.shape[1], x.shape[2]), np.float32)
    last_rows = np.zeros((4, channels, row_room(width * lanes)), np.float32)
    highest = np.empty((width + 1) * lanes, np.float32)
    out = np.zeros((pooled_rows, channels, row_room(pooled_width * lanes)), np.float32)
    made = np.int64(0)  # with a plain 0 numba would compile a second version of the functions that take it
    for y in range(pooled_rows):
        last = min(2 * y + side, rows) - 1
        while made <= last:
            _convolve_rows(x, made, layer, 3, lanes, width * lanes, products, last_rows)
            made += 2
        upper, middle, lower = last_rows[2 * y % 4], last_rows[min(2 * y + 1, last) % 4], last_rows[last % 4]
        _pool_row(upper, middle, lower, side, lanes, width, highest, out[y])
    return out, pooled_width


@compiled(**FUSED)
def _write_features(x: Any, width: int, lanes: int, out: Any) -> None:
    """The features of each crop in the dense layers' order: column, row, channel. Fills `out` [n, f]."""
    rows, channels = x.shape[:2]
    for n in range(lanes):
        for column in range(width):
            for y in range(rows):
                at = (column * rows + y) * channels
                for channel in range(channels):
                    out[n, at + channel] = x[y, channel, column * lanes + n]


@compiled("void(f4[:,:,:,::1], f4[:,::1], f4[:,::1], f4[:,::1], f4[:,::1])", inlined=_INLINED, **FUSED)
def rnet_features(crops: Any, layer1: Any, layer2: Any, layer3: Any, out: Any) -> None:
    """R-Net up to its first dense layer: crops [n, 3, 24, 24] in [0, 255] -> `out` [n, 576]."""
    for start in range(0, len(crops), _LANES):
        some = crops[start : start + _LANES]
        lanes = len(some)
        x, width = _convolve_and_pool(_side_by_side(some), layer1, crops.shape[3], 3, lanes)
        x, width = _convolve_and_pool(x, layer2, width, 3, lanes)
        _write_features(_convolve(x, layer3, width, lanes), width - 1, lanes, out[start : start + _LANES])


@compiled("void(f4[:,:,:,::1], f4[:,::1], f4[:,::1], f4[:,::1], f4[:,::1], f4[:,::1])", inlined=_INLINED, **FUSED)
def onet_features(crops: Any, layer1: Any, layer2: Any, layer3: Any, layer4: Any, out: Any) -> None:
    """O-Net up to its first dense layer: crops [n, 3, 48, 48] in [0, 255] -> `out` [n, 1152]."""
    for start in range(0, len(crops), _LANES):
        some = crops[start : start + _LANES]
        lanes = len(some)
        x, width = _convolve_and_pool(_side_by_side(some), layer1, crops.shape[3], 3, lanes)
        x, width = _convolve_and_pool(x, layer2, width, 3, lanes)
        x, width = _convolve_and_pool(x, layer3, width, 2, lanes)
        _write_features(_convolve(x, layer4, width, lanes), width - 1, lanes, out[start : start + _LANES])
