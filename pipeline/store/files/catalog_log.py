"""DuckDB's log of the catalog, as far as a repair reads it: where its transactions end, and what they say.

A log is a header and entries, each of them its length and checksum (8 bytes each) and its payload. The entries of a
transaction name a table and give the rows that changed in it; one without content ends the transaction. Only DuckDB
decides whether an entry is sound. This reads also what DuckDB refuses, so what it tells may be wrong.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import dropwhile, pairwise
from typing import Final

_END: Final = bytes.fromhex("0500000000000000 e7fe7d722fed3d5e 640064ffff")
_TABLE: Final = re.compile(rb"\x04core.([a-z_]+)\xff\xff\xff\xff", re.DOTALL)
_NUMBER: Final = re.compile(rb"f\x00\x08(.{8})", re.DOTALL)
_TEXT: Final = re.compile(rb"m\x00([\x00-\x7f]|[\x80-\xff][\x00-\x7f])")  # followed by so many bytes
_TELLING: Final = frozenset({"persons", "corrections", "directories"})  # not `accounts`, whose texts are secret
_MOST_SHOWN: Final = 400  # characters of a change


@dataclass(frozen=True)
class LoggedChange:
    """A transaction of the log, or several if what ended them is damaged."""

    numbers: Sequence[int]  # as core.commits counts them
    tables: Mapping[str, list[str]]  # the tables that it changed, with their new texts if these tell anything

    def __str__(self) -> str:
        shown = [" ".join([name, *texts]) for name, texts in self.tables.items() if name not in ("commits", "store")]
        text = f"change {', '.join(map(str, self.numbers)) or '?'}: {'; '.join(shown)}"
        return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]} ..."


def ends(log: bytes) -> list[int]:
    """Where the log can be cut off: at its begin, and after each transaction."""
    return [0, *(match.end() for match in re.finditer(re.escape(_END), log))]


def split_at(log: bytes, last: int) -> tuple[int, list[LoggedChange]]:
    """How many transactions up to number `last` are in the log, and those that follow."""
    changes = [change for start, end in pairwise([*ends(log), len(log)]) if (change := _change(log[start:end])).tables]
    following = list(dropwhile(lambda change: change.numbers and max(change.numbers) <= last, changes))
    return len(changes) - len(following), following


def _change(entries: bytes) -> LoggedChange:
    numbers, tables = list[int](), dict[str, list[str]]()
    _, *parts = _TABLE.split(entries)
    for table, rows in zip(parts[::2], parts[1::2], strict=True):
        name = table.decode()
        texts = tables.setdefault(name, [])
        if name in _TELLING:
            texts.extend(_texts(rows))
        elif name == "commits" and (found := _NUMBER.search(rows)):
            numbers.append(int.from_bytes(found[1], "little"))
    return LoggedChange(numbers, tables)


def _texts(rows: bytes) -> Iterator[str]:
    for match in _TEXT.finditer(rows):
        low, *high = match[1]
        length = low & 0x7F | (high[0] << 7 if high else 0)
        text = rows[match.end() : match.end() + length].decode(errors="replace")
        if text and text.isprintable():
            yield text
