"""`check --repair` of a store whose last transactions are gone: it goes on without them, and deletes nothing of theirs.

Before the catalog is opened for writing its log is copied into quarantine, and cut off where DuckDB can't replay it any
more; then the pictures and embeddings that no row names go into quarantine. Only then does the count agree again, so a
repair that is cut off is simply repeated.
"""

from __future__ import annotations

import os
import shutil
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from pipeline.errors import StoreDamaged
from pipeline.store.catalog import deletes, intents
from pipeline.store.catalog.connection import Catalog, is_whole, last_commit, log_of, lost_commits
from pipeline.store.catalog.opening import catalog_file
from pipeline.store.commits import fold
from pipeline.store.files import catalog_log, commit_count
from pipeline.store.files.durable import QUARANTINE, Folder, disk_errors
from pipeline.store.records import Problem


@dataclass(frozen=True)
class Loss:
    """What a store has lost: the transactions after `last`; `number` is above that of every one that it ever had."""

    where: str
    detail: str
    last: int
    number: int

    def accept(self, catalog: Catalog) -> list[Problem]:
        """Before any other transaction, and before anything is deleted: goes on without what is lost."""
        folder = catalog.folder
        unnamed = sorted(fold.unnamed_files(catalog) - set(deletes.pending(catalog)))
        for file in unnamed:
            folder.set_aside(file)
        # Their numbers will be given again, to other references.
        for matrix in filter(folder.holds, folder.root.glob("references/*/*")):
            folder.unlink(matrix.relative_to(folder.root).as_posix())
        pictures = intents.undo(catalog)
        catalog.start_count(self.number)
        log = log_of(folder.path(f"{QUARANTINE}/{self.where}"))
        kept, lost = catalog_log.split_at(log.read_bytes() if log.is_file() else b"", self.last)
        aside = f"kept in {QUARANTINE}/: {pictures} pictures, {len(unnamed)} files of embeddings"
        aside += ", and the log" if log.exists() else ", and no log: there was none"
        details = [f"{self.detail}; changes intact in the log: {kept} ({aside})"]
        details += [f"lost, as far as the log tells: {change}" for change in lost]
        return [Problem("catalog", self.where, detail, "") for detail in details]


def look_for_loss(folder: Folder) -> Loss | None:
    """What the store has lost. Copies the log into quarantine and cuts it off after the last transaction that DuckDB
    can replay.

    Raises StoreDamaged if the catalog can't be read without its log either.
    """
    file, recorded = catalog_file(folder), commit_count.recorded(folder)
    try:
        last = last_commit(file, folder.root)
    except StoreDamaged:
        if not log_of(file).exists():
            raise
        last = _cut_log(folder, file)
    else:
        if is_whole(last, recorded):
            return None
        _copy_log(folder, file)
    detail = f"{commit_count.COMMITS_NAME} was missing or unreadable"
    if recorded is not None:
        detail = lost_commits(file, last, recorded)
    return Loss(file.name, detail, last or 0, max(last or 0, recorded or 0) + 1)


def _copy_log(folder: Folder, file: Path) -> None:
    """Into quarantine, unless what is there begins with it: then a repair was cut off after it cut the log."""
    log, aside = log_of(file), f"{QUARANTINE}/{log_of(file).name}"
    if not log.is_file():
        return
    with disk_errors(folder.root):
        data = log.read_bytes()
        copied = folder.path(aside).is_file() and folder.path(aside).read_bytes().startswith(data)
    if not copied:
        folder.make(QUARANTINE)
        folder.write(aside, data, "catalog")


def _cut_log(folder: Folder, file: Path) -> int | None:
    """The catalog's last transaction once its log ends after the last one that DuckDB can replay."""
    name = log_of(file).name
    with _trials(folder, file) as last_of:
        last = last_of(b"")  # raises if the catalog is damaged, too
        if not folder.path(name).is_file():
            folder.set_aside(name)
            return last
        log = folder.path(name).read_bytes()
        ends = catalog_log.ends(log)

        def is_damaged(end: int) -> bool:
            try:
                last_of(log[:end])
            except StoreDamaged:
                return True
            return False

        end = ends[bisect_right(ends, False, key=is_damaged) - 1]
        last = last_of(log[:end])
    _copy_log(folder, file)
    folder.truncate(name, end, "catalog")
    return last


@contextmanager
def _trials(folder: Folder, file: Path) -> Iterator[Callable[[bytes], int | None]]:
    """Tells the last transaction that the catalog would have with another log. DuckDB finds a log by the name of the
    catalog, so this gives it a second one, on a disk without hard links that of a copy."""
    folder.make(QUARANTINE)
    with TemporaryDirectory(dir=folder.path(QUARANTINE)) as place, disk_errors(folder.root):
        trial = Path(place) / file.name
        try:
            os.link(file, trial)
        except OSError:
            shutil.copyfile(file, trial)

        def last_of(log: bytes) -> int | None:
            log_of(trial).write_bytes(log)
            return last_commit(trial, folder.root)

        yield last_of
