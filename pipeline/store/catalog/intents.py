"""The intent log: the guids of images that are about to be written, and whose transaction may never come.

An image is written before the transaction that names it. A process that dies in between would leave a picture of
somebody that no row names, so each guid is logged first, and whoever closes the store, or opens it next, moves the
images without a row into quarantine: `deletes.sweep` removes them some days later. The log is not synced: it has to
outlive the process only. After a power cut `check` finds what was left.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable

import pyarrow as pa

from pipeline.store.catalog.connection import Catalog
from pipeline.store.files.durable import NO_LINK, PRIVATE_FILE, TEMPORARY, Folder, disk_errors
from pipeline.store.files.objects import is_guid, object_file

INTENTS_NAME = "INTENTS"


def declare(folder: Folder, guids: Iterable[str]) -> None:
    """Logs that these objects are about to be written. May be called from any thread."""
    # Begins a new line: the last one may have been cut off by a full disk.
    lines = "".join(f"\n{guid}" for guid in guids).encode() + b"\n"
    if lines == b"\n":
        return
    with disk_errors(folder.root):
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | NO_LINK
        fd = os.open(folder.path(INTENTS_NAME), flags, PRIVATE_FILE)
        try:
            if os.write(fd, lines) < len(lines):  # one call: lines of several threads never mix
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        finally:
            os.close(fd)


def declared(folder: Folder) -> set[str]:
    """The guids of the objects that were logged since the store was opened."""
    path = folder.path(INTENTS_NAME)
    if not path.exists():
        return set()
    with disk_errors(folder.root):
        return {line for line in path.read_text("ascii", errors="replace").split("\n") if is_guid(line)}


def undo(catalog: Catalog) -> int:
    """Sets aside the declared objects without a row, then removes the log; returns how many they were."""
    if not catalog.folder.path(INTENTS_NAME).exists():
        return 0
    guids = declared(catalog.folder)
    with catalog.tables(declared=pa.table({"image_guid": pa.array(sorted(guids), pa.string())})):
        orphans = catalog.rows(
            "SELECT image_guid FROM declared WHERE image_guid NOT IN (SELECT image_guid FROM core.objects)"
        )
    deleted = {path for (path,) in catalog.rows("SELECT path FROM core.pending_deletes")}  # of somebody, on purpose
    moved = 0
    for file in (object_file(guid) for (guid,) in orphans):
        catalog.folder.unlink(file + TEMPORARY)  # a write that was cut off
        if file not in deleted:
            moved += catalog.folder.set_aside(file)
    catalog.folder.unlink(INTENTS_NAME)
    return moved
