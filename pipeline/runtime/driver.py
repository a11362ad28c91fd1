"""Whether there may be a CUDA device. Importing it needs no torch, which takes two seconds to load."""

from __future__ import annotations

import ctypes
import functools
import sys
from pathlib import Path
from typing import Final

HOST: Final = "cpu"
_DRIVER: Final = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"


@functools.cache
def has_cuda_driver() -> bool:
    """Whether there is NVIDIA's driver, or AMD's, which torch calls CUDA as well. Without one torch finds no device;
    with one torch must be asked."""
    try:
        ctypes.CDLL(_DRIVER)
    except OSError:
        return Path("/dev/kfd").exists()
    return True
