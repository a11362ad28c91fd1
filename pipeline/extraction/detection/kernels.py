"""The compiled loops over pixels on the CPU, where numba is installed."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch

from pipeline.runtime.optional_numba import if_compiled


@dataclass(frozen=True)
class Kernels:
    """Compiled functions; what they take is written at their definitions."""

    area_crops: Callable[..., None]
    smooth_crops: Callable[..., None]
    scan_level: Callable[..., int]
    rnet_features: Callable[..., None]
    onet_features: Callable[..., None]


def load_kernels(device: torch.device) -> Kernels | None:
    """The loops for this device; None where torch has to do it: on CUDA, and without a numba that works with this
    Python and NumPy.

    The first call compiles them, some twenty seconds, or loads what an earlier process compiled.
    """
    return _compiled() if device.type == "cpu" else None


@functools.cache
def _compiled() -> Kernels | None:
    return if_compiled(_import)


def _import() -> Kernels:
    from pipeline.extraction.detection.crop_kernels import onet_features, rnet_features
    from pipeline.extraction.detection.pnet_kernels import area_crops, scan_level
    from pipeline.extraction.images.resampling_kernels import smooth_crops

    return Kernels(area_crops, smooth_crops, scan_level, rnet_features, onet_features)
