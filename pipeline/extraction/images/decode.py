"""The bytes of an image file -> one upright 8-bit RGB image.

JPEG, PNG, WebP, BMP, TIFF, GIF (first frame), AVIF, HEIC and ICO, read by Pillow and pillow-heif. The EXIF turn is
applied, transparency is flattened on white, every other mode becomes 8-bit RGB; colour profiles are not applied.
Pillow opens every file and decides what is accepted; the pixels of sound JPEG files may come from simplejpeg (`jpeg`).

Pillow's flag for truncated files holds for the whole process, all threads at once, so it is not used: what a cut file
still shows is taken from the image that the failed load leaves behind.
"""

from __future__ import annotations

import io
import re
import struct
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Final, TypeAlias

import numpy as np
import pillow_heif
from PIL import Image, ImageFile, UnidentifiedImageError
from PIL.TiffImagePlugin import (
    STRIPBYTECOUNTS,
    STRIPOFFSETS,
    TILEBYTECOUNTS,
    TILEOFFSETS,
    ImageFileDirectory_v2,
    TiffImageFile,
)

from pipeline.config import DecodeSettings
from pipeline.errors import ImageRejected, ImageTooLarge, ImageTruncated, ImageUnreadable, ImageUnsupported
from pipeline.extraction.images.files import SNIFF_BYTES, check_bytes, ends_early, ico_pixels, sniff
from pipeline.extraction.images.jpeg import (
    GREY,
    START_OF_SCAN,
    cannot_hold,
    grey_share,
    has_endless_header,
    has_more_scans,
    is_baseline,
    is_sequential,
    jpeg_pixels,
    marks_of_scans,
    missing_share,
    most_scans,
)
from pipeline.extraction.images.rgb import DEEP_GREYS, rgb_pixels
from pipeline.extraction.images.room import ROOM
from pipeline.runtime.stage_times import CallCounts
from pipeline.types import ByteArray, DecodedImage, EncodedImage

# Pillow reads many more, some by running other programs; these are the ones we promise.
_FORMATS: Final = ("JPEG", "PNG", "WEBP", "TIFF", "GIF", "BMP", "DIB", "AVIF", "HEIF", "ICO")
_NAMES: Final = {"MPO": "jpeg", "DIB": "bmp", "HEIF": "heic"}
# Formats that decode from top to bottom as the data comes: the part before a cut is worth showing.
_PARTIAL: Final = frozenset({"JPEG", "MPO", "PNG", "BMP", "DIB", "TIFF", "GIF"})
_JPEG: Final = frozenset({"JPEG", "MPO"})
_JPEG_IN_TIFF: Final = frozenset({"jpeg", "tiff_jpeg"})
_MISSING_SHARE: Final = 0.01  # of a picture: with more it is truncated, though its file has an end
# Memory at the peak, in bytes per pixel, rounded up: Pillow's picture, its bytes and the array; with the conversions
# where there are some; and what the format's own library holds meanwhile.
_PLAIN_BYTES: Final = 11
_CONVERTED_BYTES: Final = 24
_COEFFICIENT_BYTES: Final = 6  # of progressive JPEG files; as much to look at one of CMYK a second time
_OWN_BYTES: Final = {"WEBP": 12, "AVIF": 16, "HEIF": 16, "TIFF": 8, "BMP": 6, "PNG": 3}
_ORIENTATION_TAG: Final = 0x0112
# EXIF 2.32, 4.6.4 A: orientation -> what turns the stored array upright: whether rows become columns, and then the
# steps through rows and columns.
ARRAY_TURNS: Final = {
    2: (False, 1, -1),
    3: (False, -1, -1),
    4: (False, -1, 1),
    5: (True, 1, 1),
    6: (True, 1, -1),
    7: (True, -1, -1),
    8: (True, -1, 1),
}
_NUMBER: Final = re.compile(r"\d+")
# Warnings of the decoding libraries that mean nothing to users: message, category, module.
_QUIET: Final = (
    ("", Warning, r"PIL\.|pillow_heif"),  # on odd files: a strange EXIF tag, say
    # torchvision 0.29 and later. TorchCodec, which it points to, does not exist for the versions before.
    ("The image decoding and encoding", DeprecationWarning, ""),
)

Image.init()  # all plugins now: loading them later is not safe between threads
# One thread per image: images are decoded in parallel, and more threads would only compete for the same cores.
pillow_heif.register_heif_opener(thumbnails=False, depth_images=False, aux_images=False, decode_threads=1)

_Reader: TypeAlias = Callable[[bytes, ImageFile.ImageFile], ByteArray]


@dataclass
class OpenedImage:
    """An image whose header is read and within the limits. `load` decodes it, inside `room`.

    Width and height are those in the file, before any turn.
    """

    data: bytes
    settings: DecodeSettings
    width: int
    height: int
    memory: int  # bytes that decoding takes, about
    image: ImageFile.ImageFile | None  # until it is loaded; None where opening decodes

    def room(self) -> AbstractContextManager[None]:
        """Waits for the memory of decoding; it is given back at the end: with the pixels, or when others bound them."""
        return ROOM.taken(self.memory)

    def load(self) -> DecodedImage:
        """Once. Raises ImageTruncated and ImageUnreadable as `decode_image` does."""
        try:
            return self._decoded(_pixels)
        except ImageTruncated as exc:
            if self.settings.truncated == "accept":
                partial = self._decoded(_partial_pixels)
            elif self._may_be_nearly_whole():
                partial = self._decoded(_nearly_all_pixels)
            else:
                raise
            return replace(partial, remark=exc.reason)

    def _may_be_nearly_whole(self) -> bool:
        tolerated = self.settings.truncated == "tolerate" and is_sequential(self.data)
        return tolerated and not cannot_hold(self.data, self.width * self.height)

    def load_in_room(self) -> DecodedImage:
        """`load` where its pixels are bounded otherwise afterwards."""
        with self.room():
            return self.load()

    def _decoded(self, read: _Reader) -> DecodedImage:
        try:
            image, self.image = self.image or _open(self.data, self.settings), None
            pixels = _turned(read(self.data, image), _orientation(image))
        except ImageRejected:
            raise
        except Exception as exc:  # the parsers of nine formats raise whatever a broken file leads them to
            raise _damaged(self.data, exc) from exc
        kind = image.format or ""
        return DecodedImage(pixels, _NAMES.get(kind, kind.lower()))


class Decoder:
    """`decode_image` with fixed settings, counting its calls. Safe to call from many threads."""

    def __init__(self, settings: DecodeSettings) -> None:
        self.settings = settings
        self.counts = CallCounts()  # of images that were handed in, rejected ones included

    def __call__(self, data: bytes) -> DecodedImage:
        return self.open(data).load_in_room()

    def open(self, data: bytes) -> OpenedImage:
        """See `open_image`."""
        self.counts.add(1)
        return open_image(data, self.settings)

    def prepare(self, data: bytes) -> OpenedImage | EncodedImage:
        """The image for a device that decodes: `data` itself where a device can decode it, else the opened image.

        Raises what `open_image` raises.
        """
        self.counts.add(1)
        return encoded_image(data, self.settings) or open_image(data, self.settings)


def decode_image(data: bytes, settings: DecodeSettings) -> DecodedImage:
    """The image in `data`: [H, W, 3] uint8 RGB, upright, C-contiguous and writable.

    Raises ImageUnsupported (no known format), ImageTooLarge (checked before any pixel is decoded), ImageTruncated and
    ImageUnreadable. Where `settings.truncated` is "accept", the missing part of a cut JPEG, PNG, BMP, TIFF or GIF is
    grey; where it is "tolerate", that of a sequential JPEG, up to 1 % of the picture. Either leaves a remark.
    """
    return open_image(data, settings).load_in_room()


def open_image(data: bytes, settings: DecodeSettings) -> OpenedImage:
    """The image in `data` with its header read, before any pixel is decoded. Raises what `decode_image` raises."""
    check_bytes(len(data), settings.max_bytes)
    silence_decoders()
    try:
        if sniff(data[:SNIFF_BYTES]) == "ico":  # Pillow decodes these while it opens them
            pixels = ico_pixels(data)
            _check_pixels(pixels, settings)
            return OpenedImage(data, settings, pixels, 1, pixels * _CONVERTED_BYTES, None)
        image = _open(data, settings)
    except ImageRejected:
        raise
    except Exception as exc:  # as above
        raise _damaged(data, exc) from exc
    width, height = image.size
    return OpenedImage(data, settings, width, height, width * height * _pixel_bytes(image), image)


def encoded_image(data: bytes, settings: DecodeSettings) -> EncodedImage | None:
    """The file for a device to decode, if it is a complete baseline JPEG in colour and within the limits, else None.

    No pixel is decoded: the device's decoder finds damage within the picture.
    """
    if len(data) > settings.max_bytes or not is_baseline(data) or ends_early(data):
        return None
    silence_decoders()
    try:
        with _open(data, settings) as image:
            # Adobe's marker may declare colours other than YCbCr; only libjpeg's family is known to respect it.
            if image.format not in _JPEG or image.info.get("adobe_transform", 1) != 1:
                return None
            orientation = _orientation(image)
            width, height = image.size
    except Exception:  # noqa: BLE001 - whatever is wrong, the reference decoder reports it better
        return None
    if cannot_hold(data, width * height):
        return None
    swapped = ARRAY_TURNS.get(orientation, (False,))[0]
    return EncodedImage(data, *((height, width) if swapped else (width, height)), orientation, "jpeg")


def _open(data: bytes, settings: DecodeSettings) -> ImageFile.ImageFile:
    """The image with its header read. Raises ImageUnsupported, ImageTooLarge, or what the parser raises."""
    kind = sniff(data[:SNIFF_BYTES])
    if kind is None:
        raise ImageUnsupported(detail=_looks_like(data))
    if kind == "jpeg" and has_endless_header(data):
        raise ImageUnreadable(detail="there is too much before its picture")
    # Pillow's own limit is one number for the process. It stays on, because it also covers pictures inside pictures,
    # but is raised where it would apply before ours.
    if Image.MAX_IMAGE_PIXELS is not None and settings.max_pixels > Image.MAX_IMAGE_PIXELS:
        Image.MAX_IMAGE_PIXELS = settings.max_pixels
    try:
        image = Image.open(io.BytesIO(data), formats=_FORMATS)
    except Image.DecompressionBombError as exc:
        _check_pixels(int(_NUMBER.findall(str(exc))[0]), settings)
        raise
    _check_pixels(image.width * image.height, settings, f"{image.width:,} x {image.height:,} = ")
    if kind in ("jpeg", "tiff"):
        _check_scans(data, image, settings)
    return image


def _check_pixels(pixels: int, settings: DecodeSettings, sides: str = "") -> None:
    if pixels > settings.max_pixels:
        raise ImageTooLarge(what=f"{sides}{pixels:,} pixels", limit=f"{settings.max_pixels:,} (decode.max_pixels)")


def _check_scans(data: bytes, image: ImageFile.ImageFile, settings: DecodeSettings) -> None:
    """Raises ImageTooLarge for a JPEG file with too many scans, or a TIFF file with such a part."""
    pixels = image.width * image.height
    most = most_scans(pixels, settings.max_pixels)
    if image.format in _JPEG:
        too_many = has_more_scans(data, most)
    elif isinstance(image, TiffImageFile) and image.info.get("compression") in _JPEG_IN_TIFF:
        too_many = marks_of_scans(data) > most and _has_crowded_part(data, image.tag_v2, most)
    else:
        too_many = False
    if too_many:
        raise ImageTooLarge(what=f"a JPEG file with more than {most} scans", limit=f"{most} for {pixels:,} pixels")


def _has_crowded_part(data: bytes, tags: ImageFileDirectory_v2, most: int) -> bool:
    """Whether a strip or tile has more scans, or several are the same bytes."""
    parts: list[tuple[int, int]] = []
    for starts, sizes in ((STRIPOFFSETS, STRIPBYTECOUNTS), (TILEOFFSETS, TILEBYTECOUNTS)):
        known = np.atleast_1d(tags.get(sizes, ())).tolist()
        parts += zip_longest(np.atleast_1d(tags.get(starts, ())).tolist(), known, fillvalue=len(data))
    if sum(size for _, size in parts) > 2 * len(data):
        return True
    return any(data.count(START_OF_SCAN, start, start + size) > most for start, size in parts)


def _pixel_bytes(image: ImageFile.ImageFile) -> int:
    """The memory that decoding takes per pixel, by format, mode and depth."""
    converted = image.mode in DEEP_GREYS or image.mode == "CMYK" or image.has_transparency_data
    own = _OWN_BYTES.get(image.format or "", 0)
    if image.format in _JPEG and (image.mode == "CMYK" or "progressive" in image.info):
        own = _COEFFICIENT_BYTES
    return own + (_CONVERTED_BYTES if converted else _PLAIN_BYTES)


def _looks_like(data: bytes) -> str:
    if not data:
        return " (the file is empty)"
    head = data[:SNIFF_BYTES]
    printable = all(byte in b"\t\r\n" or 32 <= byte < 127 for byte in head)
    return " (it begins as text)" if printable else f" (it begins with {head[:8].hex(' ')})"


def _pixels(data: bytes, image: ImageFile.ImageFile) -> ByteArray:
    """The whole picture, as stored: [H, W, 3] uint8 RGB. Raises ImageTruncated where its end is missing."""
    if image.format not in _JPEG:
        image.load()
        return rgb_pixels(image)
    if cannot_hold(data, image.width * image.height):
        raise ImageTruncated(detail="there are fewer bits than blocks of pixels")
    if image.mode in ("L", "RGB"):
        stored = jpeg_pixels(data, image.width, image.height)
        if stored is not None:
            return stored
    image.load()
    stored = rgb_pixels(image)
    missing = missing_share(data, stored, "CMYK" if image.mode == "CMYK" else "GRAY")
    if missing > _MISSING_SHARE:
        raise ImageTruncated(detail=f"{missing:.0%} of the picture is missing")
    return stored


def _partial_pixels(_: bytes, image: ImageFile.ImageFile) -> ByteArray:
    """As `_pixels`; of a cut file as many as it holds, where the format decodes from top to bottom, the rest grey."""
    if image.format not in _PARTIAL:
        image.load()
        return rgb_pixels(image)
    if image.format in _JPEG:  # libjpeg fills what is missing with grey once it sees an end
        assert image.fp is not None
        image.fp.seek(0, io.SEEK_END)
        image.fp.write(b"\xff\xd9")
        image.fp.seek(0)
    if image.mode in ("L", "RGB", "RGBA"):
        image.im = Image.new(image.mode, image.size, (GREY,) * len(image.mode)).im
    try:
        image.load()
    except (OSError, SyntaxError, ValueError, EOFError, struct.error, IndexError):
        image.tile = []  # nothing more to load: what the decoder wrote so far is the picture
    return rgb_pixels(image)


def _nearly_all_pixels(data: bytes, image: ImageFile.ImageFile) -> ByteArray:
    """As `_pixels`, without up to 1 % of the picture. Raises ImageTruncated where more is missing."""
    pixels = _partial_pixels(data, image)
    missing = grey_share(pixels)
    if missing > _MISSING_SHARE:
        raise ImageTruncated(detail=f"{missing:.0%} of the picture is missing")
    return pixels


def _turned(pixels: ByteArray, orientation: int) -> ByteArray:
    """The stored picture upright, C-contiguous."""
    if orientation not in ARRAY_TURNS:
        return pixels
    swapped, down, across = ARRAY_TURNS[orientation]
    if swapped:
        pixels = pixels.swapaxes(0, 1)
    return np.ascontiguousarray(pixels[::down, ::across])


def _orientation(image: Image.Image) -> int:
    """The EXIF orientation that is still to be applied, 1 for none. Call it after loading, unless it is a JPEG: the tag
    may follow the pixels.

    Pillow turns TIFF itself. libheif applies a HEIC's own transforms, and the EXIF tag is then to be ignored
    (ISO/IEC 23008-12, 6.5.10).
    """
    if image.format == "HEIF":
        return 1
    try:
        return int(image.getexif().get(_ORIENTATION_TAG, 1))
    except Exception:  # noqa: BLE001 - a broken EXIF block must not cost the picture, whatever its parser raises
        return 1


def _damaged(data: bytes, exc: Exception) -> ImageRejected:
    detail = " ".join(str(exc).split()) or type(exc).__name__
    if isinstance(exc, UnidentifiedImageError):  # its message names a Python object
        detail = "its header is damaged"
    if isinstance(exc, MemoryError):
        return ImageUnreadable(detail="there is not enough memory to decode it")
    if ends_early(data) or "truncated" in detail.lower():
        return ImageTruncated(detail=detail)
    return ImageUnreadable(detail=detail)


def silence_decoders() -> None:
    """Keeps the libraries' warnings (`_QUIET`) from being printed or raised, in all threads from now on.

    The filters go in front of all others, and are put back if somebody removed them. `warnings.catch_warnings` around
    the decoding would replace the filters of all threads.
    """
    for message, category, module in _QUIET:
        patterns = re.compile(message, re.IGNORECASE) if message else None, re.compile(module) if module else None
        if ("ignore", patterns[0], category, patterns[1], 0) not in warnings.filters[: len(_QUIET)]:
            warnings.filterwarnings("ignore", message, category, module)
