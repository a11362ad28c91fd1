"""The bytes of an image file -> an upright 8-bit RGB image.

JPEG, PNG, WebP, BMP, TIFF, GIF (first frame), AVIF, HEIC and ICO, by Pillow and pillow-heif. EXIF orientation is
applied, transparency flattened on white, every mode becomes 8-bit RGB; colour profiles are ignored. Pillow opens every
file and decides what is accepted; intact JPEG files may be decoded by simplejpeg (`jpeg`).

Pillow's flag for truncated files is global, so it is not used: a cut file's pixels come from the image that the failed
load leaves.
"""

from __future__ import annotations

import io
import re
import struct
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
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
from pipeline.extraction.images.exif_date import taken_at
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
from pipeline.runtime.stage_times import CallCounts
from pipeline.runtime.threads import usable_cores
from pipeline.types import ByteArray, DecodedImage, EncodedImage

# Pillow reads more, some by running other programs.
_FORMATS: Final = ("JPEG", "PNG", "WEBP", "TIFF", "GIF", "BMP", "DIB", "AVIF", "HEIF", "ICO")
_NAMES: Final = {"MPO": "jpeg", "DIB": "bmp", "HEIF": "heic"}
# Formats decoded from top to bottom: the part before a cut is useful.
_PARTIAL: Final = frozenset({"JPEG", "MPO", "PNG", "BMP", "DIB", "TIFF", "GIF"})
_JPEG: Final = frozenset({"JPEG", "MPO"})
_JPEG_IN_TIFF: Final = frozenset({"jpeg", "tiff_jpeg"})
_MISSING_SHARE: Final = 0.01  # of a picture: with more it is truncated, despite an end marker
# Peak memory in bytes per pixel, rounded up: Pillow's picture, its bytes, the array and conversions, and the format's
# library.
_PLAIN_BYTES: Final = 11
_CONVERTED_BYTES: Final = 24
_COEFFICIENT_BYTES: Final = 6  # of progressive JPEG, and to look at CMYK again
_OWN_BYTES: Final = {"WEBP": 12, "AVIF": 16, "HEIF": 16, "TIFF": 8, "BMP": 6, "PNG": 3}
# For decoding in the process, shared by server and run.
_LEAST_BYTES: Final = 2**30
_BYTES_PER_CORE: Final = 2**28  # a photo of 25 MP
_ORIENTATION_TAG: Final = 0x0112
# EXIF 2.32, 4.6.4 A: orientation -> whether to swap rows and columns, then the steps through them.
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
# Decoders' warnings useless to users: message, category, module.
_QUIET: Final = (
    ("", Warning, r"PIL\.|pillow_heif"),  # such as a strange EXIF tag
    # torchvision 0.29 and later. The TorchCodec that it recommends does not exist for earlier versions.
    ("The image decoding and encoding", DeprecationWarning, ""),
)

Image.init()  # all plugins now: later loading is not thread-safe
# One thread per image: images are decoded in parallel.
pillow_heif.register_heif_opener(thumbnails=False, depth_images=False, aux_images=False, decode_threads=1)

_Reader: TypeAlias = Callable[[bytes, ImageFile.ImageFile], ByteArray]


class DecodingRoom:
    """Makes pictures wait for memory.

    Pictures over half of `limit` take turns in an extra slot, so that small and large ones never wait for each other.
    The total is `limit` plus one such picture. A thread inside must not wait for one outside.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._large = threading.Lock()
        self._next = threading.Lock()  # held by a waiting small picture: later ones queue
        self._changed = threading.Condition()
        self._used = 0

    @contextmanager
    def taken(self, size: int) -> Iterator[None]:
        """Waits for room for `size` bytes."""
        if size > self._limit // 2:
            with self._large:
                yield
            return
        with self._next, self._changed:
            self._changed.wait_for(lambda: self._used + size <= self._limit)
            self._used += size
        try:
            yield
        finally:
            with self._changed:
                self._used -= size
                self._changed.notify_all()


ROOM: Final = DecodingRoom(max(_LEAST_BYTES, _BYTES_PER_CORE * usable_cores()))


@dataclass
class OpenedImage:
    """An image with a checked header. `load` decodes it, inside `room`.

    Width and height are before orientation.
    """

    data: bytes
    settings: DecodeSettings
    width: int
    height: int
    memory: int  # estimated bytes for decoding
    image: ImageFile.ImageFile | None  # until loaded; None if opening decodes

    def room(self) -> AbstractContextManager[None]:
        """Reserves the memory of decoding for the block, which must last as long as the pixels unless others bound
        them. May wait."""
        return ROOM.taken(self.memory)

    def load(self) -> DecodedImage:
        """Decodes, once. Raises ImageTruncated and ImageUnreadable as `decode_image`."""
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
        """`load`, for callers that bound the pixels afterwards."""
        with self.room():
            return self.load()

    def _decoded(self, read: _Reader) -> DecodedImage:
        try:
            image, self.image = self.image or _open(self.data, self.settings), None
            pixels = _turned(read(self.data, image), _orientation(image))
        except ImageRejected:
            raise
        except Exception as exc:  # nine formats' parsers raise anything
            raise _damaged(self.data, exc) from exc
        kind = image.format or ""
        return DecodedImage(pixels, _NAMES.get(kind, kind.lower()), taken_at=_taken_at(self.data, image))


class Decoder:
    """`decode_image` with fixed settings and counted calls. Thread-safe."""

    def __init__(self, settings: DecodeSettings) -> None:
        self.settings = settings
        self.counts = CallCounts()  # of images passed in, also rejected

    def __call__(self, data: bytes) -> DecodedImage:
        return self.open(data).load_in_room()

    def open(self, data: bytes) -> OpenedImage:
        """See `open_image`."""
        self.counts.add(1)
        return open_image(data, self.settings)

    def prepare(self, data: bytes) -> OpenedImage | EncodedImage:
        """`data` itself if a device can decode it, else the opened image. Raises as `open_image`."""
        self.counts.add(1)
        return encoded_image(data, self.settings) or open_image(data, self.settings)


def decode_image(data: bytes, settings: DecodeSettings) -> DecodedImage:
    """The image in `data`: [H, W, 3] uint8 RGB, upright, C-contiguous, writable.

    Raises ImageUnsupported (unknown format), ImageTooLarge (before decoding), ImageTruncated and ImageUnreadable. With
    `settings.truncated` "accept" the missing part of a JPEG, PNG, BMP, TIFF or GIF is grey; with "tolerate" that of a
    sequential JPEG, up to 1 %. Either leaves a remark.
    """
    return open_image(data, settings).load_in_room()


def decode_picture(image: Image.Image, settings: DecodeSettings) -> DecodedImage:
    """A PIL image, as `decode_image` would return its file. Raises ImageTooLarge, ImageTruncated, ImageUnreadable."""
    _check_pixels(image.width * image.height, settings)
    with ROOM.taken(image.width * image.height * _pixel_bytes(image)):
        try:
            image.load()
            pixels = _turned(rgb_pixels(image), _orientation(image))
        except Exception as exc:  # as above
            raise _damaged(b"", exc) from exc
    return DecodedImage(pixels, "pixels")


def open_image(data: bytes, settings: DecodeSettings) -> OpenedImage:
    """The image in `data`, its header read but no pixel decoded. Raises as `decode_image`."""
    check_bytes(len(data), settings.max_bytes)
    silence_decoders()
    try:
        if sniff(data[:SNIFF_BYTES]) == "ico":  # Pillow decodes ICO while opening
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
    """The file for a device if it is a complete baseline colour JPEG within the limits, else None.

    The device's decoder detects damage within the picture.
    """
    if len(data) > settings.max_bytes or not is_baseline(data) or ends_early(data):
        return None
    silence_decoders()
    try:
        with _open(data, settings) as image:
            # Adobe's marker may declare other colours than YCbCr; only libjpeg's family is known to respect it.
            if image.format not in _JPEG or image.info.get("adobe_transform", 1) != 1:
                return None
            orientation, taken = _orientation(image), _taken_at(data, image)
            width, height = image.size
    except Exception:  # noqa: BLE001 - whatever is wrong, the reference decoder reports it better
        return None
    if cannot_hold(data, width * height):
        return None
    swapped = ARRAY_TURNS.get(orientation, (False,))[0]
    return EncodedImage(data, *((height, width) if swapped else (width, height)), orientation, "jpeg", taken)


def _open(data: bytes, settings: DecodeSettings) -> ImageFile.ImageFile:
    """Reads the header. Raises ImageUnsupported, ImageTooLarge, or what the parser raises."""
    kind = sniff(data[:SNIFF_BYTES])
    if kind is None:
        raise ImageUnsupported(detail=_looks_like(data))
    if kind == "jpeg" and has_endless_header(data):
        raise ImageUnreadable(detail="there is too much before its picture")
    # Pillow's own limit is global. It stays on for embedded pictures, but is raised if below ours.
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
    """Raises ImageTooLarge if a JPEG file or part of a TIFF has too many scans."""
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
    """Whether a strip or tile has more than `most` scans, or parts share bytes: their sizes sum to over twice the
    file's."""
    parts: list[tuple[int, int]] = []
    for starts, sizes in ((STRIPOFFSETS, STRIPBYTECOUNTS), (TILEOFFSETS, TILEBYTECOUNTS)):
        known = np.atleast_1d(tags.get(sizes, ())).tolist()
        parts += zip_longest(np.atleast_1d(tags.get(starts, ())).tolist(), known, fillvalue=len(data))
    if sum(size for _, size in parts) > 2 * len(data):
        return True
    return any(data.count(START_OF_SCAN, start, start + size) > most for start, size in parts)


def _pixel_bytes(image: Image.Image) -> int:
    """Decoding memory per pixel."""
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
    """The whole picture, as stored: [H, W, 3] uint8 RGB. Raises ImageTruncated if its end is missing."""
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
    """As `_pixels`, but the missing part of a cut file is grey if its format is decoded from top to bottom."""
    if image.format not in _PARTIAL:
        image.load()
        return rgb_pixels(image)
    if image.format in _JPEG:  # with an end marker, libjpeg fills what is missing with grey
        assert image.fp is not None
        image.fp.seek(0, io.SEEK_END)
        image.fp.write(b"\xff\xd9")
        image.fp.seek(0)
    if image.mode in ("L", "RGB", "RGBA"):
        image.im = Image.new(image.mode, image.size, (GREY,) * len(image.mode)).im
    try:
        image.load()
    except (OSError, SyntaxError, ValueError, EOFError, struct.error, IndexError):
        image.tile = []  # keep what was decoded
    return rgb_pixels(image)


def _nearly_all_pixels(data: bytes, image: ImageFile.ImageFile) -> ByteArray:
    """As `_pixels`, but 1 % of the picture may be missing. Raises ImageTruncated for more."""
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
    """The EXIF orientation left to apply, 1 for none. Call it after loading, except for JPEG: the tag may follow the
    pixels.

    Pillow orients TIFF. libheif applies a HEIC's own transforms, and EXIF must then be ignored (ISO/IEC 23008-12,
    6.5.10).
    """
    if image.format == "HEIF":
        return 1
    try:
        return int(image.getexif().get(_ORIENTATION_TAG, 1))
    except Exception:  # noqa: BLE001 - a broken EXIF block must not cost the picture, whatever its parser raises
        return 1


def _taken_at(data: bytes, image: Image.Image) -> datetime | None:
    """When the photo was taken, as `DecodedImage.taken_at`. Call it when `_orientation` may be called."""
    exif = data if image.format == "TIFF" else image.info.get("exif")  # a text, if a PNG has one of this name
    return taken_at(exif.removeprefix(b"Exif\0\0")) if isinstance(exif, bytes) else None


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
    """Keeps decoders' warnings (`_QUIET`) from being printed or raised, in all threads from now on.

    The filters go first, and return if removed. `warnings.catch_warnings` would replace all threads' filters.
    """
    for message, category, module in _QUIET:
        patterns = re.compile(message, re.IGNORECASE) if message else None, re.compile(module) if module else None
        if ("ignore", patterns[0], category, patterns[1], 0) not in warnings.filters[: len(_QUIET)]:
            warnings.filterwarnings("ignore", message, category, module)
