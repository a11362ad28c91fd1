"""Pillow's pixel modes -> 8-bit RGB: transparency flattened on white, deep greys scaled, CMYK converted."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
from PIL import Image

_DEEP_GREY: Final = frozenset({"I;16", "I;16L", "I;16B", "I;16N", "I", "F"})


def to_rgb(image: Image.Image) -> Image.Image:
    """A loaded image of any mode as mode RGB.

    16-bit channels keep their high byte, as Pillow's own readers do for RGB: a grey picture and its RGB copy stay
    equal. CMYK is converted without a colour profile. Raises ValueError for a mode that has no RGB meaning.
    """
    if image.mode in _DEEP_GREY:
        return Image.fromarray(_grey_to_8_bits(np.asarray(image))).convert("RGB")
    if image.has_transparency_data and _has_usable_key(image):
        return _on_white(image)
    # A key that was refused would be applied by `convert` all the same.
    image.info.pop("transparency", None)
    return image if image.mode == "RGB" else image.convert("RGB")  # which would copy


def _has_usable_key(image: Image.Image) -> bool:
    """False for a PNG colour key of 16-bit channels: its pixels have 8 bits by now, and would match by half."""
    key = image.info.get("transparency")
    values = key if isinstance(key, tuple) else (key,)
    return all(not isinstance(value, int) or 0 <= value <= 255 for value in values)


def _on_white(image: Image.Image) -> Image.Image:
    if image.mode == "La":  # premultiplied; it converts only to its plain form
        image = image.convert("LA")
    rgba = image.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba).convert("RGB")


def _grey_to_8_bits(values: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """[H, W] of 16 bits, 32 bits or floats -> uint8.

    16-bit types have a full scale. 32-bit integers and floats do not say theirs: the smallest customary one (1 for
    floats, 255, 65535) that holds all values is taken; values outside all of them are stretched to their range.
    """
    if values.dtype.itemsize == 2:
        return (values >> 8).astype(np.uint8)
    numbers = np.nan_to_num(values.astype(np.float64), posinf=0.0, neginf=0.0)
    low, high = float(numbers.min()), float(numbers.max())
    scales = (1.0, 255.0, 65535.0) if values.dtype.kind == "f" else (255.0, 65535.0)
    scale = next((scale for scale in scales if low >= 0 and high <= scale), None)
    if scale is None:
        numbers, scale = numbers - low, (high - low) or 1.0
    return np.asarray(np.floor(numbers * (255.0 / scale) + 0.5), dtype=np.uint8)
