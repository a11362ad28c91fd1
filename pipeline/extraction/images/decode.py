"""The bytes of an image file -> one upright 8-bit RGB image.

JPEG, PNG, WebP, BMP, TIFF, GIF (first frame), AVIF, HEIC and ICO, read by Pillow and pillow-heif. The EXIF turn is
applied, transparency is flattened on white, every other mode becomes 8-bit RGB; colour profiles are not applied.
Pillow opens every file and decides what is accepted; the pixels of sound JPEG files may come from simplejpeg (`jpeg`).

Pillow's flag for truncated files holds for the whole process, all threads at once, so it is not used: what a cut file
still shows is taken from the image that the failed load leaves behind.
"""

from __future__ import annotations

import hashlib
import io
import re
import struct
import threading
import warnings
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pillow_heif
from PIL import Image, ImageFile, UnidentifiedImageError

from pipeline.config import DecodeSettings
from pipeline.errors import ImageRejected, ImageTooLarge, ImageTruncated, ImageUnreadable, ImageUnsupported
from pipeline.extraction.images.files import SNIFF_BYTES, ends_early, ico_pixels, sniff, too_many_bytes
from pipeline.extraction.images.jpeg import has_more_scans, is_baseline, jpeg_pixels, most_scans
from pipeline.types import ByteArray, DecodedImage, EncodedImage

# Pillow reads many more, some by running other programs; these are the ones we promise.
_FORMATS: Final = ("JPEG", "PNG", "WEBP", "TIFF", "GIF", "BMP", "DIB", "AVIF", "HEIF", "ICO")
_NAMES: Final = {"MPO": "jpeg", "DIB": "bmp", "HEIF": "heic"}
# Formats that decode from top to bottom as the data comes: the part before a cut is worth showing.
_PARTIAL: Final = frozenset({"JPEG", "MPO", "PNG", "BMP", "DIB", "TIFF", "GIF"})
_GREY: Final = 128
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
_DEEP_GREY: Final = frozenset({"I;16", "I;16L", "I;16B", "I;16N", "I", "F"})
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
        """The image for a device that decodes: `data` itself where a device can decode it, else the decoded image.

        Raises what `decode_image` raises.
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
    "accept", the missing part of a cut JPEG, PNG, BMP, TIFF or GIF is grey.
    """
    if len(data) > settings.max_bytes:
        raise too_many_bytes(len(data), settings.max_bytes)
    silence_decoders()
    try:
        return _decode(data, settings, _pixels)
    except ImageTruncated:
        if settings.truncated != "accept":
            raise
        return _decode(data, settings, _partial_pixels)


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
            if image.format not in ("JPEG", "MPO") or image.info.get("adobe_transform", 1) != 1:
                return None
            orientation = _orientation(image)
            width, height = image.size
    except Exception:  # noqa: BLE001 - whatever is wrong, the reference decoder reports it better
        return None
    swapped = ARRAY_TURNS.get(orientation, (False,))[0]
    return EncodedImage(data, *((height, width) if swapped else (width, height)), orientation, "jpeg")


def _decode(
    data: bytes, settings: DecodeSettings, read: Callable[[bytes, ImageFile.ImageFile], ByteArray]
) -> DecodedImage:
    try:
        with _open(data, settings) as image:
            name = _NAMES.get(image.format or "", (image.format or "").lower())
            pixels = read(data, image)
    except ImageRejected:
        raise
    except Exception as exc:  # the parsers of nine formats raise whatever a broken file leads them to
        raise _damaged(data, exc) from exc
    height, width = pixels.shape[:2]
    digest = hashlib.sha256(struct.pack("<II", width, height))
    digest.update(pixels.data)
    return DecodedImage(pixels=pixels, format=name, pixel_sha256=digest.hexdigest())


def _open(data: bytes, settings: DecodeSettings) -> ImageFile.ImageFile:
    """The image with its header read. Raises ImageUnsupported, ImageTooLarge, or what the parser raises."""
    kind = sniff(data[:SNIFF_BYTES])
    if kind is None:
        raise ImageUnsupported(detail=_looks_like(data))
    if kind == "ico":  # Pillow decodes these while it opens them
        _check_pixels(ico_pixels(data), settings)
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
    if kind == "jpeg":
        _check_scans(data, image.width * image.height, settings)
    return image


def _check_pixels(pixels: int, settings: DecodeSettings, sides: str = "") -> None:
    if pixels > settings.max_pixels:
        raise ImageTooLarge(what=f"{sides}{pixels:,} pixels", limit=f"{settings.max_pixels:,} (decode.max_pixels)")


def _check_scans(data: bytes, pixels: int, settings: DecodeSettings) -> None:
    most = most_scans(pixels, settings.max_pixels)
    if has_more_scans(data, most):
        raise ImageTooLarge(what=f"a JPEG file with more than {most} scans", limit=f"{most} for {pixels:,} pixels")


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
    return _upright(image)


def _partial_pixels(_: bytes, image: ImageFile.ImageFile) -> ByteArray:
    """As `_pixels`; of a cut file as many as it holds, where the format decodes from top to bottom, the rest grey."""
    if image.format not in _PARTIAL:
        image.load()
        return _upright(image)
    if image.format in ("JPEG", "MPO"):  # libjpeg fills what is missing with grey once it sees an end
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
    return _upright(image)


def _upright(image: ImageFile.ImageFile) -> ByteArray:
    """The loaded picture, upright."""
    orientation = _orientation(image)
    return _turned(np.array(_to_rgb(image)), orientation)


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


def _to_rgb(image: Image.Image) -> Image.Image:
    """A loaded image of any mode as mode RGB.

    16-bit channels keep their high byte, as Pillow's own readers do for RGB: a grey picture and its RGB copy stay
    equal. CMYK is converted without a colour profile. Raises ValueError for a mode that has no RGB meaning.
    """
    if image.mode in _DEEP_GREY:
        return Image.fromarray(_grey_to_8_bits(np.asarray(image))).convert("RGB")
    if image.has_transparency_data and _has_usable_key(image):
        return _on_white(image)
    # `convert` would apply even a key that is not usable.
    image.info.pop("transparency", None)
    return image if image.mode == "RGB" else image.convert("RGB")  # `convert` copies even RGB


def _has_usable_key(image: Image.Image) -> bool:
    """False for a PNG colour key of 16-bit channels: its pixels have 8 bits by now, so it would match by half."""
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

    16-bit types have a full scale. 32-bit integers and floats do not declare one: the smallest customary scale (1 for
    floats, 255, 65535) that holds all values is assumed; values outside all of them are stretched to their range.
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


def silence_decoders() -> None:
    """Keeps the libraries' warnings (`_QUIET`) from being printed or raised, in all threads from now on.

    The filters go in front of all others, and are put back if somebody removed them. `warnings.catch_warnings` around
    the decoding would replace the filters of all threads.
    """
    for message, category, module in _QUIET:
        patterns = re.compile(message, re.IGNORECASE) if message else None, re.compile(module) if module else None
        if ("ignore", patterns[0], category, patterns[1], 0) not in warnings.filters[: len(_QUIET)]:
            warnings.filterwarnings("ignore", message, category, module)
