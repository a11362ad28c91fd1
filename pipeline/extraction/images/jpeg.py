"""JPEG pixels by simplejpeg, where it gives exactly the pixels that Pillow gives, in a fraction of the time; and files.

Both use libjpeg-turbo, with the exact DCT ("islow") and smooth chroma upsampling. Pillow keeps four bytes a pixel and
copies them several times on their way out; simplejpeg writes them once, into the final array.

It decodes 8-bit baseline, extended and progressive files with one or three components that give no warning. All others
(CMYK, arithmetic coding, damage of any kind) are left to Pillow, so that Pillow alone decides which files are accepted
and how a rejection reads. Once per process a test shows whether the two libraries agree on this machine.
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
GREY: Final = 128  # what libjpeg fills in
_SAMPLINGS: Final = (0, 1, 2)  # Pillow's numbers of 4:4:4, 4:2:2 and 4:2:0
_OTHER_SAMPLINGS: Final = ("440", "411")  # Pillow cannot write these
# A decoder goes over the whole picture for each scan, however few bytes the scan has. Encoders write up to about 12.
_MOST_SCANS: Final = 100  # of any picture
_SCANS_OF_LARGEST: Final = 16  # of one with as many pixels as are accepted
START_OF_SCAN: Final = b"\xff\xda"
# Where a decoder stops, in coded data too: not at restarts, and not at bytes that stand for themselves.
_MARKER: Final = re.compile(rb"\xff([\xc0-\xcf\xd8-\xfe])")
_MOST_EXIF: Final = 64  # segments of 64 KiB: Pillow appends each to those before, which copies them
_MOST_BETWEEN: Final = 2**16  # bytes between segments: Pillow reads them one by one


def jpeg_pixels(data: bytes, width: int, height: int) -> ByteArray | None:
    """The picture of the JPEG file `data`, as stored (no EXIF turn): [height, width, 3] uint8 RGB, C-contiguous.

    None where Pillow has to decode it: without simplejpeg, for other kinds of files, where the sides differ from those
    that Pillow read from the header, and on any warning of libjpeg-turbo. Releases the interpreter's lock. Raises
    MemoryError.
    """
    library = _library()
    marker, depth, components = _first_frame(data)
    if library is None or marker not in _FRAMES or depth != 8 or len(components) not in (1, 3):
        return None
    try:
        if library.decode_jpeg_header(data)[:2] != (height, width):
            return None
        return cast(ByteArray, library.decode_jpeg(data, "RGB"))
    except (ValueError, RuntimeError, KeyError):  # KeyError: a chroma sampling that it does not know
        return None


def is_baseline(data: bytes) -> bool:
    """Whether the file is a baseline JPEG of 8-bit colour, YCbCr by the numbers of its components: the one kind that
    every hardware decoder supports."""
    return _first_frame(data) == (_BASELINE, 8, (1, 2, 3))


def cannot_hold(data: bytes, pixels: int) -> bool:
    """Whether the JPEG file `data` is too short for a picture of so many pixels, whatever it shows: Huffman codes take
    at least one bit for each block of 8 x 8."""
    if 8 * len(data) * 64 >= pixels:
        return False
    marker, _, _ = _first_frame(data)
    return marker in _FRAMES


def missing_share(data: bytes, pixels: ByteArray, colours: str) -> float:
    """The share of a picture that the JPEG file `data` lacks at its end, though it has an end mark, in [0, 1].

    libjpeg fills such a part with one colour, grey, and warns; so both are looked for. `pixels` [H, W, 3] are those
    that it decoded, as stored; `colours` is GRAY, or CMYK, where the grey is another colour afterwards. 0 without
    simplejpeg, which tells of warnings.
    """
    share = _filled(pixels) if colours == "CMYK" else grey_share(pixels)
    return share if share and _warns(data, colours) else 0.0


def is_sequential(data: bytes) -> bool:
    """Whether the file is a grey or colour JPEG whose data go from top to bottom, so that what it lacks is at the end
    of the picture, and grey."""
    marker, _, components = _first_frame(data)
    return marker in (_BASELINE, 0xC1) and len(components) in (1, 3)


def grey_share(pixels: ByteArray) -> float:
    """The share of a picture at its end that has the grey that libjpeg fills in, in [0, 1]."""
    if (pixels[-1, -1] != GREY).any():
        return 0.0
    return _filled(pixels)


def _filled(pixels: ByteArray) -> float:
    """The share of the pixels that have the colour of the last one, row by row from the bottom."""
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
    """Whether libjpeg-turbo has something to say of the file."""
    library = _library()
    try:
        if library is not None:
            library.decode_jpeg(data, colours)
    except (ValueError, RuntimeError):
        return True
    except KeyError:  # a chroma sampling that it does not know
        pass
    return False


def most_scans(pixels: int, max_pixels: int) -> int:
    """How many scans a JPEG file of `pixels` may have: what decoding costs is scans times pixels."""
    return min(_MOST_SCANS, _SCANS_OF_LARGEST * max_pixels // max(pixels, 1))


def has_more_scans(data: bytes, most: int) -> bool:
    """Whether a decoder would read more than `most` scans of the JPEG file `data`, by its markers alone."""
    # No scan is without the mark; but pictures inside pictures have it, and what follows the end. Only a file with many
    # is worth a walk.
    return marks_of_scans(data) > most and _scans(data, most + 1) > most


def has_endless_header(data: bytes) -> bool:
    """Whether what stands before the picture would keep Pillow busy for long."""
    at = start = 2
    exif = parts = 0  # segments of EXIF; bytes of all segments
    for _ in range(MOST_SEGMENTS):
        found = _MARKER.search(data, at)
        between = (found.start() if found else len(data)) - start - parts
        if between > _MOST_BETWEEN or exif > _MOST_EXIF:
            return True
        if found is None or found[1] == b"\xda":
            return False
        at = found.end()
        if MARKER.get(0xFF00 | found[1][0], (None,))[-1] is not None:  # Pillow passes over what the marker begins
            size = int.from_bytes(data[at : at + 2], "big")
            exif += data[at + 2 : at + 8] == b"Exif\0\0"
            at += max(2, size)
            parts += at - found.start()
    return True


def marks_of_scans(data: bytes) -> int:
    """How often the mark of a scan stands in `data`: `bytes.count`, in a tenth of its time."""
    even = np.frombuffer(data, "<u2", len(data) // 2)
    odd = np.frombuffer(data, "<u2", (len(data) - 1) // 2, offset=1)
    mark = int.from_bytes(START_OF_SCAN, "little")
    return int(np.count_nonzero(even == mark) + np.count_nonzero(odd == mark))


def _scans(data: bytes, enough: int) -> int:
    """The scans until the end of the picture, counted up to `enough`; `enough` for a file of endless segments."""
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
    """The marker, depth and components' numbers of the first frame; zeros and () if there is none."""
    try:
        for marker, at in jpeg_segments(data):
            if marker in START_OF_FRAME:
                components = range(at + 10, at + 10 + 3 * data[at + 9], 3)
                return marker, data[at + 4], tuple(data[place] for place in components)
    except (IndexError, struct.error):
        pass
    return 0, 0, ()


def jpeg_file(pixels: ByteArray, quality: int) -> bytes:
    """The JPEG file of pixels [h, w, 3] uint8 RGB, with half of the colours' resolution (4:2:0).

    Pillow holds the interpreter's lock most of the time; simplejpeg does not, and is a fifth faster. What they make
    differs in single grey levels.
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
    """Whether the library's pixels equal Pillow's: packagers may link either to another libjpeg."""
    return all(np.array_equal(library.decode_jpeg(file, "RGB"), _pixels_by_pillow(file)) for file in _samples(library))


def _pixels_by_pillow(file: bytes) -> ByteArray:
    with Image.open(io.BytesIO(file), formats=["JPEG"]) as image:
        return np.asarray(image.convert("RGB"))


def _samples(library: ModuleType) -> list[bytes]:
    """Small files of every kind that `jpeg_pixels` decodes, full of sharp colour edges, where upsampling differs."""
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
