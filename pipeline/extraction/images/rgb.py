"""Converts any Pillow mode to 8-bit RGB pixels."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
from PIL import Image

from pipeline.types import ByteArray, DoubleArray

DEEP_GREYS: Final = frozenset({"I;16", "I;16L", "I;16B", "I;16N", "I", "F"})
_PIXELS_AT_ONCE: Final = 1_000_000  # a whole large picture takes twice the time, and gigabytes


def rgb_pixels(image: Image.Image) -> ByteArray:
    """[H, W, 3] uint8 of a loaded image of any mode.

    16-bit channels keep the high byte, as in Pillow's RGB readers: a grey picture equals its RGB copy. CMYK ignores
    colour profiles. Raises ValueError for modes without RGB meaning.
    """
    if image.mode in DEEP_GREYS:
        image = Image.fromarray(_grey_to_8_bits(np.asarray(image)))
    pixels = np.empty((image.height, image.width, 3), np.uint8)
    for part in _parts(image.width, image.height):
        pixels[part] = np.asarray(_rgb(image.crop((0, part.start, image.width, part.stop))))
    return pixels


def _parts(width: int, height: int) -> list[slice]:
    """The rows of a picture, in parts."""
    step = max(1, _PIXELS_AT_ONCE // width)
    return [slice(top, min(top + step, height)) for top in range(0, height, step)]


def _rgb(image: Image.Image) -> Image.Image:
    if image.has_transparency_data and _has_usable_key(image):
        return _on_white(image)
    # `convert` would apply an unusable key, too.
    image.info.pop("transparency", None)
    return image if image.mode == "RGB" else image.convert("RGB")  # `convert` copies even RGB


def _has_usable_key(image: Image.Image) -> bool:
    """False for a 16-bit PNG colour key: the pixels have 8 bits by now, and would match in half."""
    key = image.info.get("transparency")
    values = key if isinstance(key, tuple) else (key,)
    return all(not isinstance(value, int) or 0 <= value <= 255 for value in values)


def _on_white(image: Image.Image) -> Image.Image:
    if image.mode == "La":  # premultiplied; converts only to LA
        image = image.convert("LA")
    rgba = image.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba).convert("RGB")


def _grey_to_8_bits(values: npt.NDArray[Any]) -> ByteArray:
    """[H, W] of 16 bits, 32 bits or floats -> uint8.

    32-bit integers and floats have no declared scale: it is the smallest usual one (1 for floats, 255, 65535) that fits
    all values, or else their range.
    """
    if values.dtype.itemsize == 2:
        return (values >> 8).astype(np.uint8)
    height, width = values.shape
    parts = _parts(width, height)
    ends = [(numbers.min(), numbers.max()) for numbers in (_finite(values[part]) for part in parts)]
    low, high = float(min(end[0] for end in ends)), float(max(end[1] for end in ends))
    scales = (1.0, 255.0, 65535.0) if values.dtype.kind == "f" else (255.0, 65535.0)
    scale = next((scale for scale in scales if low >= 0 and high <= scale), None)
    offset = 0.0 if scale is not None else low
    factor = 255.0 / (scale or (high - low) or 1.0)
    greys = np.empty((height, width), np.uint8)
    for part in parts:
        greys[part] = np.floor((_finite(values[part]) - offset) * factor + 0.5)
    return greys


def _finite(values: npt.NDArray[Any]) -> DoubleArray:
    return np.nan_to_num(values.astype(np.float64), posinf=0.0, neginf=0.0)
