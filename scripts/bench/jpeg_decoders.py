"""Bare JPEG decoders to measure ours against: bytes -> [H, W, 3] uint8 RGB, and nothing besides."""

from __future__ import annotations

import io
from collections.abc import Callable
from importlib.util import find_spec

import numpy as np
from PIL import Image

from pipeline.types import ByteArray

Decode = Callable[[bytes], ByteArray]


def pillow(data: bytes) -> ByteArray:
    with Image.open(io.BytesIO(data)) as image:
        return np.array(image.convert("RGB"))


def simplejpeg(data: bytes) -> ByteArray:
    import simplejpeg

    pixels: ByteArray = simplejpeg.decode_jpeg(data, colorspace="RGB")
    return pixels


def opencv(data: bytes) -> ByteArray:
    import cv2

    pixels = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR_RGB)
    assert pixels is not None, "no image"
    return pixels.astype(np.uint8, copy=False)


def installed() -> dict[str, Decode]:
    """Those whose library there is, by name, the fastest first."""
    libraries = {"simplejpeg": ("simplejpeg", simplejpeg), "opencv": ("cv2", opencv), "pillow": ("PIL", pillow)}
    return {name: decode for name, (module, decode) in libraries.items() if find_spec(module) is not None}
