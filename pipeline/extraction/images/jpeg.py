"""JPEG decoding by simplejpeg if its pixels equal Pillow's, in a fraction of the time; and encoding.

Both use libjpeg-turbo, with the exact DCT ("islow") and smooth chroma upsampling. Pillow copies four bytes per pixel
several times; simplejpeg writes the final array once.

It decodes 8-bit baseline, extended and progressive files with one or three components and no warnings. Pillow decodes
the rest (CMYK, arithmetic coding, damage), and alone decides what is accepted and how rejections read. A test once per
process checks that both agree on this machine.
"""

from __future__ import annotations

import functools
import io
import re
import struct
from types import ModuleType
from typing import Final, cast

import numpy as np
from PIL import Image
from PIL.JpegImagePlugin import MARKER

from pipeline.extraction.images.files import MOST_SEGMENTS, START_OF_FRAME, jpeg_segments
from pipeline.types import ByteArray

# ITU-T T.81, table B.1: start of frame, Huffman-coded: baseline, extended sequential, progressive.
_BASELINE: Final = 0xC0
_FRAMES: Final = (_BASELINE, 0xC1, 0xC2)
GREY: Final = 128  # libjpeg's fill value
_SAMPLINGS: Final = (0, 1, 2)  # Pillow's numbers for 4:4:4, 4:2:2 and 4:2:0
_OTHER_SAMPLINGS: Final = ("440", "411")  # Pillow cannot write these
# Each scan, however short, is a pass over the whole picture. Encoders write up to about 12.
_MOST_SCANS: Final = 100  # for any picture
_SCANS_OF_LARGEST: Final = 16  # for the largest accepted picture
START_OF_SCAN: Final = b"\xff\xda"
# Where a decoder stops, also in coded data: not at restarts or stuffed bytes.
_MARKER: Final = re.compile(rb"\xff([\xc0-\xcf\xd8-\xfe])")
_MOST_EXIF: Final = 64  # of 64 KiB: Pillow copies all earlier ones to append one
_MOST_BETWEEN: Final = 2**16  # bytes between segments, which Pillow reads singly


def jpeg_pixels(data: bytes, width: int, height: int) -> ByteArray | None:
    """A JPEG file's picture, as stored (no EXIF orientation): [height, width, 3] uint8 RGB, C-contiguous.

    None if Pillow must decode it: no simplejpeg, another kind of file, a size unlike Pillow's, any warning of
    libjpeg-turbo. Releases the interpreter's lock. Raises MemoryError.
    """
    library = _library()
    marker, depth, components = _first_frame(data)
    if library is None or marker not in _FRAMES or depth != 8 or len(components) not in (1, 3):
        return None
    try:
        if library.decode_jpeg_header(data)[:2] != (height, width):
            return None
        return cast(ByteArray, library.decode_jpeg(data, "RGB"))
    except (ValueError, RuntimeError, KeyError):  # KeyError: an unknown chroma sampling
        return None


def is_baseline(data: bytes) -> bool:
    """Whether it is a baseline JPEG of 8-bit YCbCr (by component numbers), the one kind that every hardware decoder
    supports."""
    return _first_frame(data) == (_BASELINE, 8, (1, 2, 3))


def cannot_hold(data: bytes, pixels: int) -> bool:
    """Whether a JPEG file is too short for its pixels: Huffman codes take at least one bit per 8 x 8 block."""
    if 8 * len(data) * 64 >= pixels:
        return False
    marker, _, _ = _first_frame(data)
    return marker in _FRAMES


def missing_share(data: bytes, pixels: ByteArray, colours: str) -> float:
    """The share in [0, 1] of a picture missing at its end, despite a JPEG end marker.

    libjpeg fills it with grey, and warns; both are checked. `pixels` [H, W, 3] are decoded, as stored; `colours` is
    GRAY, or CMYK, with another fill colour. 0 without simplejpeg, which reports warnings.
    """
    share = _filled(pixels) if colours == "CMYK" else grey_share(pixels)
    return share if share and _warns(data, colours) else 0.0


def is_sequential(data: bytes) -> bool:
    """Whether it is a grey or colour JPEG stored from top to bottom: missing data is at the picture's end, and grey."""
    marker, _, components = _first_frame(data)
    return marker in (_BASELINE, 0xC1) and len(components) in (1, 3)


def grey_share(pixels: ByteArray) -> float:
    """The share in [0, 1] of a picture at its end with libjpeg's fill value."""
    if (pixels[-1, -1] != GREY).any():
        return 0.0
    return _filled(pixels)


def _filled(pixels: ByteArray) -> float:
    """The share of pixels before the end with the last one's colour."""
    height, width, _ = pixels.shape
    filled: int = 0
    for row in range(height - 1, -1, -1):
        same = (pixels[row, ::-1] == pixels[-1, -1]).all(axis=1)
        tail = width if same.all() else int(same.argmin())
        if not tail:
            break
        filled += tail
    return float(filled / (height * width))


def _warns(data: bytes, colours: str) -> bool:
    """Whether libjpeg-turbo warns about the file."""
    library = _library()
    try:
        if library is not None:
            library.decode_jpeg(data, colours)
    except (ValueError, RuntimeError):
        return True
    except KeyError:  # an unknown chroma sampling
        pass
    return False


def most_scans(pixels: int, max_pixels: int) -> int:
    """Maximum scans of a JPEG file: decoding costs scans times pixels."""
    return min(_MOST_SCANS, _SCANS_OF_LARGEST * max_pixels // max(pixels, 1))


def has_more_scans(data: bytes, most: int) -> bool:
    """Whether a decoder would read more than `most` scans, by the markers."""
    # Embedded pictures and trailing data also count as marks, so only files with many are walked.
    return marks_of_scans(data) > most and _scans(data, most + 1) > most


def has_endless_header(data: bytes) -> bool:
    """Whether data before the picture would keep Pillow busy."""
    at = start = 2
    exif = parts = 0  # EXIF segments; bytes of all segments
    for _ in range(MOST_SEGMENTS):
        found = _MARKER.search(data, at)
        between = (found.start() if found else len(data)) - start - parts
        if between > _MOST_BETWEEN or exif > _MOST_EXIF:
            return True
        if found is None or found[1] == b"\xda":
            return False
        at = found.end()
        if MARKER.get(0xFF00 | found[1][0], (None,))[-1] is not None:  # Pillow skips such a segment
            size = int.from_bytes(data[at : at + 2], "big")
            exif += data[at + 2 : at + 8] == b"Exif\0\0"
            at += max(2, size)
            parts += at - found.start()
    return True


def marks_of_scans(data: bytes) -> int:
    """Scan marks in `data`: `bytes.count`, in a tenth of the time."""
    even = np.frombuffer(data, "<u2", len(data) // 2)
    odd = np.frombuffer(data, "<u2", (len(data) - 1) // 2, offset=1)
    mark = int.from_bytes(START_OF_SCAN, "little")
    return int(np.count_nonzero(even == mark) + np.count_nonzero(odd == mark))


def _scans(data: bytes, enough: int) -> int:
    """Scans in the picture, at most `enough`; `enough` for endless segments."""
    scans, at = 0, 2
    for _ in range(MOST_SEGMENTS):
        found = _MARKER.search(data, at)
        if found is None or found[1] == b"\xd9" or scans == enough:
            return scans
        scans += found[1] == b"\xda"
        at = found.end()
        try:
            at += max(2, struct.unpack_from(">H", data, at)[0])
        except struct.error:
            return scans
    return enough


def _first_frame(data: bytes) -> tuple[int, int, tuple[int, ...]]:
    """Marker, depth and component numbers of the first frame; zeros and () without one."""
    try:
        for marker, at in jpeg_segments(data):
            if marker in START_OF_FRAME:
                components = range(at + 10, at + 10 + 3 * data[at + 9], 3)
                return marker, data[at + 4], tuple(data[place] for place in components)
    except (IndexError, struct.error):
        pass
    return 0, 0, ()


def jpeg_file(pixels: ByteArray, quality: int) -> bytes:
    """A JPEG file of pixels [h, w, 3] uint8 RGB, with chroma subsampling 4:2:0.

    simplejpeg is a fifth faster and releases the interpreter's lock, which Pillow mostly holds. Results differ by
    single grey levels.
    """
    library = _library()
    if library is not None:
        return bytes(library.encode_jpeg(np.ascontiguousarray(pixels), quality, colorsubsampling="420", fastdct=False))
    return _by_pillow(pixels, quality=quality)


@functools.cache
def _library() -> ModuleType | None:
    try:
        import simplejpeg

        return simplejpeg if _agrees(simplejpeg) else None
    except Exception:  # noqa: BLE001 - built for another NumPy or Pillow it may raise anything; Pillow then decodes
        return None


def _agrees(library: ModuleType) -> bool:
    """Whether its pixels equal Pillow's: packagers may link another libjpeg."""
    return all(np.array_equal(library.decode_jpeg(file, "RGB"), _pixels_by_pillow(file)) for file in _samples(library))


def _pixels_by_pillow(file: bytes) -> ByteArray:
    with Image.open(io.BytesIO(file), formats=["JPEG"]) as image:
        return np.asarray(image.convert("RGB"))


def _samples(library: ModuleType) -> list[bytes]:
    """Small files of every kind that `jpeg_pixels` decodes, with sharp colour edges, on which upsampling differs."""
    noise = np.random.default_rng(0).integers(0, 256, (37, 53, 3), dtype=np.uint8)
    noise[:, 20:] = noise[:1, 20:]
    files = []
    for progressive in (False, True):
        files += [_by_pillow(noise, quality=90, subsampling=s, progressive=progressive) for s in _SAMPLINGS]
        files.append(_by_pillow(noise[:, :, 0], quality=90, progressive=progressive))
    return files + [library.encode_jpeg(noise, colorsubsampling=sampling) for sampling in _OTHER_SAMPLINGS]


def _by_pillow(pixels: ByteArray, **options: int) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", **options)
    return file.getvalue()
