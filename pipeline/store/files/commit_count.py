"""COMMITS: the number of the last durable transaction, stored outside the catalog (FORMAT.md).

DuckDB's log can be lost, and if its start is damaged DuckDB silently drops all of it. COMMITS is written once a
transaction is durable, before anybody is told. After any crash it is at most the number in an intact catalog; a catalog
below it has lost transactions. A torn write keeps the previous number, and its transaction was not yet acknowledged.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable
from typing import Final

from pipeline.store.files.durable import Folder

COMMITS_NAME: Final = "COMMITS"
_PLACE: Final = 4096  # bytes between the places: a torn sector damages only one
_LINE = re.compile(rb"(\d{20}) ([0-9a-f]{8})\n")


def record(folder: Folder, number: int) -> None:
    """Durably records a durable transaction."""
    folder.overwrite(COMMITS_NAME, [number % 2 * _PLACE], _line(number), "commits")


def write(folder: Folder, number: int) -> None:
    """Creates or replaces the file."""
    places = [b"", b""]
    places[number % 2] = _line(number)
    folder.write(COMMITS_NAME, _laid_out(places), "commits")


def is_damaged(folder: Folder) -> bool:
    """Whether a place has more than a number and newlines. Only for the recording thread."""
    try:
        data = folder.path(COMMITS_NAME).read_bytes()
    except OSError:
        return False  # the next transaction or opening reports it
    lines = (_LINE.match(data, start) for start in (0, _PLACE))
    return data != _laid_out([_line(int(line[1])) if line else b"" for line in lines])


def _laid_out(places: Iterable[bytes]) -> bytes:
    return b"".join(place.ljust(_PLACE, b"\n") for place in places)


def recorded(folder: Folder) -> int | None:
    """The last recorded transaction; None if unknown."""
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
