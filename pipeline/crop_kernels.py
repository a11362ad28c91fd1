"""The compiled loops of R- and O-Net on the CPU: the layers before the dense ones, for 16 crops at a time.

The crops are small, so their rows are too short for vector instructions; here the same pixel of 16 crops lies side by
side, and a row of pixels is one long row of numbers. Arrays are [rows, channels, (pixels + 1) * 16] float32: behind
each row there is room for one pixel more. Of a layer that is pooled only three rows are kept.

Importing this module needs numba and compiles, or loads what an earlier process compiled. All that is inlined stays in
this file: numba's cache knows when it changes, but not when another does.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from pipeline.compiled import compiled

LANES: Final = 16
_FUSED: Final[dict[str, Any]] = {"fastmath": {"contract"}, "error_model": "numpy"}
_LAYER: Final = "Tuple((f4[:,:,:,::1], f4[::1], f4[::1]))"


@compiled(**_FUSED)
def _side_by_side(crops: Any) -> Any:
    """At most 16 crops [n, 3, size, size] in [0, 255], normalised as `models.mtcnn.normalise` does."""
    _, channels, height, width = crops.shape
    out = np.zeros((height, channels, (width + 1) * LANES), np.float32)
    for n in range(len(crops)):
        for y in range(height):
            for channel in range(channels):
                for x in range(width):
                    value = (crops[n, channel, y, x] - np.float32(127.5)) * np.float32(0.0078125)
                    out[y, channel, x * LANES + n] = value
    return out


@compiled(**_FUSED)
def _convolve_row(x: Any, y: int, layer: Any, count: int, out: Any) -> None:
    """Row y of a convolution of the rows `x`, and its PReLU: fills `out` [o, >= count], o a multiple of 4.

    `layer`: weights [o, c, k, 3], bias [o] and slope [o]. Four output channels at a time share what is read.
    """
    weights, bias, slope = layer
    for o in range(0, len(bias), 4):
        a, b, c, d = out[o], out[o + 1], out[o + 2], out[o + 3]
        for i in range(count):
            a[i], b[i], c[i], d[i] = bias[o], bias[o + 1], bias[o + 2], bias[o + 3]
        for channel in range(weights.shape[1]):
            for k in range(weights.shape[2]):
                wa, wb = weights[o, channel, k], weights[o + 1, channel, k]
                wc, wd = weights[o + 2, channel, k], weights[o + 3, channel, k]
                a0, a1, a2, b0, b1, b2 = wa[0], wa[1], wa[2], wb[0], wb[1], wb[2]
                c0, c1, c2, d0, d1, d2 = wc[0], wc[1], wc[2], wd[0], wd[1], wd[2]
                row = x[y + k, channel]
                for i in range(count):
                    left, centre, right = row[i], row[i + LANES], row[i + 2 * LANES]
                    a[i] += a0 * left + a1 * centre + a2 * right
                    b[i] += b0 * left + b1 * centre + b2 * right
                    c[i] += c0 * left + c1 * centre + c2 * right
                    d[i] += d0 * left + d1 * centre + d2 * right
        for j in range(4):
            row = out[o + j]
            for i in range(count):
                row[i] = row[i] if row[i] > 0 else slope[o + j] * row[i]


@compiled(**_FUSED)
def _convolve(x: Any, layer: Any) -> Any:
    weights, bias, _ = layer
    k = weights.shape[2]
    rows, width = len(x) - k + 1, x.shape[2] // LANES - k
    out = np.zeros((rows, len(bias), (width + 1) * LANES), np.float32)
    for y in range(rows):
        _convolve_row(x, y, layer, width * LANES, out[y])
    return out


@compiled(**_FUSED)
def _pool_row(upper: Any, middle: Any, lower: Any, side: int, width: int, out: Any) -> None:
    """The largest of three rows and `side` pixels, for every second pixel: fills the first `width` pixels of `out`."""
    for channel in range(len(out)):
        top, centre, bottom, row = upper[channel], middle[channel], lower[channel], out[channel]
        for x in range(width):
            at = 2 * x * LANES
            for i in range(LANES):
                row[x * LANES + i] = max(max(top[at + i], centre[at + i]), bottom[at + i])
            for _ in range(1, side):
                at += LANES
                for i in range(LANES):
                    most = max(max(top[at + i], centre[at + i]), bottom[at + i])
                    row[x * LANES + i] = max(row[x * LANES + i], most)


@compiled(**_FUSED)
def _convolve_and_pool(x: Any, layer: Any, side: int) -> Any:
    """A convolution, and the largest of each side x side of its answers, 2 apart; what is cut off at the end counts."""
    channels = len(layer[1])
    rows, width = len(x) - 2, x.shape[2] // LANES - 3
    pooled_rows, pooled_width = (rows - side + 1) // 2 + 1, (width - side + 1) // 2 + 1
    last_rows = np.full((3, channels, (width + 1) * LANES), -np.inf, np.float32)  # row y at y % 3
    out = np.zeros((pooled_rows, channels, (pooled_width + 1) * LANES), np.float32)
    made = 0
    for y in range(pooled_rows):
        last = min(2 * y + side, rows) - 1
        while made <= last:
            _convolve_row(x, made, layer, width * LANES, last_rows[made % 3])
            made += 1
        upper, middle, lower = last_rows[2 * y % 3], last_rows[min(2 * y + 1, last) % 3], last_rows[last % 3]
        _pool_row(upper, middle, lower, side, pooled_width, out[y])
    return out


@compiled(**_FUSED)
def _write_features(x: Any, out: Any) -> None:
    """The numbers of each crop, by column, row and channel, as the dense layers count them: fills `out` [n, f]."""
    rows, channels, width = len(x), x.shape[1], x.shape[2] // LANES - 1
    for n in range(len(out)):
        for column in range(width):
            for y in range(rows):
                at = (column * rows + y) * channels
                for channel in range(channels):
                    out[n, at + channel] = x[y, channel, column * LANES + n]


@compiled(f"void(f4[:,:,:,::1], {_LAYER}, {_LAYER}, {_LAYER}, f4[:,::1])", **_FUSED)
def rnet_features(crops: Any, layer1: Any, layer2: Any, layer3: Any, out: Any) -> None:
    """R-Net up to its first dense layer: crops [n, 3, 24, 24] in [0, 255] -> `out` [n, 576]."""
    for start in range(0, len(crops), LANES):
        x = _convolve_and_pool(_side_by_side(crops[start : start + LANES]), layer1, 3)
        x = _convolve(_convolve_and_pool(x, layer2, 3), layer3)
        _write_features(x, out[start : start + LANES])


@compiled(f"void(f4[:,:,:,::1], {_LAYER}, {_LAYER}, {_LAYER}, {_LAYER}, f4[:,::1])", **_FUSED)
def onet_features(crops: Any, layer1: Any, layer2: Any, layer3: Any, layer4: Any, out: Any) -> None:
    """O-Net up to its first dense layer: crops [n, 3, 48, 48] in [0, 255] -> `out` [n, 1152]."""
    for start in range(0, len(crops), LANES):
        x = _convolve_and_pool(_side_by_side(crops[start : start + LANES]), layer1, 3)
        x = _convolve_and_pool(_convolve_and_pool(x, layer2, 3), layer3, 2)
        _write_features(_convolve(x, layer4), out[start : start + LANES])
