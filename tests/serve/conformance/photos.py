"""The photos of the conformance tests, made from two portraits in the public domain.

Grace Hopper (US Navy) is in the matplotlib wheel, Eileen Collins (NASA) in scikit-image's. Other crops, sizes,
brightness and JPEG qualities give other images of the same face. They are small, so that a server on a CPU is fast.
"""

from __future__ import annotations

import functools
import io
import struct
import zlib
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from PIL import Image, ImageEnhance, ImageFilter

_PORTRAITS = {  # package, data file, head and shoulders in it, size
    "hopper": ("matplotlib", "mpl-data/sample_data/grace_hopper.jpg", (90, 30, 450, 470), (240, 293)),
    "collins": ("skimage", "data/astronaut.png", (120, 0, 330, 240), (240, 274)),
}


@functools.cache
def portrait(person: str) -> Image.Image:
    """`hopper` or `collins`, upright, RGB."""
    package, file, box, size = _PORTRAITS[person]
    spec = find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    return Image.open(Path(spec.origin).parent / file).convert("RGB").crop(box).resize(size)


def encoded(image: Image.Image, kind: str = "JPEG", **save: Any) -> bytes:
    file = io.BytesIO()
    if kind == "JPEG":
        save = {"quality": 92, **save}
    image.save(file, kind, **save)
    return file.getvalue()


@functools.cache
def photo(person: str) -> bytes:
    """The portrait that identities are made from."""
    return encoded(portrait(person))


@functools.cache
def other(person: str, which: int = 0) -> bytes:
    """Another image of the same face, of good quality; seven of them."""
    image = portrait(person)
    if which == 0:
        return encoded(ImageEnhance.Brightness(image).enhance(1.2))
    if which == 1:
        return encoded(image.transpose(Image.Transpose.FLIP_LEFT_RIGHT))
    if which == 2:
        return encoded(image.resize((image.width * 3 // 4, image.height * 3 // 4)))
    if which == 3:
        return encoded(image, quality=35)
    if which == 4:
        return encoded(ImageEnhance.Brightness(image).enhance(0.7))
    if which == 5:
        return encoded(image.crop((15, 8, image.width - 10, image.height - 25)))
    return encoded(image.convert("L").convert("RGB"))


@functools.cache
def poor(person: str, reason: str) -> bytes:
    """An image that fails exactly one of the default quality checks: `sharpness`, `contrast` or `center-pose`."""
    image = portrait(person)
    if reason == "sharpness":
        return encoded(image.filter(ImageFilter.GaussianBlur(4)))
    if reason == "contrast":
        return encoded(image.point(lambda value: round(128 + (value - 128) * 0.15)))
    return encoded(image.rotate(48, Image.Resampling.BICUBIC, fillcolor=(128, 128, 128)))


@functools.cache
def pair(left: str, right: str, share: float = 0.75) -> bytes:
    """Two people in one photo. The right portrait is scaled by `share`."""
    return encoded(paired(portrait(left), portrait(right), share))


def paired(left: Image.Image, right: Image.Image, share: float = 0.75) -> Image.Image:
    small = right.resize((round(right.width * share), round(right.height * share)))
    both = Image.new("RGB", (left.width + small.width, max(left.height, small.height)))
    both.paste(left, (0, 0))
    both.paste(small, (left.width, both.height - small.height))
    return both


@functools.cache
def faceless() -> bytes:
    return encoded(Image.linear_gradient("L").resize((160, 120)).convert("RGB"))


@functools.cache
def retouched(person: str, shade: int) -> bytes:
    """The portrait as PNG with one pixel changed in the corner: other bytes and pixels, the same face."""
    image = portrait(person).copy()
    image.putpixel((image.width - 1, image.height - 1), (shade, shade, shade))
    return encoded(image, "PNG")


@functools.cache
def turned(person: str) -> bytes:
    """The portrait lying on its side, with the EXIF orientation that says so and an EXIF comment."""
    exif = Image.Exif()
    exif[0x0112] = 6
    exif[0x010E] = "EXIF-DESCRIPTION"
    lying = portrait(person).transpose(Image.Transpose.ROTATE_90)
    return encoded(lying, exif=exif.tobytes())


def padded(image: Image.Image, left: int, top: int, right: int, bottom: int) -> Image.Image:
    """With a grey border of these widths in pixels."""
    framed = Image.new("RGB", (image.width + left + right, image.height + top + bottom), (120, 120, 120))
    framed.paste(image, (left, top))
    return framed


def huge_png() -> bytes:
    """A PNG of a few hundred bytes whose header claims 50,000 x 50,000 pixels."""
    header = _chunk(b"IHDR", struct.pack(">IIBBBBB", 50_000, 50_000, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + _chunk(b"IDAT", zlib.compress(bytes(4096))) + _chunk(b"IEND", b"")


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def opened(data: bytes) -> Image.Image:
    return Image.open(io.BytesIO(data))
