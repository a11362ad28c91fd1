"""`check --repair` of a store that lost its last transactions: continues without them, and deletes none of their files.

Before opening the catalog for writing, copies its log into quarantine and truncates it where DuckDB cannot replay it;
then quarantines pictures and embeddings that no row names. Only then do the counts agree, so an interrupted repair is
repeated.

A log is a header and entries: length and checksum (8 bytes each), payload. A transaction's entries name a table and its
changed rows; one without content ends it. Only DuckDB decides whether an entry is sound. This code also reads entries
that DuckDB refuses, so its output may be wrong.
"""

from __future__ import annotations

import os
import re
import shutil
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import dropwhile, pairwise
from pathlib import Path
from typing import Final

from pipeline.errors import StoreDamaged
from pipeline.store import cleanup
from pipeline.store.catalog import changes
from pipeline.store.catalog.connection import Catalog, is_whole, last_commit, log_of, lost_commits
from pipeline.store.catalog.opening import catalog_file
from pipeline.store.files import commit_count
from pipeline.store.files.durable import QUARANTINE, Folder, disk_errors
from pipeline.store.records import Problem

_END: Final = bytes.fromhex("0500000000000000 e7fe7d722fed3d5e 640064ffff")
_TABLE: Final = re.compile(rb"\x04core.([a-z_]+)\xff\xff\xff\xff", re.DOTALL)
_NUMBER: Final = re.compile(rb"f\x00\x08(.{8})", re.DOTALL)
_TEXT: Final = re.compile(rb"m\x00([\x00-\x7f]|[\x80-\xff][\x00-\x7f])")  # followed by that many bytes
_TELLING: Final = frozenset({"persons", "corrections", "directories"})  # not `accounts`: its texts are secret
_MOST_SHOWN: Final = 400  # characters per change


@dataclass(frozen=True)
class Loss:
    """Lost transactions: those after `last`; `number` exceeds all that ever existed."""

    where: str
    detail: str
    last: int
    number: int

    @property
    def log(self) -> str:
        """The quarantined log. A repeated repair finds the same name, other repairs use others."""
        return f"{QUARANTINE}/{log_of(Path(self.where))}.{self.number}"

    def keep_log(self, folder: Folder, end: int | None) -> None:
        """Copies the log into quarantine, then truncates it at `end` (None: DuckDB does)."""
        log = log_of(folder.path(self.where))
        if log.is_dir():
            folder.quarantine(log.name)
        if not log.exists():
            return
        if not folder.path(self.log).exists():
            with disk_errors(folder.root):
                data = log.read_bytes()
            folder.write(self.log, data, "catalog")
        if end is not None:
            folder.truncate(log.name, end, "catalog")

    def accept(self, catalog: Catalog) -> list[Problem]:
        """Continues without the lost transactions. Must run before any other transaction or deletion."""
        folder = catalog.folder
        unnamed = [file for file in sorted(cleanup.unnamed_files(catalog)) if file.startswith("embeddings/")]
        for file in unnamed:
            folder.quarantine(file)
        pictures = cleanup.quarantine_images(catalog)
        catalog.start_count(self.number)
        with catalog.transaction("count_commits"):
            changes.begin_again(catalog)  # readers may have seen lost changes
        log = folder.path(self.log)
        kept, lost = _split_at(log.read_bytes() if log.exists() else b"", self.last)
        aside = f"kept in {QUARANTINE}/: {pictures} pictures, {len(unnamed)} files of embeddings"
        aside += f", and the log as {log.name}" if log.exists() else ", and no log: there was none"
        details = [f"{self.detail}; changes intact in the log: {kept} ({aside})"]
        details += [f"lost, as far as the log tells: {change}" for change in lost]
        return [Problem("catalog", self.where, detail, "") for detail in details]


def look_for_loss(folder: Folder) -> Loss | None:
    """Returns the loss, or None. Copies the log into quarantine, and truncates it after the last transaction that
    DuckDB can replay.

    Raises StoreDamaged if the catalog is unreadable even without its log.
    """
    file, recorded, end = catalog_file(folder), commit_count.recorded(folder), None
    try:
        last = last_commit(file, folder.root)
    except StoreDamaged:
        if not log_of(file).exists():
            raise
        last, end = _sound_beginning(folder, file)
    else:
        if is_whole(last, recorded):
            return None
    detail = f"{commit_count.COMMITS_NAME} was missing or unreadable"
    if recorded is not None:
        detail = lost_commits(file, last, recorded)
    loss = Loss(file.name, detail, last or 0, max(last or 0, recorded or 0) + 1)
    loss.keep_log(folder, end)
    return loss


def _sound_beginning(folder: Folder, file: Path) -> tuple[int | None, int]:
    """The last transaction of the log that DuckDB can replay, and its end."""
    with _trials(folder, file) as last_of:
        last_of(b"")  # raises if the catalog itself is damaged
        log = log_of(file).read_bytes() if log_of(file).is_file() else b""
        ends = _ends(log)

        def is_damaged(end: int) -> bool:
            try:
                last_of(log[:end])
            except StoreDamaged:
                return True
            return False

        end = ends[bisect_right(ends, False, key=is_damaged) - 1]
        return last_of(log[:end]), end


@contextmanager
def _trials(folder: Folder, file: Path) -> Iterator[Callable[[bytes], int | None]]:
    """Yields a function: the last transaction that the catalog would have with another log. DuckDB finds a log by the
    catalog's name, so this makes a second name (a copy if there are no hard links)."""
    place = folder.path(f"{QUARANTINE}/trial")
    trial = place / file.name

    def last_of(log: bytes) -> int | None:
        log_of(trial).write_bytes(log)
        return last_commit(trial, folder.root)

    shutil.rmtree(place, ignore_errors=True)  # of an interrupted repair
    folder.make(f"{QUARANTINE}/trial")
    try:
        with disk_errors(folder.root):
            try:
                os.link(file, trial)
            except OSError:
                shutil.copyfile(file, trial)
            yield last_of
    finally:
        shutil.rmtree(place, ignore_errors=True)


# Reading DuckDB's log


@dataclass(frozen=True)
class LoggedChange:
    """A logged transaction, or several if the end of one is damaged."""

    numbers: Sequence[int]  # as core.commits counts them
    tables: Mapping[str, list[str]]  # changed tables, with new texts of the telling ones

    def __str__(self) -> str:
        shown = [" ".join([name, *texts]) for name, texts in self.tables.items() if name not in ("commits", "store")]
        text = f"change {', '.join(map(str, self.numbers)) or '?'}: {'; '.join(shown)}"
        return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]} ..."


def _ends(log: bytes) -> list[int]:
    """Where the log can be truncated: at 0 and after each transaction."""
    return [0, *(match.end() for match in re.finditer(re.escape(_END), log))]


def _split_at(log: bytes, last: int) -> tuple[int, list[LoggedChange]]:
    """The number of logged transactions up to `last`, and the following ones."""
    changes = [change for start, end in pairwise([*_ends(log), len(log)]) if (change := _change(log[start:end])).tables]
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
