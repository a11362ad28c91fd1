"""Image files: reading them safely, and telling their format from their first bytes.

Nothing here blocks on a pipe, opens a device, reads more than was asked for, or decodes pixels. Paths may hold any
bytes (`os.fsdecode`'s surrogates); `shown` is how reports and the store write them. What reads a whole file also takes
the address of an object (s3://bucket/key) as text, and raises BucketFailed where its bucket cannot be used.

Signatures are those of the formats' specifications (JPEG: ITU-T T.81 B.1; PNG: W3C PNG 5.2; GIF89a 17; WebP: RFC
9649; TIFF 6.0 section 2; ISO base media file format, ISO/IEC 14496-12 4.3).
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import stat
import struct
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple, TypeAlias

from pipeline.errors import ImageIsFolder, ImageMissing, ImageRejected, ImageTooLarge, ImageUnreadable
from pipeline.runtime import buckets
from pipeline.types import FileState

AnyPath: TypeAlias = str | os.PathLike[str]

_CHUNK_BYTES = 2**20  # metadata, thumbnails and colour profiles, which come before a JPEG's size, fit in
# A second change may leave a file's times what they are for as long as its file system's clock stands: 2 s on FAT.
_SETTLED_NS = 2 * 10**9
_HAS_CTIME = os.name == "posix"  # elsewhere `st_ctime` is when the file was made
# Without O_NONBLOCK, opening a pipe waits for its other end; Windows has neither flag.
_OPEN_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_MISSING = (errno.ENOENT, errno.ENOTDIR)
# Escaped: undecodable bytes (as os.fsdecode gives them), NUL, and a backslash that would read as an escape.
_ESCAPED = re.compile(r"[\udc80-\udcff\x00]|\\(?=x[0-9a-f]{2})")

SNIFF_BYTES: Final = 32  # what `sniff` needs of a file
# Files with these suffixes are images, whatever their bytes.
IMAGE_SUFFIXES: Final = frozenset(
    {
        *(".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".bmp", ".dib", ".tif", ".tiff"),
        *(".gif", ".avif", ".heic", ".heif", ".ico"),
    }
)
# Camera raw files begin as TIFF files do, but hold sensor data, which we do not read.
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


def shown(path: str | os.PathLike[str]) -> str:
    r"""`path` as valid UTF-8 text; two different paths never become the same text.

    Bytes that are not UTF-8 appear as `\xff`; a backslash in the name before `x` and two digits appears as `\x5c`. All
    other names, however odd, stay as they are.
    """
    text = _ESCAPED.sub(lambda match: f"\\x{ord(match[0]) & 0xFF:02x}", os.fspath(path))
    # Surrogates that stand for no byte (a manifest may hold them): no such file can exist, but its name is shown.
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def file_problem(path: AnyPath) -> ImageRejected | None:
    """Why `path` cannot be read as a file, as far as its directory entry tells; None if it can."""
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError) as exc:
        return rejection(exc)
    if stat.S_ISDIR(mode):
        return ImageIsFolder()
    if not stat.S_ISREG(mode):
        return ImageUnreadable(detail="it is a pipe, a socket or a device, not a file")
    return None


def rejection(exc: OSError | ValueError) -> ImageRejected:
    """The rejection for a failed file operation (ValueError: a NUL or a lone surrogate in the name)."""
    if isinstance(exc, OSError) and exc.errno not in _MISSING:
        if exc.errno == errno.EISDIR:
            return ImageIsFolder()
        return ImageUnreadable(detail=exc.strerror or str(exc))
    return ImageMissing()


@contextmanager
def _opened(path: AnyPath) -> Iterator[int]:
    """Its descriptor, for as long as the block lasts."""
    # Checked before opening, because opening a device can have effects; and again afterwards, because the name may
    # have come to mean another file.
    problem = file_problem(path)
    if problem is not None:
        raise problem
    with _rejecting():
        file = os.open(path, _OPEN_FLAGS)
        try:
            if not stat.S_ISREG(os.fstat(file).st_mode):
                raise ImageUnreadable(detail="it is not a file any more")
            yield file
        finally:
            os.close(file)


@contextmanager
def _rejecting() -> Iterator[None]:
    """A failed operation on a file or an object as a rejection."""
    try:
        yield
    except (OSError, ValueError) as exc:
        raise rejection(exc) from exc


def _opened_object(address: str, max_bytes: int) -> tuple[buckets.StoredObject, Iterator[bytes]]:
    """What its bucket says of an object that is not larger than `max_bytes`, and its pieces. Use it in `_rejecting`."""
    found, pieces = buckets.open_object(address)
    check_bytes(found.bytes, max_bytes)
    return found, pieces


class HashedFile(NamedTuple):
    """SHA-256 (lower-case hexadecimal) and size in bytes of a file, the pixels that its header declares, and its state
    while it was read; None where equal states would not mean equal bytes."""

    sha256: str
    bytes: int
    pixels: int | None
    state: FileState | None


def hash_file(path: AnyPath, max_bytes: int = sys.maxsize) -> HashedFile:
    """The hash of a file, read in pieces of 1 MiB, if it is not larger than `max_bytes`.

    Raises ImageTooLarge, ImageMissing, ImageIsFolder, ImageUnreadable.
    """
    if buckets.is_address(path):
        with _rejecting():
            found, pieces = _opened_object(path, max_bytes)
            return HashedFile(*_hashed(pieces, max_bytes), object_state(found))
    begun = time.time_ns()
    with _opened(path) as file:
        before = _state(os.fstat(file))
        check_bytes(before.bytes, max_bytes)
        sha256, size, pixels = _hashed(iter(lambda: os.read(file, _CHUNK_BYTES), b""), max_bytes)
        tells = _state(os.fstat(file)) == before and before.bytes == size and _is_settled(before, begun)
    return HashedFile(sha256, size, pixels, before if tells else None)


def _hashed(pieces: Iterable[bytes], max_bytes: int) -> tuple[str, int, int | None]:
    """SHA-256 and number of bytes of these pieces, and the pixels that the first one declares."""
    digest, size, pixels = hashlib.sha256(), 0, None
    for piece in pieces:
        if size == 0:
            pixels = declared_pixels(piece)
        digest.update(piece)
        size += len(piece)
        check_bytes(size, max_bytes)
    return digest.hexdigest(), size, pixels


def object_state(found: buckets.StoredObject) -> FileState | None:
    """The state of an object; None where it has no ETag. A listing may tell parts of a second of its time, and what
    answers a reading does not."""
    if found.etag is None:
        return None
    tag = hashlib.sha256(found.etag.strip('"').encode()).digest()
    ctime_ns = int.from_bytes(tag[:8], "big") >> 1
    return FileState(found.bytes, found.modified_ns // 10**9 * 10**9, ctime_ns, 0)


def file_state(path: AnyPath) -> FileState | None:
    """The state of a file, looked at without opening it; None where it is none or cannot be looked at."""
    if buckets.is_address(path):
        try:
            return object_state(buckets.describe(path))
        except (OSError, ValueError):
            return None
    try:
        entry = os.stat(path)
    except (OSError, ValueError):
        return None
    return _state(entry) if stat.S_ISREG(entry.st_mode) else None


def _state(entry: os.stat_result) -> FileState:
    return FileState(entry.st_size, entry.st_mtime_ns, entry.st_ctime_ns, entry.st_ino & (2**63 - 1))


def _is_settled(state: FileState, now_ns: int) -> bool:
    """Whether any later change will show in the file's times."""
    latest = now_ns - _SETTLED_NS
    return _HAS_CTIME and 0 < state.ctime_ns < latest and -(2**63) <= state.mtime_ns < latest


def read_head(path: AnyPath, count: int) -> bytes:
    """The first `count` bytes of a file, fewer where it is shorter. Raises as `hash_file`."""
    with _opened(path) as file:
        return os.read(file, count)


def read_file(path: AnyPath, max_bytes: int) -> bytes:
    """The bytes of a file. At most about `max_bytes` are read, even if the file grows meanwhile.

    Raises ImageTooLarge, ImageMissing, ImageIsFolder, ImageUnreadable.
    """
    return read_with_state(path, max_bytes)[0]


def read_with_state(path: AnyPath, max_bytes: int) -> tuple[bytes, FileState | None]:
    """The bytes of a file (`read_file`), and its state once they were read: where that is the state of a HashedFile,
    they have its hash; of an object None where it has no ETag."""
    if buckets.is_address(path):
        with _rejecting():
            found, parts = _opened_object(path, max_bytes)
            return b"".join(parts), object_state(found)
    with _opened(path) as file:
        size = os.fstat(file).st_size
        check_bytes(size, max_bytes)
        pieces, total = [], 0
        while piece := os.read(file, _CHUNK_BYTES if total >= size else size - total):
            pieces.append(piece)
            total += len(piece)
            check_bytes(total, max_bytes)
        return b"".join(pieces), _state(os.fstat(file))


def check_bytes(size: int, max_bytes: int) -> None:
    """Raises ImageTooLarge for a file of `size` bytes where `decode.max_bytes` is less."""
    if size > max_bytes:
        raise ImageTooLarge(what=f"a file of {size:,} bytes", limit=f"{max_bytes:,} bytes (decode.max_bytes)")


def sniff(head: bytes) -> str | None:
    """The format whose signature `head` (at least SNIFF_BYTES bytes, or the whole file) begins with, or None.

    One of jpeg, png, gif, webp, bmp, tiff, ico, avif, heic.
    """
    return next((name for name, test in _SIGNATURES.items() if test(head)), None)


def _is_bmp(head: bytes) -> bool:
    # Texts may begin with "BM" too, so the size of the second header must fit as well.
    return head[:2] == b"BM" and len(head) >= 18 and struct.unpack_from("<I", head, 14)[0] in _BMP_HEADER_SIZES


_SIGNATURES: Final[dict[str, Callable[[bytes], bool]]] = {
    "jpeg": lambda head: head[:3] == b"\xff\xd8\xff",
    "png": lambda head: head[:8] == b"\x89PNG\r\n\x1a\n",
    "gif": lambda head: head[:6] in (b"GIF87a", b"GIF89a"),
    "webp": lambda head: head[:4] == b"RIFF" and head[8:12] == b"WEBP",
    "tiff": lambda head: head[:4] in _TIFF_MAGIC,
    "avif": lambda head: head[4:8] == b"ftyp" and head[8:12] in _AVIF_BRANDS,
    "heic": lambda head: head[4:8] == b"ftyp" and head[8:12] in _HEIC_BRANDS,
    "bmp": _is_bmp,
    "ico": lambda head: head[:4] == b"\0\0\1\0" and len(head) >= 22 and head[4:6] != b"\0\0" and head[9:10] == b"\0",
}


def ends_early(data: bytes) -> bool:
    """Whether the file `data` ends before its own headers say it should: it was cut, not otherwise damaged.

    False where the format does not tell (ICO, unknown formats). Only for naming a failure: a decoder may still read a
    file that "ends early", such as a JPEG without its last two bytes.
    """
    test = _ENDS.get(sniff(data[:SNIFF_BYTES]) or "")
    try:
        return test is not None and test(data)
    except (struct.error, IndexError):  # the headers themselves are cut
        return True


MOST_SEGMENTS: Final = 10_000  # of a JPEG file; photos have some dozens
_FILL = re.compile(rb"\xff+(?=\xff)")  # fill bytes before a marker: a crafted file has millions


def jpeg_segments(data: bytes) -> Iterator[tuple[int, int]]:
    """The marker and the place of each segment of a JPEG file. Raises IndexError and struct.error where it is cut or
    endless."""
    at = 2
    for _ in range(MOST_SEGMENTS):
        fill = _FILL.match(data, at)
        if fill is not None:
            at = fill.end()
        if data[at] != 0xFF:
            return
        yield data[at + 1], at
        at += 2 + struct.unpack_from(">H", data, at + 2)[0]
    raise IndexError(at)


def _jpeg_ends_early(data: bytes) -> bool:
    for marker, at in jpeg_segments(data):
        if marker == 0xDA:  # start of scan: after it only the end-of-image marker matters
            return data.rfind(b"\xff\xd9", at) < 0  # from the end, where it should be
    return False


def _png_ends_early(data: bytes) -> bool:
    at = 8
    while data[at + 4 : at + 8] != b"IEND":
        at += 12 + struct.unpack_from(">I", data, at)[0]
    return False


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
        if size < 8:  # 0: to the end of the file; 1 to 7: not a box
            return False
        at += size
    # A file cut just between two boxes lacks the coded picture ("mdat", or "idat" inside "meta").
    return at > len(data) or (b"mdat" not in kinds and b"idat" not in data)


_ENDS: Final[dict[str, Callable[[bytes], bool]]] = {
    "jpeg": _jpeg_ends_early,
    "png": _png_ends_early,
    "webp": lambda data: 8 + int(struct.unpack_from("<I", data, 4)[0]) > len(data),
    "bmp": lambda data: int(struct.unpack_from("<I", data, 2)[0]) > len(data),
    "gif": lambda data: not data.rstrip(b"\0").endswith(b";"),
    "tiff": _tiff_ends_early,
    "avif": _boxes_end_early,
    "heic": _boxes_end_early,
}


# Start-of-frame markers (T.81 table B.1): C0 to CF but the tables' DHT, JPG and DAC.
START_OF_FRAME: Final = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}


def declared_pixels(head: bytes) -> int | None:
    """The pixels of the JPEG or PNG image beginning with `head`, as its header says; None where that does not tell."""
    try:
        kind = sniff(head[:SNIFF_BYTES])
        if kind == "png":
            width, height = struct.unpack_from(">II", head, 16)
            return int(width * height)
        for marker, at in jpeg_segments(head) if kind == "jpeg" else ():
            if marker in START_OF_FRAME:
                height, width = struct.unpack_from(">HH", head, at + 5)
                return int(width * height)
    except (struct.error, IndexError):
        pass
    return None


def ico_pixels(data: bytes) -> int:
    """The pixels of the largest picture inside an ICO file, as that picture's own header says; 0 for none.

    The directory of an ICO holds sides up to 256 only, but the PNG or BMP that it points at may have any size.
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
