"""Reading image files: nothing here blocks on a pipe, opens a device, or reads more than was asked for.

Paths may hold any bytes (`os.fsdecode`'s surrogates); `shown` is how reports and the store name them.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from pipeline.errors import ImageIsFolder, ImageMissing, ImageRejected, ImageTooLarge, ImageUnreadable

_CHUNK_BYTES = 2**20
# Opening a pipe waits for its other end unless told not to; Windows has neither flag.
_OPEN_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_MISSING = (errno.ENOENT, errno.ENOTDIR)
# What is escaped: undecodable bytes (as os.fsdecode gives them), NUL, and a backslash that would read as an escape.
_ESCAPED = re.compile(r"[\udc80-\udcff\x00]|\\(?=x[0-9a-f]{2})")


def shown(path: str | os.PathLike[str]) -> str:
    r"""`path` as valid UTF-8 text; two different paths never become the same text.

    Bytes that are no UTF-8 appear as `\xff`; a backslash that a name itself has before `x` and two digits appears
    as `\x5c`. All other names, odd as they are, stay what they are.
    """
    text = _ESCAPED.sub(lambda match: f"\\x{ord(match[0]) & 0xFF:02x}", os.fspath(path))
    # Surrogates that stand for no byte (a manifest may hold them): no such file can exist, it only must be shown.
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def file_problem(path: Path) -> ImageRejected | None:
    """What keeps `path` from being read as a file, as far as its directory entry tells; None if nothing does."""
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
    """The row's reason for a failed file operation (ValueError: a NUL or a lone surrogate in the name)."""
    if isinstance(exc, OSError) and exc.errno not in _MISSING:
        if exc.errno == errno.EISDIR:
            return ImageIsFolder()
        return ImageUnreadable(detail=exc.strerror or str(exc))
    return ImageMissing()


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    # Asked before opening, because opening a device can already do something; and again afterwards, because the
    # name may have come to mean another file.
    problem = file_problem(path)
    if problem is not None:
        raise problem
    try:
        with os.fdopen(os.open(path, _OPEN_FLAGS), "rb", buffering=0) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise ImageUnreadable(detail="it is not a file any more")
            yield file
    except (OSError, ValueError) as exc:
        raise rejection(exc) from exc


def hash_file(path: Path) -> tuple[str, int]:
    """SHA-256 (lower-case hexadecimal) and size in bytes of a file, read in pieces of 1 MiB.

    Raises ImageMissing, ImageIsFolder, ImageUnreadable.
    """
    digest, size = hashlib.sha256(), 0
    piece = memoryview(bytearray(_CHUNK_BYTES))
    with _opened(path) as file:
        while count := file.readinto(piece):  # type: ignore[attr-defined]  # an unbuffered file has it
            digest.update(piece[:count])
            size += count
    return digest.hexdigest(), size


def read_head(path: Path, count: int) -> bytes:
    """The first `count` bytes of a file, fewer where it is shorter. Raises as `hash_file`."""
    with _opened(path) as file:
        return file.read(count)


def read_file(path: Path, max_bytes: int) -> bytes:
    """The bytes of a file. At most `max_bytes` are held, also of a file that grows meanwhile.

    Raises ImageTooLarge, ImageMissing, ImageIsFolder, ImageUnreadable.
    """
    with _opened(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > max_bytes:
            raise too_many_bytes(size, max_bytes)
        pieces, held = [], 0
        while piece := file.read(_CHUNK_BYTES if held >= size else size - held):
            pieces.append(piece)
            held += len(piece)
            if held > max_bytes:
                raise too_many_bytes(held, max_bytes)
    return b"".join(pieces)


def too_many_bytes(size: int, max_bytes: int) -> ImageTooLarge:
    """The rejection of a file of `size` bytes where `decode.max_bytes` is `max_bytes`."""
    return ImageTooLarge(what=f"a file of {size:,} bytes", limit=f"{max_bytes:,} bytes (decode.max_bytes)")
