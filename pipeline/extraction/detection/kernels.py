"""The compiled loops of the three networks on the CPU, where numba is installed."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch

from pipeline.runtime.optional_numba import if_compiled


@dataclass(frozen=True)
class DetectionKernels:
    """Compiled functions; their definitions in `pnet_kernels` and `crop_kernels` say what they take."""

    scan_level: Callable[..., int]
    rnet_features: Callable[..., None]
    onet_features: Callable[..., None]


def load_kernels(device: torch.device) -> DetectionKernels | None:
    """The loops for this device. None on CUDA, and without a numba that works with this Python and NumPy: torch then
    does the same.

    The first call compiles them, some twenty seconds, or loads what an earlier process compiled.
    """
    return _load() if device.type == "cpu" else None


@functools.cache
def _load() -> DetectionKernels | None:
    return if_compiled(_import)


def _import() -> DetectionKernels:
    from pipeline.extraction.detection.crop_kernels import onet_features, rnet_features
    from pipeline.extraction.detection.pnet_kernels import scan_level

    return DetectionKernels(scan_level, rnet_features, onet_features)
