"""Stage: the bytes of an image file -> one upright 8-bit RGB image.

JPEG, PNG, WebP, BMP, TIFF, GIF (first frame), AVIF, HEIC and ICO, read by Pillow and pillow-heif. The EXIF turn is
applied, transparency is flattened on white, every other mode becomes 8-bit RGB; colour profiles are not applied.
Pillow opens every file and decides what is accepted; the pixels of sound JPEG files may come from simplejpeg (`jpeg`).

No process-wide switch of Pillow decides what is accepted: its flag for truncated files would hold for all threads
at once, so what a file gives before it ends is taken from the image that the failed load leaves behind.
"""

from __future__ import annotations

import hashlib
import io
import re
import struct
import threading
from collections.abc import Callable
from typing import Final

import numpy as np
import pillow_heif
from PIL import Image, ImageFile, UnidentifiedImageError

from pipeline.config import DecodeSettings
from pipeline.errors import ImageRejected, ImageTooLarge, ImageTruncated, ImageUnreadable, ImageUnsupported
from pipeline.extraction.images.files import too_many_bytes
from pipeline.extraction.images.formats import SNIFF_BYTES, ends_early, ico_pixels, sniff
from pipeline.extraction.images.jpeg import is_baseline, jpeg_pixels
from pipeline.extraction.images.pixel_modes import to_rgb
from pipeline.extraction.images.remarks import silence_decoders
from pipeline.types import ByteArray, DecodedImage, EncodedImage

# Pillow knows many more, some of which run other programs; these are the ones we promise.
_FORMATS: Final = ("JPEG", "PNG", "WEBP", "TIFF", "GIF", "BMP", "DIB", "AVIF", "HEIF", "ICO")
_NAMES: Final = {"MPO": "jpeg", "DIB": "bmp", "HEIF": "heic"}
# Formats of which the part before the cut is worth showing: those that decode from top to bottom as data come.
_PARTIAL: Final = frozenset({"JPEG", "MPO", "PNG", "BMP", "DIB", "TIFF", "GIF"})
_GREY: Final = 128
_ORIENTATION_TAG: Final = 0x0112
# EXIF 2.32, 4.6.4 A: what turns the stored picture upright.
_TURNS: Final = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
# The same for an array of rows: whether rows become columns, and then the steps through rows and columns.
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

Image.init()  # all plugins now: finding them later is not safe between threads
# One thread per image: images are decoded in parallel, and more threads would only fight for the same cores.
pillow_heif.register_heif_opener(thumbnails=False, depth_images=False, aux_images=False, decode_threads=1)


class Decoder:
    """`decode_image` with fixed settings, counting its calls. Safe to call from many threads."""

    def __init__(self, settings: DecodeSettings) -> None:
        self.settings = settings
        self._calls = 0
        self._lock = threading.Lock()

    @property
    def calls(self) -> int:
        """How many images were handed in, rejected ones included."""
        return self._calls

    def __call__(self, data: bytes) -> DecodedImage:
        self._count()
        return decode_image(data, self.settings)

    def prepare(self, data: bytes) -> DecodedImage | EncodedImage:
        """The image for a device that decodes: `data` itself where a device can take it, else as a call gives it.

        Raises as a call does.
        """
        self._count()
        return encoded_image(data, self.settings) or decode_image(data, self.settings)

    def _count(self) -> None:
        with self._lock:
            self._calls += 1


def decode_image(data: bytes, settings: DecodeSettings) -> DecodedImage:
    """The image in `data`: [H, W, 3] uint8 RGB, upright, C-contiguous and writable.

    Raises ImageUnsupported (no known format), ImageTooLarge (checked before any pixel is decoded), ImageTruncated
    (unless `settings.truncated` is "accept" and the format decodes from top to bottom) and ImageUnreadable. With
    "accept", what a cut JPEG, PNG, BMP, TIFF or GIF does not tell is left grey.
    """
    if len(data) > settings.max_bytes:
        raise too_many_bytes(len(data), settings.max_bytes)
    silence_decoders()
    try:
        return _decode(data, settings, _pixels)
    except ImageTruncated:
        if settings.truncated != "accept":
            raise
        return _decode(data, settings, _pixels_that_are_there)


def encoded_image(data: bytes, settings: DecodeSettings) -> EncodedImage | None:
    """The file as a device decodes it, if it is a whole baseline JPEG in colour and within the limits, else None.

    No pixel is decoded: damage within the picture is for the decoder to find.
    """
    if len(data) > settings.max_bytes or not is_baseline(data) or ends_early(data):
        return None
    silence_decoders()
    try:
        with _open(data, settings) as image:
            # Adobe's marker may say that the colours are no YCbCr, which only libjpeg's family is known to heed.
            if image.format not in ("JPEG", "MPO") or image.info.get("adobe_transform", 1) != 1:
                return None
            orientation = _orientation(image)
            width, height = image.size
    except Exception:  # noqa: BLE001 - whatever is wrong, the reference decoder says it better
        return None
    swapped = ARRAY_TURNS.get(orientation, (False,))[0]
    return EncodedImage(data, *((height, width) if swapped else (width, height)), orientation, "jpeg")


def _decode(
    data: bytes, settings: DecodeSettings, read: Callable[[bytes, ImageFile.ImageFile], ByteArray]
) -> DecodedImage:
    try:
        image = _open(data, settings)
        with image:
            name = _NAMES.get(image.format or "", (image.format or "").lower())
            pixels = read(data, image)
    except ImageRejected:
        raise
    except Exception as exc:  # the parsers of nine formats raise whatever a broken file leads them to
        raise _damaged(data, exc) from exc
    return DecodedImage(pixels=pixels, format=name, pixel_sha256=_pixel_hash(pixels))


def _pixel_hash(pixels: ByteArray) -> str:
    height, width = pixels.shape[:2]
    digest = hashlib.sha256(struct.pack("<II", width, height))
    digest.update(pixels.data)
    return digest.hexdigest()


def _open(data: bytes, settings: DecodeSettings) -> ImageFile.ImageFile:
    """The image with its header read. Raises ImageUnsupported, ImageTooLarge, or what the parser raises."""
    kind = sniff(data[:SNIFF_BYTES])
    if kind is None:
        raise ImageUnsupported(detail=_looks_like(data))
    if kind == "ico":  # Pillow decodes these while it opens them
        _check_pixels(ico_pixels(data), settings)
    # Pillow's own limit is one number for the process. It stays on, so that it also covers pictures inside
    # pictures, but is raised where it would come before ours.
    if Image.MAX_IMAGE_PIXELS is not None and settings.max_pixels > Image.MAX_IMAGE_PIXELS:
        Image.MAX_IMAGE_PIXELS = settings.max_pixels
    try:
        image = Image.open(io.BytesIO(data), formats=_FORMATS)
    except Image.DecompressionBombError as exc:
        _check_pixels(int(_NUMBER.findall(str(exc))[0]), settings)
        raise
    _check_pixels(image.width * image.height, settings, f"{image.width:,} x {image.height:,} = ")
    return image


def _check_pixels(pixels: int, settings: DecodeSettings, sides: str = "") -> None:
    if pixels > settings.max_pixels:
        raise ImageTooLarge(what=f"{sides}{pixels:,} pixels", limit=f"{settings.max_pixels:,} (decode.max_pixels)")


def _looks_like(data: bytes) -> str:
    if not data:
        return " (the file is empty)"
    head = data[:SNIFF_BYTES]
    printable = all(byte in b"\t\r\n" or 32 <= byte < 127 for byte in head)
    return " (it begins as text)" if printable else f" (it begins with {head[:8].hex(' ')})"


def _pixels(data: bytes, image: ImageFile.ImageFile) -> ByteArray:
    """The whole picture, upright: [H, W, 3] uint8 RGB."""
    if image.format in ("JPEG", "MPO") and image.mode in ("L", "RGB"):
        stored = jpeg_pixels(data, image.width, image.height)
        if stored is not None:
            return _turned(stored, _orientation(image))
    image.load()
    return np.array(_upright(image))


def _pixels_that_are_there(_: bytes, image: ImageFile.ImageFile) -> ByteArray:
    _load_what_is_there(image)
    return np.array(_upright(image))


def _load_what_is_there(image: ImageFile.ImageFile) -> None:
    """Decodes as many pixels of a cut file as it holds, where the format decodes as data come."""
    if image.format not in _PARTIAL:
        image.load()
        return
    if image.format in ("JPEG", "MPO"):  # libjpeg fills what is missing once it sees an end; it is grey
        assert image.fp is not None
        image.fp.seek(0, io.SEEK_END)
        image.fp.write(b"\xff\xd9")
        image.fp.seek(0)
    if image.mode in ("L", "RGB", "RGBA"):
        image.im = Image.new(image.mode, image.size, (_GREY,) * len(image.mode)).im
    try:
        image.load()
    except (OSError, SyntaxError, ValueError, EOFError, struct.error, IndexError):
        image.tile = []  # nothing more to load: what the decoder wrote so far is the picture


def _upright(image: Image.Image) -> Image.Image:
    turn = _TURNS.get(_orientation(image))
    rgb = to_rgb(image)
    return rgb if turn is None else rgb.transpose(turn)


def _turned(pixels: ByteArray, orientation: int) -> ByteArray:
    """The stored picture upright, C-contiguous."""
    if orientation not in ARRAY_TURNS:
        return pixels
    swapped, down, across = ARRAY_TURNS[orientation]
    if swapped:
        pixels = pixels.swapaxes(0, 1)
    return np.ascontiguousarray(pixels[::down, ::across])


def _orientation(image: Image.Image) -> int:
    """The EXIF orientation that is still to be applied, 1 for none. Asked after loading (but of a JPEG): it may
    follow the pixels.

    Pillow turns TIFF itself; libheif applies a HEIC's own transforms, and HEIF says that its EXIF tag then counts
    for nothing (ISO/IEC 23008-12, 6.5.10).
    """
    if image.format == "HEIF":
        return 1
    try:
        return int(image.getexif().get(_ORIENTATION_TAG, 1))
    except Exception:  # noqa: BLE001 - a broken EXIF block spoils no picture, whatever its parser raises
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
