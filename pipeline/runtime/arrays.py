"""Functions that NumPy and torch name differently (torch accepts `axis` and `keepdims`). Results have the argument's
kind and device."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.types import Array


def module_of(array: Array) -> Any:
    """The module, numpy or torch, that `array` is from."""
    if isinstance(array, np.ndarray):
        return np
    import torch

    return torch


def like(array: Array, values: npt.NDArray[Any]) -> Array:
    """`values` as `array`'s kind, on its device, without waiting for it."""
    if isinstance(array, np.ndarray):
        return values
    own = np.require(values, requirements=["C", "W"])  # torch warns about read-only arrays, as Arrow's are
    return module_of(array).from_numpy(own).to(array.device, non_blocking=True)


def on_host(array: Array) -> npt.NDArray[Any]:
    """The array in NumPy. Waits for the device."""
    host: npt.NDArray[Any] = array if isinstance(array, np.ndarray) else array.cpu().numpy()
    return host


def integers(array: Array) -> Array:
    """int64; floats are truncated towards zero."""
    return array.astype(np.int64) if isinstance(array, np.ndarray) else array.long()


def floats(array: Array) -> Array:
    """float32."""
    return array.astype(np.float32) if isinstance(array, np.ndarray) else array.float()


def float_bits(array: Array) -> Array:
    """The bits of float32 numbers as int32; for numbers >= 0 the order is the same."""
    return array.view(np.int32 if isinstance(array, np.ndarray) else module_of(array).int32)


def stable_order(array: Array) -> Array:
    """[n] int64: indices that sort `array` [n] stably."""
    return array.argsort(kind="stable") if isinstance(array, np.ndarray) else array.argsort(stable=True)


def where_true(mask: Array) -> Array:
    """[k] int64: indices of True in `mask` [n]. Waits for the device."""
    return np.flatnonzero(mask) if isinstance(mask, np.ndarray) else mask.nonzero()[:, 0]
