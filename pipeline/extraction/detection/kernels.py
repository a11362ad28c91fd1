"""The compiled loops of the three networks, if numba is installed. This module does without it."""

from __future__ import annotations

from types import ModuleType

from pipeline.runtime.optional_numba import if_compiled


@if_compiled
def load_kernels() -> ModuleType:
    """The loops that run the networks on the CPU."""
    from pipeline.extraction.detection import network_kernels

    return network_kernels
