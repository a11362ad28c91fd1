"""Durable files, complete or absent: written under a temporary name, fsynced, renamed, the folder fsynced.

This order makes a crash harmless (Pillai et al. 2014, "All File Systems Are Not Created Equal"): data reach the disk
before the name, and the name before any row with it. Every step is a fault point.
"""

from __future__ import annotations

import errno
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from itertools import groupby, takewhile
from pathlib import Path
from typing import IO, Literal, TypeVar

from pipeline.errors import StoreFull, StoreUnwritable
from pipeline.store.files.faults import point

TEMPORARY = ".tmp"
QUARANTINE = "quarantine"
# Keeps names, embeddings and pictures from other users, whatever the umask.
PRIVATE_FOLDER = 0o700
PRIVATE_FILE = 0o600
# A store may come from elsewhere: a link in it must not redirect a write.
NO_LINK = getattr(os, "O_NOFOLLOW", 0)  # not on Windows
# One thread waits for the disk while the other sends data. More are not faster on one disk, and would delay a server's
# requests while a shard's thousands of pictures are written.
_WRITERS = 2
_FEW = 2  # files, as in one request: starting threads takes longer than writing them
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})

A = TypeVar("A")


@contextmanager
def disk_errors(root: Path) -> Iterator[None]:
    """Translates OSErrors of writing below `root` to StoreFull or StoreUnwritable."""
    try:
        yield
    except OSError as exc:
        detail = exc.strerror or str(exc)
        if exc.errno in _FULL:
            raise StoreFull(path=root, detail=detail) from exc
        where = f" ({exc.filename})" if exc.filename else ""
        raise StoreUnwritable(path=root, detail=f"{detail}{where}") from exc


class Folder:
    """A folder with durable writes. Paths are relative to `root`, with forward slashes.

    All writing methods raise StoreFull or StoreUnwritable.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._making = threading.Lock()

    def path(self, relative: str) -> Path:
        return self.root / relative

    def write(self, relative: str, data: bytes, kind: str) -> None:
        """Atomically writes `data` to `relative`; makes its folder if missing."""
        self.write_all([(relative, data)], kind)

    def write_all(self, files: Sequence[tuple[str, bytes]], kind: str) -> None:
        """Atomically writes each file; makes missing folders.

        Each step runs for all files before the next: disk waits are shorter when many are queued.
        """
        folders = sorted({relative.rpartition("/")[0] for relative, _ in files})
        with disk_errors(self.root):
            self._make_all(folders)
            try:
                for relative, data in files:
                    point(f"{kind}.write")
                    with open(self.path(relative + TEMPORARY), "wb", opener=_private) as file:
                        os.fchmod(file.fileno(), PRIVATE_FILE)  # it may have existed
                        file.write(data)
                _on_each(lambda name: self._rename(name + TEMPORARY, name, kind), [name for name, _ in files])
            except BaseException:
                for relative, _ in files:
                    with suppress(OSError):
                        self.path(relative + TEMPORARY).unlink(missing_ok=True)
                raise
            _on_each(lambda name: self.sync_folder(name, kind), folders)

    @contextmanager
    def replacing(self, relative: str, kind: str) -> Iterator[IO[bytes]]:
        """A binary file to write; leaving the block publishes it at `relative`, an exception discards it.

        The body's errors propagate untranslated, as it may read from elsewhere. Guard its writes with `disk_errors`.
        """
        temporary = relative + TEMPORARY
        point(f"{kind}.write")
        with disk_errors(self.root):
            file = open(self.path(temporary), "wb", opener=_private)  # noqa: SIM115  closed by `publish`'s caller
        try:
            yield file
            with disk_errors(self.root):
                file.close()
            self.publish(temporary, relative, kind)
        except BaseException:
            # Closing flushes and fails again: the first error is raised.
            with suppress(OSError):
                file.close()
            with suppress(OSError):
                self.path(temporary).unlink()
            raise

    def publish(self, temporary: str, relative: str, kind: str) -> None:
        """Durably gives a finished file its final name."""
        with disk_errors(self.root):
            self.path(temporary).chmod(PRIVATE_FILE)  # DuckDB may have made it
            self._rename(temporary, relative, kind)
        self.sync_folder(str(Path(relative).parent), kind)

    def _rename(self, temporary: str, relative: str, kind: str) -> None:
        """After an fsync of its data."""
        point(f"{kind}.fsync")
        sync(self.path(temporary))
        point(f"{kind}.rename")
        self.path(temporary).replace(self.path(relative))

    def append(self, relative: str, data: bytes, kind: str) -> None:
        """Appends to a file in place. Not atomic: for derived files whose readers detect a torn end."""
        with self._in_place(relative, "ab", kind) as file:
            file.write(data)

    def overwrite(self, relative: str, offsets: Sequence[int], data: bytes, kind: str) -> None:
        """Writes `data` at each of `offsets` in place. Not atomic: readers must detect a torn write."""
        with self._in_place(relative, "r+b", kind) as file:
            for offset in offsets:
                file.seek(offset)
                file.write(data)

    def truncate(self, relative: str, size: int, kind: str) -> None:
        """Truncates a file in place to `size` bytes."""
        with self._in_place(relative, "r+b", kind) as file:
            file.truncate(size)

    @contextmanager
    def _in_place(self, relative: str, mode: Literal["ab", "r+b"], kind: str) -> Iterator[IO[bytes]]:
        with disk_errors(self.root):
            point(f"{kind}.write")
            with open(self.path(relative), mode, opener=_private) as file:
                yield file
                file.flush()
                point(f"{kind}.fsync")
                os.fdatasync(file.fileno())  # skips its times, which would double the cost

    def sync_folder(self, relative: str, kind: str) -> None:
        """Makes a folder's names durable."""
        point(f"{kind}.fsync_folder")
        with disk_errors(self.root):
            sync(self.path(relative))

    def make(self, relative: str) -> None:
        """Makes a folder and its parents, durably."""
        with disk_errors(self.root):
            self._make_all([relative])

    def _make_all(self, folders: Sequence[str]) -> None:
        """Syncs once per common parent. A folder that other threads find has a durable name."""
        for _, siblings in groupby(map(self.path, folders), lambda path: path.parent):
            changed = dict[Path, None]()
            with self._making:
                try:
                    for path in siblings:
                        missing = takewhile(lambda folder: not folder.exists(), (path, *path.parents))
                        for folder in reversed(list(missing)):
                            changed[folder.parent] = None
                            folder.mkdir(PRIVATE_FOLDER, exist_ok=True)
                finally:  # existing folders are not synced again
                    for parent in changed:
                        sync(parent)

    def is_private(self) -> bool:
        """Whether other users are locked out."""
        return not self.root.stat().st_mode & 0o077

    def make_private(self) -> None:
        """Locks other users out, if the folder is ours."""
        with suppress(OSError):
            self.root.chmod(PRIVATE_FOLDER)

    def holds(self, path: Path) -> bool:
        """Whether `path`, below the folder, is inside it and not behind a link that leads out."""
        return path.parent.resolve().is_relative_to(self.root.resolve())

    def unlink(self, relative: str) -> None:
        """Deletes a file, if it exists."""
        point("unlink")
        with disk_errors(self.root):
            self.path(relative).unlink(missing_ok=True)

    def quarantine(self, relative: str) -> bool:
        """Moves a possibly needed file into quarantine, under the same path. False if missing."""
        if not self.path(relative).exists():
            return False
        target = f"{QUARANTINE}/{relative}"
        self.make(target.rpartition("/")[0])
        point("set_aside")
        with disk_errors(self.root):
            self.path(relative).replace(self.path(target))
        return True


def _on_each(function: Callable[[A], None], items: Sequence[A]) -> None:
    """Calls `function` with each item, on threads if there are many. Raises the first error."""
    if len(items) <= _FEW:
        for item in items:
            function(item)
        return
    pieces = [items[writer::_WRITERS] for writer in range(_WRITERS)]  # one by one, passing takes as long as the work
    with ThreadPoolExecutor(_WRITERS, thread_name_prefix="store-files") as pool:
        deque(pool.map(lambda piece: deque(map(function, piece), 0), pieces), 0)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | NO_LINK, PRIVATE_FILE)


def sync(path: Path) -> None:
    """Waits until a file's data, or a folder's names, are on disk."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
