"""Safe reading of image files, and format detection.

Nothing here blocks on a pipe, opens a device, reads more than requested, or decodes pixels. Paths may hold any bytes
(`os.fsdecode`'s surrogates); `texts.path_text` is their form in reports and the store. Functions that read whole files
also accept object addresses (s3://bucket/key), and raise BucketFailed if the bucket is unusable.

Signatures: JPEG: ITU-T T.81 B.1; PNG: W3C PNG 5.2; GIF89a 17; WebP: RFC 9649; TIFF 6.0 section 2; ISO base media file
format, ISO/IEC 14496-12 4.3.
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

_CHUNK_BYTES = 2**20  # enough for all that precedes a JPEG's size
# Two changes within one tick of the file system's clock have equal times: 2 s on FAT.
_SETTLED_NS = 2 * 10**9
_HAS_CTIME = os.name == "posix"  # elsewhere `st_ctime` is the creation time
# Without O_NONBLOCK, opening a pipe blocks; Windows has neither flag.
_OPEN_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_MISSING = (errno.ENOENT, errno.ENOTDIR)

SNIFF_BYTES: Final = 32  # bytes that `sniff` needs
# Files with these suffixes are images, whatever their bytes.
IMAGE_SUFFIXES: Final = frozenset(
    {
        *(".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".bmp", ".dib", ".tif", ".tiff"),
        *(".gif", ".avif", ".heic", ".heif", ".ico"),
    }
)
# Camera raw begins like TIFF but holds sensor data, which is not supported.
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


def file_problem(path: AnyPath) -> ImageRejected | None:
    """Why `path` cannot be read as a file, by its directory entry, or None."""
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
    """The rejection for a failed operation (ValueError: NUL or lone surrogate in the name)."""
    if isinstance(exc, OSError) and exc.errno not in _MISSING:
        if exc.errno == errno.EISDIR:
            return ImageIsFolder()
        return ImageUnreadable(detail=exc.strerror or str(exc))
    return ImageMissing()


@contextmanager
def _opened(path: AnyPath) -> Iterator[int]:
    """The file's descriptor."""
    # Checked before, as opening a device can have effects, and after, as the name may mean another file by then.
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
    """Turns errors of file or object operations into rejections."""
    try:
        yield
    except (OSError, ValueError) as exc:
        raise rejection(exc) from exc


def _opened_object(address: str, max_bytes: int) -> tuple[buckets.StoredObject, Iterator[bytes]]:
    """Metadata and pieces of an object of at most `max_bytes`. Use it in `_rejecting`."""
    found, pieces = buckets.open_object(address)
    check_bytes(found.bytes, max_bytes)
    return found, pieces


class HashedFile(NamedTuple):
    """SHA-256 (lower-case hexadecimal), size in bytes, pixels by the header, and state while reading (None if equal
    states would not prove equal bytes)."""

    sha256: str
    bytes: int
    pixels: int | None
    state: FileState | None


def hash_file(path: AnyPath, max_bytes: int = sys.maxsize) -> HashedFile:
    """Hashes a file of at most `max_bytes`, in pieces of 1 MiB. Raises ImageTooLarge, ImageMissing, ImageIsFolder,
    ImageUnreadable."""
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
    """SHA-256 and size of the pieces, and the pixels declared in the first."""
    digest, size, pixels = hashlib.sha256(), 0, None
    for piece in pieces:
        if size == 0:
            pixels = declared_pixels(piece)
        digest.update(piece)
        size += len(piece)
        check_bytes(size, max_bytes)
    return digest.hexdigest(), size, pixels


def object_state(found: buckets.StoredObject) -> FileState | None:
    """An object's state; None without an ETag. In whole seconds: listings may have fractions, reads do not."""
    if found.etag is None:
        return None
    tag = hashlib.sha256(found.etag.strip('"').encode()).digest()
    ctime_ns = int.from_bytes(tag[:8], "big") >> 1
    return FileState(found.bytes, found.modified_ns // 10**9 * 10**9, ctime_ns, 0)


def file_state(path: AnyPath) -> FileState | None:
    """A file's state, unopened; None if it is no file or cannot be examined."""
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
    """Whether any later change will alter the times."""
    latest = now_ns - _SETTLED_NS
    return _HAS_CTIME and 0 < state.ctime_ns < latest and -(2**63) <= state.mtime_ns < latest


def read_head(path: AnyPath, count: int) -> bytes:
    """At most the first `count` bytes of a file. Raises as `hash_file`."""
    with _opened(path) as file:
        return os.read(file, count)


def read_file(path: AnyPath, max_bytes: int) -> bytes:
    """A file's bytes, at most about `max_bytes` even if it grows. Raises as `hash_file`."""
    return read_with_state(path, max_bytes)[0]


def read_with_state(path: AnyPath, max_bytes: int) -> tuple[bytes, FileState | None]:
    """A file's bytes (`read_file`) and state after reading; if a HashedFile has this state, they have its hash. None
    for an object without an ETag."""
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
    """Raises ImageTooLarge if `size` exceeds `max_bytes`."""
    if size > max_bytes:
        raise ImageTooLarge(what=f"a file of {size:,} bytes", limit=f"{max_bytes:,} bytes (decode.max_bytes)")


def sniff(head: bytes) -> str | None:
    """The format of `head` (at least SNIFF_BYTES bytes, or the whole file), or None.

    One of jpeg, png, gif, webp, bmp, tiff, ico, avif, heic.
    """
    return next((name for name, test in _SIGNATURES.items() if test(head)), None)


def _is_bmp(head: bytes) -> bool:
    # Text may begin with "BM", so the second header's size must fit, too.
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
    """Whether the file ends before its headers say: cut, not otherwise damaged.

    False if the format does not tell (ICO, unknown). Use it to name a failure only: decoders may read such files, such
    as a JPEG without its last two bytes.
    """
    test = _ENDS.get(sniff(data[:SNIFF_BYTES]) or "")
    try:
        return test is not None and test(data)
    except (struct.error, IndexError):  # the headers are cut
        return True


MOST_SEGMENTS: Final = 10_000  # of a JPEG file; photos have dozens
_FILL = re.compile(rb"\xff+(?=\xff)")  # fill bytes before a marker; crafted files have millions


def jpeg_segments(data: bytes) -> Iterator[tuple[int, int]]:
    """Markers and positions of a JPEG file's segments. Raises IndexError or struct.error if cut or endless."""
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
        if marker == 0xDA:  # start of scan: then only the end-of-image marker matters
            return data.rfind(b"\xff\xd9", at) < 0  # searched from the end
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
    # A file cut between boxes lacks the coded picture ("mdat", or "idat" inside "meta").
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


# Start-of-frame markers (T.81 table B.1): C0 to CF except DHT, JPG and DAC.
START_OF_FRAME: Final = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}


def declared_pixels(head: bytes) -> int | None:
    """Pixels by the header of the JPEG or PNG image beginning with `head`; None if unknown."""
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
    """Pixels of an ICO file's largest picture by its own header, 0 for none: the directory only knows sides up to 256,
    but a PNG or BMP inside may be larger."""
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
