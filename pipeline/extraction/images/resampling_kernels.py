"""The compiled loop of `ImageBatch.smooth_crops` on the CPU: averages over windows that cut through pixels.

Importing this module needs numba and compiles, or loads what an earlier process compiled.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pipeline.runtime.compiled import FUSED, compiled


@compiled(**FUSED)
def _windows(length: int, first: Any, weights: Any) -> None:
    """For each output pixel the source pixel where its window begins, and the shares of this and the following ones.

    first [size] int64, weights [size, taps] float32; each window is max(1, length / size) wide and at least partly
    inside, what is outside is cut off, and the shares add up to 1.
    """
    size = len(first)
    scale = length / size
    half = max(scale, 1.0) / 2
    for i in range(size):
        centre = (i + 0.5) * scale
        start, end = max(centre - half, 0.0), min(centre + half, float(length))
        first[i] = int(start)
        for k in range(weights.shape[1]):
            pixel = first[i] + k
            shared = min(end, pixel + 1.0) - max(start, float(pixel))
            weights[i, k] = max(shared, 0.0) / (end - start)


@compiled(**FUSED)
def _mixed_row(pixels: Any, x0: int, x1: int, y: int, weights: Any, row: Any) -> None:
    """The weighted sum of the rows from y on: `row` [(x1 - x0) * 3] float32; rows of no weight need not exist."""
    for i in range(3 * (x1 - x0)):
        row[i] = 0
    for k in range(len(weights)):
        weight = weights[k]
        if weight > 0:
            source = pixels[y + k, 3 * x0 : 3 * x1]
            for i in range(len(source)):
                row[i] += weight * np.float32(source[i])


@compiled("void(u1[::1], i8[:,::1], i8[::1], i8[::1], i8[:,::1], f4[:,:,:,::1])", **FUSED)
def smooth_crops(flat: Any, sizes: Any, starts: Any, image: Any, boxes: Any, out: Any) -> None:
    """See `ImageBatch.smooth_crops`; arguments as of `detection_kernels.area_crops`."""
    size = out.shape[3]
    first_row, first_column = np.empty(size, np.int64), np.empty(size, np.int64)
    for n in range(len(image)):
        start, height, width = starts[image[n]], sizes[image[n], 0], sizes[image[n], 1]
        pixels = flat[start : start + 3 * height * width].reshape(height, 3 * width)
        x0, y0, x1, y1 = boxes[n]
        down = np.empty((size, (y1 - y0) // size + 3), np.float32)
        across = np.empty((size, (x1 - x0) // size + 3), np.float32)
        _windows(y1 - y0, first_row, down)
        _windows(x1 - x0, first_column, across)
        row = np.zeros(3 * (x1 - x0 + across.shape[1]), np.float32)  # with room for the taps beyond the edge
        for i in range(size):
            _mixed_row(pixels, x0, x1, y0 + first_row[i], down[i], row)
            for j in range(size):
                at = 3 * first_column[j]
                red, green, blue = np.float32(0), np.float32(0), np.float32(0)
                for k in range(across.shape[1]):
                    weight = across[j, k]
                    red += weight * row[at + 3 * k]
                    green += weight * row[at + 3 * k + 1]
                    blue += weight * row[at + 3 * k + 2]
                out[n, 0, i, j], out[n, 1, i, j], out[n, 2, i, j] = red, green, blue
