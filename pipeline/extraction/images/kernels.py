"""The compiled loops that resample images on the CPU, where numba is installed."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch

from pipeline.runtime.optional_numba import if_compiled


@dataclass(frozen=True)
class ImageKernels:
    """Compiled functions; their definitions in `resampling_kernels` say what they take."""

    area_crops: Callable[..., None]
    smooth_crops: Callable[..., None]


def load_kernels(device: torch.device) -> ImageKernels | None:
    """The loops for this device. None on CUDA, and without a numba that works with this Python and NumPy: torch then
    does the same.

    The first call compiles them, some ten seconds, or loads what an earlier process compiled.
    """
    return _load() if device.type == "cpu" else None


@functools.cache
def _load() -> ImageKernels | None:
    return if_compiled(_import)


def _import() -> ImageKernels:
    from pipeline.extraction.images.resampling_kernels import area_crops, smooth_crops

    return ImageKernels(area_crops, smooth_crops)
