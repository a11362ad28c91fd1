"""The networks' weights in the compiled loops' form and order."""

from __future__ import annotations

from typing import Final

import numpy as np

from pipeline.types import FloatArray

OUTPUTS: Final = 4  # output channels at a time


def packed_layer(weight: FloatArray, bias: FloatArray, slope: FloatArray) -> FloatArray:
    """A 3 x 3 or 2 x 2 convolution and its PReLU: [o / 4, 8 + 4 * c * k * 4] float32, o padded to a multiple of 4.

    Per 4 outputs: biases, slopes, and weights of Winograd's four products of rows (`row_convolutions`), by input
    channel and column. A third row of zeros completes 2 x 2.
    """
    weights = weight.astype(np.float64)
    outputs, channels, rows, columns = weights.shape
    missing = -outputs % OUTPUTS
    padded = np.pad(weights, [(0, missing), (0, 0), (0, 3 - rows), (0, 0)])
    upper, middle, lower = padded[:, :, 0], padded[:, :, 1], padded[:, :, 2]
    products = np.stack([(upper + middle + lower) / 2, (upper - middle + lower) / 2, upper, lower], axis=1)
    by_four = products.reshape(-1, OUTPUTS, 4, channels, columns).transpose(0, 2, 3, 4, 1)
    ends = (np.pad(p, (0, missing)).reshape(-1, OUTPUTS) for p in (bias, slope))
    return np.concatenate([*ends, by_four.reshape(len(by_four), -1)], axis=1).astype(np.float32)
