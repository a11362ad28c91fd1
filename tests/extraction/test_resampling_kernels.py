"""The compiled averages along rows against NumPy's."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("numba")

from pipeline.extraction.images.resampling_kernels import average_row, bins, scratch_room


@pytest.mark.parametrize("width", [1, 2, 3, 40])
def test_rows_are_averaged_as_numpy_does(width: int) -> None:
    """Every number of rows that can be added up at once, and a rectangle that ends with the picture."""
    pixels = np.random.default_rng(width).integers(0, 256, (12, width + 2, 3), dtype=np.uint8)
    left, right, widths = np.empty(2, np.int64), np.empty(2, np.int64), np.empty(2, np.float32)
    bins(width, left, right, widths)
    out, scratch = np.empty((3, 5), np.float32), np.zeros(scratch_room(width), np.int32)
    for last in range(1, 13):
        average_row(pixels.reshape(12, -1), 2, width + 2, 0, last, left, right, widths, scratch, out)
        parts = [pixels[:last, 2 + a : 2 + b] for a, b in zip(left, right, strict=True)]
        assert np.allclose(out[:, :2].T, [part.reshape(-1, 3).mean(0) for part in parts], rtol=1e-6)


def test_sums_may_wrap_around() -> None:
    white = np.full((3000, 3 * 3000), 255, np.uint8)  # the sum is 2.3e9: over 2^31
    left, right, widths = np.empty(24, np.int64), np.empty(24, np.int64), np.empty(24, np.float32)
    bins(3000, left, right, widths)
    out = np.empty((3, 24), np.float32)
    average_row(white, 0, 3000, 0, 3000, left, right, widths, np.zeros(scratch_room(3000), np.int32), out)
    assert (out == 255).all()
