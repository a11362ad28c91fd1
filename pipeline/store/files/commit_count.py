"""COMMITS: the number of the last transaction that is durable, known apart from the catalog.

DuckDB's log can be lost, and where its beginning is damaged DuckDB drops all of it without a word. So each transaction
writes its number into core.commits, and COMMITS gets the number when the transaction is durable and before anybody is
told of it. Wherever a crash comes, the number in COMMITS is never above that of a whole catalog. A catalog below it has
lost transactions.

The file has two places, for odd and even numbers, each with a checksum: a write that is cut off leaves the number
before, and that transaction was not answered yet.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable
from typing import Final

from pipeline.store.files.durable import Folder

COMMITS_NAME: Final = "COMMITS"
_PLACE: Final = 4096  # bytes from one place to the other: a torn write of a sector harms one of them
_LINE = re.compile(rb"(\d{20}) ([0-9a-f]{8})\n")


def record(folder: Folder, number: int) -> None:
    """Records a durable transaction, durably."""
    folder.overwrite(COMMITS_NAME, [number % 2 * _PLACE], _line(number), "commits")


def write(folder: Folder, number: int) -> None:
    """Makes the file, or replaces it, with the number of the last transaction."""
    places = [b"", b""]
    places[number % 2] = _line(number)
    folder.write(COMMITS_NAME, _laid_out(places), "commits")


def is_damaged(folder: Folder) -> bool:
    """Whether anything but a number and newlines is in one of the places. For the thread that records."""
    try:
        data = folder.path(COMMITS_NAME).read_bytes()
    except OSError:
        return False  # the next transaction or opening tells
    lines = (_LINE.match(data, start) for start in (0, _PLACE))
    return data != _laid_out([_line(int(line[1])) if line else b"" for line in lines])


def _laid_out(places: Iterable[bytes]) -> bytes:
    return b"".join(place.ljust(_PLACE, b"\n") for place in places)


def recorded(folder: Folder) -> int | None:
    """The number of the last transaction that was recorded; None where no file tells it."""
    try:
        data = folder.path(COMMITS_NAME).read_bytes()
    except OSError:
        return None
    lines = (_LINE.match(data, start) for start in (0, _PLACE))
    numbers = [int(line[1]) for line in lines if line and line[0] == _line(int(line[1]))]
    return max(numbers, default=None)


def _line(number: int) -> bytes:
    digits = b"%020d" % number
    return b"%s %08x\n" % (digits, zlib.crc32(digits))
