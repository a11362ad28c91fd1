"""Image file formats by their first bytes: what a file is, and whether it ends before its own headers say.

Signatures are those of the formats' specifications (JPEG: ITU-T T.81 B.1; PNG: W3C PNG 5.2; GIF89a 17; WebP: RFC
9649; TIFF 6.0 section 2; ISO base media file format, ISO/IEC 14496-12 4.3). Nothing here decodes pixels.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

SNIFF_BYTES: Final = 32  # what `sniff` needs of a file

# The suffixes that make a file an image without a look at its bytes.
IMAGE_SUFFIXES: Final = frozenset(
    {
        *(".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".bmp", ".dib", ".tif", ".tiff"),
        *(".gif", ".avif", ".heic", ".heif", ".ico"),
    }
)
# Camera raw files begin as TIFF files do, but hold sensor data: they are known not to be pictures we read.
RAW_SUFFIXES: Final = frozenset(
    {
        *(".3fr", ".arw", ".cr2", ".cr3", ".dcr", ".dng", ".erf", ".iiq", ".kdc", ".mef", ".mrw", ".nef", ".nrw"),
        *(".orf", ".pef", ".raf", ".raw", ".rw2", ".sr2", ".srf", ".srw", ".x3f"),
    }
)

_AVIF_BRANDS = (b"avif", b"avis")
_HEIC_BRANDS = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"hevm", b"hevs", b"mif1", b"msf1")
_TIFF_MAGIC = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
_BMP_HEADER_SIZES = (12, 16, 40, 52, 56, 64, 108, 124)


def sniff(head: bytes) -> str | None:
    """The format whose signature `head` (at least SNIFF_BYTES bytes, or the whole file) begins with, or None.

    One of jpeg, png, gif, webp, bmp, tiff, ico, avif, heic.
    """
    for name, test in _SIGNATURES.items():
        if test(head):
            return name
    return None


def _is_bmp(head: bytes) -> bool:
    # "BM" alone begins many a text; the size of the second header does not.
    return head[:2] == b"BM" and len(head) >= 18 and struct.unpack_from("<I", head, 14)[0] in _BMP_HEADER_SIZES


def _is_ico(head: bytes) -> bool:
    return head[:4] == b"\0\0\1\0" and len(head) >= 22 and head[4:6] != b"\0\0" and head[9:10] == b"\0"


_SIGNATURES: Final[dict[str, Callable[[bytes], bool]]] = {
    "jpeg": lambda head: head[:3] == b"\xff\xd8\xff",
    "png": lambda head: head[:8] == b"\x89PNG\r\n\x1a\n",
    "gif": lambda head: head[:6] in (b"GIF87a", b"GIF89a"),
    "webp": lambda head: head[:4] == b"RIFF" and head[8:12] == b"WEBP",
    "tiff": lambda head: head[:4] in _TIFF_MAGIC,
    "avif": lambda head: head[4:8] == b"ftyp" and head[8:12] in _AVIF_BRANDS,
    "heic": lambda head: head[4:8] == b"ftyp" and head[8:12] in _HEIC_BRANDS,
    "bmp": _is_bmp,
    "ico": _is_ico,
}


def ends_early(data: bytes) -> bool:
    """Whether the file `data` ends before its own headers say it should: it was cut, not otherwise damaged.

    False where the format does not tell (ICO, unknown formats). Only for naming a failure: a decoder may well
    read a file that "ends early", such as a JPEG without its last two bytes.
    """
    test = _ENDS.get(sniff(data[:SNIFF_BYTES]) or "")
    try:
        return test is not None and test(data)
    except (struct.error, IndexError):  # the headers themselves are cut
        return True


def _jpeg_ends_early(data: bytes) -> bool:
    at = 2
    while data[at] == 0xFF:
        marker = data[at + 1]
        if marker == 0xFF:  # a fill byte
            at += 1
            continue
        if marker == 0xDA:  # start of scan: from here on only the end of image matters
            return data.rfind(b"\xff\xd9", at) < 0  # from the end, where it is
        at += 2 + struct.unpack_from(">H", data, at + 2)[0]
    return False


def _png_ends_early(data: bytes) -> bool:
    at = 8
    while data[at + 4 : at + 8] != b"IEND":
        at += 12 + struct.unpack_from(">I", data, at)[0]
    return False


def _webp_ends_early(data: bytes) -> bool:
    return 8 + int(struct.unpack_from("<I", data, 4)[0]) > len(data)


def _bmp_ends_early(data: bytes) -> bool:
    return int(struct.unpack_from("<I", data, 2)[0]) > len(data)


def _gif_ends_early(data: bytes) -> bool:
    return not data.rstrip(b"\0").endswith(b";")


def _tiff_ends_early(data: bytes) -> bool:
    order = "<" if data[:2] == b"II" else ">"
    if data[2:4] in (b"+\0", b"\0+"):  # BigTIFF
        return int(struct.unpack_from(order + "Q", data, 8)[0]) >= len(data)
    return int(struct.unpack_from(order + "I", data, 4)[0]) >= len(data)


def _boxes_end_early(data: bytes) -> bool:
    at, kinds = 0, set()
    while at < len(data):
        kinds.add(data[at + 4 : at + 8])
        size = int(struct.unpack_from(">I", data, at)[0])
        if size == 1:  # the 64-bit size follows the type
            size = int(struct.unpack_from(">Q", data, at + 8)[0])
        if size < 8:  # 0: to the end of the file; else no box at all
            return False
        at += size
    # Cut just between two boxes: the coded picture ("mdat", or "idat" inside "meta") is not there.
    return at > len(data) or (b"mdat" not in kinds and b"idat" not in data)


_ENDS: Final[dict[str, Callable[[bytes], bool]]] = {
    "jpeg": _jpeg_ends_early,
    "png": _png_ends_early,
    "webp": _webp_ends_early,
    "bmp": _bmp_ends_early,
    "gif": _gif_ends_early,
    "tiff": _tiff_ends_early,
    "avif": _boxes_end_early,
    "heic": _boxes_end_early,
}


def ico_pixels(data: bytes) -> int:
    """The pixels of the largest picture inside an ICO file, as that picture's own header says; 0 for none.

    The directory of an ICO holds sides of up to 256 only, but the PNG or BMP it points at may be of any size.
    """
    count = struct.unpack_from("<H", data, 4)[0]
    return max((_ico_entry_pixels(data, 6 + 16 * entry) for entry in range(count)), default=0)


def _ico_entry_pixels(data: bytes, at: int) -> int:
    try:
        start = struct.unpack_from("<I", data, at + 12)[0]
        if data[start : start + 8] == b"\x89PNG\r\n\x1a\n":
            width, height = struct.unpack_from(">II", data, start + 16)
        else:  # a BMP without its file header; the height counts picture and mask
            width, height = struct.unpack_from("<ii", data, start + 4)
    except struct.error:
        return 0
    return abs(int(width) * int(height))
