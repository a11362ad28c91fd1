"""When a photo was taken, by its EXIF data.

Pillow would read all tags, which takes over ten times as long, and holds the interpreter's lock.
"""

from __future__ import annotations

import re
import struct
from contextlib import suppress
from datetime import datetime
from typing import Final

# CIPA DC-008-2019 (EXIF 2.32), 4.6: DateTimeOriginal, DateTimeDigitized, DateTime. The first usable one counts.
_DATES: Final = (0x9003, 0x9004, 0x0132)
_EXIF_DIRECTORY: Final = 0x8769  # its value is the offset of the directory with the first two
_BYTE_TYPES: Final = (1, 2, 7)  # BYTE, ASCII and UNDEFINED, all of them in use for dates
_DATE: Final = re.compile(rb"(\d{4})[:/-](\d\d)[:/-](\d\d)[ T](\d\d):(\d\d):(\d\d)(?!\d)")
_DATE_BYTES: Final = 19
_HEADER_BYTES: Final = 8


def taken_at(exif: bytes) -> datetime | None:
    """The date in an EXIF block, which has the form of a TIFF file: the camera's local time, without zone. None if it
    has no usable one; never raises."""
    order = {b"II*\0": "<", b"MM\0*": ">"}.get(exif[:4])
    if order is None or len(exif) < _HEADER_BYTES:
        return None
    (first,) = struct.unpack_from(f"{order}I", exif, 4)
    found = _offsets(exif, order, first)
    if _EXIF_DIRECTORY in found:
        found |= _offsets(exif, order, found[_EXIF_DIRECTORY])
    for date in (_DATE.match(exif, found[tag]) for tag in _DATES if tag in found):
        if date is not None:
            year, month, day, hour, minute, second = map(int, date.groups())
            with suppress(ValueError):  # such as month 0 or 13
                return datetime(year, month, day, hour, minute, second)
    return None


def _offsets(exif: bytes, order: str, start: int) -> dict[int, int]:
    """Tag -> offset, of the dates and of the second directory, in the directory at `start`."""
    if start + 2 > len(exif):
        return {}
    (count,) = struct.unpack_from(f"{order}H", exif, start)
    entries = exif[start + 2 : start + 2 + 12 * count]
    return {
        tag: offset
        for tag, kind, size, offset in struct.iter_unpack(f"{order}HHII", entries[: len(entries) // 12 * 12])
        if tag == _EXIF_DIRECTORY or (tag in _DATES and kind in _BYTE_TYPES and size >= _DATE_BYTES)
    }
