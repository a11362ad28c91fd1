"""Winograd's pairs of rows against torch's convolution."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from pipeline.extraction.detection.kernels import load_kernels, packed_layer

pytestmark = pytest.mark.skipif(load_kernels(torch.device("cpu")) is None, reason="numba is not installed")


def random_layer(channels: int, outputs: int, side: int) -> nn.Sequential:
    """Slopes of both signs."""
    torch.manual_seed(channels + outputs)
    layer = nn.Sequential(nn.Conv2d(channels, outputs, side), nn.PReLU(outputs)).requires_grad_(False)
    layer[1].weight.uniform_(-1.0, 1.0)
    return layer


def pair(rows: np.ndarray, layer: nn.Sequential, side: int, step: int, fourth: bool) -> np.ndarray:
    """Two output rows [2, o, count] of four rows [4, c, n], each of pixels of `step` numbers."""
    from pipeline.extraction.detection.row_convolutions import convolve_pair, four_products, row_room

    count = rows.shape[2] - (side - 1) * step
    room = np.full((*rows.shape[:2], row_room(rows.shape[2])), 7.0, np.float32)  # any numbers behind a row
    room[:, :, : rows.shape[2]] = rows
    packed, products = packed_layer(layer[0], layer[1]), np.empty_like(room)
    out = np.full((3, 4 * len(packed), row_room(count)), np.nan, np.float32)
    four_products(*room, products)
    convolve_pair(products, packed, side, step, count, out, 2, 0, fourth)
    assert np.isnan(out[1]).all()
    return out[[2, 0], : layer[0].out_channels, :count]


def expected(rows: np.ndarray, layer: nn.Sequential, step: int) -> np.ndarray:
    """[rows, o, count]; every `step`-th number belongs to the same picture."""
    pictures = rows.reshape(len(rows), rows.shape[1], -1, step).transpose(3, 1, 0, 2)
    answers: np.ndarray = layer(torch.from_numpy(pictures.copy())).numpy()
    return answers.transpose(2, 1, 3, 0).reshape(answers.shape[2], answers.shape[1], -1)


@pytest.mark.parametrize("width", [3, 4, 9, 10, 11, 17, 18, 25, 26, 27, 34, 61])
@pytest.mark.parametrize(("channels", "outputs", "step"), [(3, 10, 1), (10, 16, 1), (5, 4, 8), (2, 28, 3)])
def test_pairs_of_rows_equal_the_convolution(width: int, channels: int, outputs: int, step: int) -> None:
    """All ends of a row: complete tiles, and rests of one, two or three vectors."""
    rows = np.random.default_rng(width).standard_normal((4, channels, width * step), dtype=np.float32)
    layer = random_layer(channels, outputs, 3)
    assert np.abs(pair(rows, layer, 3, step, True) - expected(rows, layer, step)).max() <= 2e-6


def test_an_upper_row_alone_does_not_look_at_the_fourth() -> None:
    rows = np.random.default_rng(0).standard_normal((4, 6, 20), dtype=np.float32)
    layer, right = random_layer(6, 8, 3), pair(rows, random_layer(6, 8, 3), 3, 1, True)
    rows[3] = np.nan
    assert np.array_equal(pair(rows, layer, 3, 1, False)[0], right[0])


def test_two_rows_of_weights_need_three_products() -> None:
    rows = np.random.default_rng(0).standard_normal((4, 48, 32), dtype=np.float32)
    layer = random_layer(48, 64, 2)
    answers = expected(rows, layer, 8)[:2]
    rows[3] = np.nan
    assert np.abs(pair(rows, layer, 2, 8, False) - answers).max() <= 2e-6
