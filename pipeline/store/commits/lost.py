"""`check --repair` of a store whose last transactions are gone: it goes on without them, and deletes nothing of theirs.

Before the catalog is opened for writing its log goes into quarantine; then the pictures and embeddings that no row
names any more. Only then does the count agree again, so a repair that is cut off is simply repeated.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from pipeline.errors import StoreDamaged
from pipeline.store.catalog import deletes, intents
from pipeline.store.catalog.connection import Catalog, is_whole, last_commit, log_of, lost_commits
from pipeline.store.catalog.opening import catalog_file
from pipeline.store.commits import fold
from pipeline.store.files import commit_count
from pipeline.store.files.durable import QUARANTINE, Folder, disk_errors
from pipeline.store.records import Problem


@dataclass(frozen=True)
class Loss:
    """What a store has lost: `number` is above that of every transaction that it ever had."""

    where: str
    detail: str
    number: int

    def settle(self, catalog: Catalog) -> Problem:
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
        kept = f"kept in {QUARANTINE}/: {pictures} pictures, {len(unnamed)} files of embeddings"
        kept += ", and the log" if log.exists() else ", and no log: there was none"
        return Problem("catalog", self.where, f"{self.detail} ({kept})", "")


def look_for_loss(folder: Folder) -> Loss | None:
    """What the store has lost. Keeps a copy of the log, or moves it away where it can't be read.

    Raises StoreDamaged where the catalog can't be read without its log either.
    """
    file, recorded = catalog_file(folder), commit_count.recorded(folder)
    log = log_of(file)
    try:
        last = last_commit(file, folder.root)
    except StoreDamaged:
        if not log.exists():
            raise
        last = _without_log(folder, file, log)
    else:
        if is_whole(last, recorded):
            return None
        if log.exists():
            folder.make(QUARANTINE)
            aside = folder.path(f"{QUARANTINE}/{log.name}")
            with disk_errors(folder.root):
                aside.unlink(missing_ok=True)  # copying would follow a link
                shutil.copy2(log, aside)
    detail = f"{commit_count.COMMITS_NAME} was missing or unreadable"
    if recorded is not None:
        detail = lost_commits(file, last, recorded)
    return Loss(file.name, detail, max(last or 0, recorded or 0) + 1)


def _without_log(folder: Folder, file: Path, log: Path) -> int | None:
    """The catalog's last transaction when the log is out of the way."""
    folder.set_aside(log.name)
    try:
        return last_commit(file, folder.root)
    except StoreDamaged:
        with disk_errors(folder.root):
            folder.path(f"{QUARANTINE}/{log.name}").replace(log)
        raise
