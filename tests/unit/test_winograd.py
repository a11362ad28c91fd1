"""The compiled convolutions: torch's answers in float64 up to rounding, for every size, number and order of calls."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch.nn import functional

from pipeline.models.onnx_graph import Array
from pipeline.models.winograd import Chain, Convolution, Layer, Pool, load_kernels

pytestmark = pytest.mark.skipif(load_kernels() is None, reason="numba is not installed")


def convolution(channels: int, outputs: int, side: int = 3, padding: int = 0) -> Convolution:
    """Random weights that keep the size of the numbers, as a trained layer's do."""
    random = np.random.default_rng(channels * outputs + side)
    weights = random.normal(size=(outputs, channels, side, side)) / np.sqrt(channels * side * side / 2)
    return Convolution(weights.astype(np.float32), random.normal(size=outputs).astype(np.float32), padding)


def pictures(number: int, *shape: int) -> Array:
    return np.random.default_rng(number).normal(size=(number, *shape)).astype(np.float32)


def by_torch(layers: Sequence[Layer], x: Array) -> Array:
    """In float64."""
    value = torch.from_numpy(x).double()
    for layer in layers:
        if isinstance(layer, Pool):
            value = functional.max_pool2d(value, layer.side, layer.step)
        else:
            weights, bias = (torch.from_numpy(part).double() for part in (layer.weights, layer.bias))
            value = functional.conv2d(value, weights, bias, padding=layer.padding).relu()
    return value.numpy()


def check(layers: Sequence[Layer], x: Array) -> None:
    found, expected = Chain(layers)(x), by_torch(layers, x)
    assert (found.shape, found.dtype) == (expected.shape, np.float32)
    np.testing.assert_allclose(found, expected, atol=2e-5 * max(1, np.abs(expected).max(initial=0)), rtol=0)


@pytest.mark.parametrize("padding", [0, 1])
@pytest.mark.parametrize("size", [(6, 6), (3, 3), (4, 9), (8, 8), (17, 17), (19, 35), (38, 38)])
def test_one_convolution(size: tuple[int, int], padding: int) -> None:
    check([convolution(32, 48, padding=padding)], pictures(3, 32, *size))


@pytest.mark.parametrize(("channels", "outputs"), [(16, 16), (80, 192), (48, 80), (256, 64)])
def test_channels(channels: int, outputs: int) -> None:
    """Also such that the last outputs are fewer than are turned back at a time."""
    check([convolution(channels, outputs, padding=1)], pictures(2, channels, 10, 9))


@pytest.mark.parametrize("number", [0, 1, 2, 7, 33])
def test_any_number_of_pictures(number: int) -> None:
    check([convolution(16, 32)], pictures(number, 16, 10, 11))


def test_a_run_of_layers() -> None:
    """Paddings differ from layer to layer; the pool leaves a row out; the pointwise layer's pixels fill no block."""
    layers = [
        convolution(16, 32),
        convolution(32, 64, padding=1),
        Pool(3, 2),
        convolution(64, 80, side=1),
        convolution(80, 48, padding=1),
        convolution(48, 32, side=1),
        Pool(2, 2),
        convolution(32, 16),
    ]
    check(layers, pictures(5, 16, 28, 25))


def test_a_picture_does_not_depend_on_its_neighbours() -> None:
    chain, x = Chain([convolution(16, 32, padding=1), convolution(32, 32)]), pictures(11, 16, 13, 7)
    together = chain(x)
    for k in range(len(x)):
        np.testing.assert_array_equal(chain(x[k : k + 1])[0], together[k])


def test_calls_leave_nothing_behind() -> None:
    """Scratch memory is used again: for larger numbers and for other sizes before, the answers are the same bits."""
    layers = [convolution(16, 32, padding=1), Pool(2, 2), convolution(32, 16, padding=1)]
    chain, x = Chain(layers), pictures(3, 16, 15, 15)
    expected = chain(x)
    chain(pictures(9, 16, 15, 15) * np.float32(1e6))
    np.testing.assert_array_equal(chain(x), expected)
    chain(pictures(2, 16, 22, 9))
    np.testing.assert_array_equal(chain(x), expected)


def test_threads_may_share_it() -> None:
    chain = Chain([convolution(32, 64, padding=1), convolution(64, 32)])
    batches = [pictures(2 + k % 3, 32, 20, 20) * np.float32(k + 1) for k in range(16)]
    expected = [chain(x) for x in batches]
    with ThreadPoolExecutor(4) as pool:
        for found, wanted in zip(pool.map(chain, batches), expected, strict=True):
            np.testing.assert_array_equal(found, wanted)


def test_the_input_is_left_as_it_is() -> None:
    x = pictures(2, 16, 8, 8)
    before = x.copy()
    Chain([convolution(16, 16, padding=1)])(x)
    np.testing.assert_array_equal(x, before)


def test_what_is_not_a_number_stays_so() -> None:
    layer = convolution(16, 16)
    layer.weights[3, 2, 1, 1] = np.nan
    found = Chain([layer, Pool(2, 2), convolution(16, 16, side=1), convolution(16, 16)])(pictures(1, 16, 16, 16))
    assert np.isnan(found).all()


@pytest.mark.parametrize(("features", "lanes"), [({"avx512f": True}, 16), ({"avx512f": False}, 8), ({}, 8), (None, 8)])
def test_vectors_are_as_long_as_the_processors(
    features: dict[str, bool] | None, lanes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LLVM cannot tell of every processor what it has."""
    from pipeline.models import winograd_kernels

    def known() -> dict[str, bool]:
        if features is None:
            raise RuntimeError("failed to get host cpu features")
        return features

    monkeypatch.setattr(winograd_kernels.llvm, "get_host_cpu_features", known)
    assert winograd_kernels._lanes() == lanes
