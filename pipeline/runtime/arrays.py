"""Arithmetic that is written once for NumPy's arrays on the host and torch's tensors on a device.

torch takes NumPy's names for functions, `axis` and `keepdims`; what the two call differently is here. Results are of
the kind that is given, on the same device.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.types import Array


def module_of(array: Array) -> Any:
    """numpy or torch: the module whose functions take `array`."""
    if isinstance(array, np.ndarray):
        return np
    import torch

    return torch


def like(array: Array, values: npt.NDArray[Any]) -> Array:
    """`values` as an array of `array`'s kind, on its device. Waits for no device."""
    if isinstance(array, np.ndarray):
        return values
    own = np.require(values, requirements=["C", "W"])  # torch warns of arrays that can't be written, such as Arrow's
    return module_of(array).from_numpy(own).to(array.device, non_blocking=True)


def on_host(array: Array) -> npt.NDArray[Any]:
    """The same numbers in NumPy. Waits for the device."""
    host: npt.NDArray[Any] = array if isinstance(array, np.ndarray) else array.cpu().numpy()
    return host


def integers(array: Array) -> Array:
    """int64; floats are truncated towards zero."""
    return array.astype(np.int64) if isinstance(array, np.ndarray) else array.long()


def floats(array: Array) -> Array:
    """float32."""
    return array.astype(np.float32) if isinstance(array, np.ndarray) else array.float()


def float_bits(array: Array) -> Array:
    """The bits of float32 numbers as int32. For numbers >= 0 both have the same order."""
    return array.view(np.int32 if isinstance(array, np.ndarray) else module_of(array).int32)


def stable_order(array: Array) -> Array:
    """[n] int64: the positions in rising order of `array` [n]; equal ones keep theirs."""
    return array.argsort(kind="stable") if isinstance(array, np.ndarray) else array.argsort(stable=True)


def where_true(mask: Array) -> Array:
    """[k] int64: the positions of True in `mask` [n]. Waits for the device."""
    return np.flatnonzero(mask) if isinstance(mask, np.ndarray) else mask.nonzero()[:, 0]
