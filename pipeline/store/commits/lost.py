"""`check --repair` of a store whose last transactions are gone: it goes on without them, and deletes nothing of theirs.

Before the catalog is opened for writing its log is copied into quarantine, and cut off where DuckDB can't replay it any
more; then the pictures and embeddings that no row names go into quarantine. Only then does the count agree again, so a
repair that is cut off is simply repeated.

A log is a header and entries, each of them its length and checksum (8 bytes each) and its payload. The entries of a
transaction name a table and give the rows that changed in it; one without content ends the transaction. Only DuckDB
decides whether an entry is sound. This reads also what DuckDB refuses, so what it tells may be wrong.
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
_TEXT: Final = re.compile(rb"m\x00([\x00-\x7f]|[\x80-\xff][\x00-\x7f])")  # followed by so many bytes
_TELLING: Final = frozenset({"persons", "corrections", "directories"})  # not `accounts`, whose texts are secret
_MOST_SHOWN: Final = 400  # characters of a change


@dataclass(frozen=True)
class Loss:
    """What a store has lost: the transactions after `last`; `number` is above that of every one that it ever had."""

    where: str
    detail: str
    last: int
    number: int

    @property
    def log(self) -> str:
        """Where the log is kept, under a name that a repair that is repeated finds again, and no other repair uses."""
        return f"{QUARANTINE}/{log_of(Path(self.where))}.{self.number}"

    def keep_log(self, folder: Folder, end: int | None) -> None:
        """Copies the log into quarantine, then cuts it off at `end` (None: DuckDB does that itself)."""
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
        """Before any other transaction, and before anything is deleted: goes on without what is lost."""
        folder = catalog.folder
        unnamed = [file for file in sorted(cleanup.unnamed_files(catalog)) if file.startswith("embeddings/")]
        for file in unnamed:
            folder.quarantine(file)
        pictures = cleanup.quarantine_images(catalog)
        catalog.start_count(self.number)
        with catalog.transaction("count_commits"):
            changes.begin_again(catalog)  # readers may know what is lost
        log = folder.path(self.log)
        kept, lost = _split_at(log.read_bytes() if log.exists() else b"", self.last)
        aside = f"kept in {QUARANTINE}/: {pictures} pictures, {len(unnamed)} files of embeddings"
        aside += f", and the log as {log.name}" if log.exists() else ", and no log: there was none"
        details = [f"{self.detail}; changes intact in the log: {kept} ({aside})"]
        details += [f"lost, as far as the log tells: {change}" for change in lost]
        return [Problem("catalog", self.where, detail, "") for detail in details]


def look_for_loss(folder: Folder) -> Loss | None:
    """What the store has lost. Copies the log into quarantine and cuts it off after the last transaction that DuckDB
    can replay.

    Raises StoreDamaged if the catalog can't be read without its log either.
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
    """The last transaction of the log that DuckDB can replay, and where it ends."""
    with _trials(folder, file) as last_of:
        last_of(b"")  # raises if the catalog is damaged, too
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
    """Tells the last transaction that the catalog would have with another log. DuckDB finds a log by the name of the
    catalog, so this gives it a second one, on a disk without hard links that of a copy."""
    place = folder.path(f"{QUARANTINE}/trial")
    trial = place / file.name

    def last_of(log: bytes) -> int | None:
        log_of(trial).write_bytes(log)
        return last_commit(trial, folder.root)

    shutil.rmtree(place, ignore_errors=True)  # of a repair that was cut off
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


# What DuckDB's log of the catalog says


@dataclass(frozen=True)
class LoggedChange:
    """A transaction of the log, or several if what ended them is damaged."""

    numbers: Sequence[int]  # as core.commits counts them
    tables: Mapping[str, list[str]]  # the tables that it changed, with their new texts if these tell anything

    def __str__(self) -> str:
        shown = [" ".join([name, *texts]) for name, texts in self.tables.items() if name not in ("commits", "store")]
        text = f"change {', '.join(map(str, self.numbers)) or '?'}: {'; '.join(shown)}"
        return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]} ..."


def _ends(log: bytes) -> list[int]:
    """Where the log can be cut off: at its begin, and after each transaction."""
    return [0, *(match.end() for match in re.finditer(re.escape(_END), log))]


def _split_at(log: bytes, last: int) -> tuple[int, list[LoggedChange]]:
    """How many transactions up to number `last` are in the log, and those that follow."""
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
