"""Durable files, complete or absent: written under a temporary name, fsynced, renamed, the folder fsynced.

This order makes a crash harmless (Pillai et al. 2014, "All File Systems Are Not Created Equal"): the data reach the
disk before the name does, and the name before any row with it. Every step is a fault point.
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
# Names, embeddings and pictures are for nobody else on the machine, whatever the umask.
PRIVATE_FOLDER = 0o700
PRIVATE_FILE = 0o600
# A store may come from somebody else: through a link in it a file elsewhere would be overwritten.
NO_LINK = getattr(os, "O_NOFOLLOW", 0)  # Windows has none
# One thread waits for the disk while the other sends it more. More are not faster on one disk, and would delay the
# requests of a server while a shard's thousands of pictures are written.
_WRITERS = 2
_FEW = 2  # files, as in one request: starting threads would take longer than writing them
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})

A = TypeVar("A")


@contextmanager
def disk_errors(root: Path) -> Iterator[None]:
    """Turns OSErrors of writing below `root` into StoreFull or StoreUnwritable."""
    try:
        yield
    except OSError as exc:
        detail = exc.strerror or str(exc)
        if exc.errno in _FULL:
            raise StoreFull(path=root, detail=detail) from exc
        where = f" ({exc.filename})" if exc.filename else ""
        raise StoreUnwritable(path=root, detail=f"{detail}{where}") from exc


class Folder:
    """A folder whose files are written durably. Paths are relative to `root`, with forward slashes.

    Every writing method raises StoreFull or StoreUnwritable.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._making = threading.Lock()

    def path(self, relative: str) -> Path:
        return self.root / relative

    def write(self, relative: str, data: bytes, kind: str) -> None:
        """Makes the file `relative` hold `data`, atomically; makes its folder if it is missing."""
        self.write_all([(relative, data)], kind)

    def write_all(self, files: Sequence[tuple[str, bytes]], kind: str) -> None:
        """Makes each file hold its data, atomically, in folders that are made where they are missing.

        Each step waits for all of the one before: where much is on its way already, the disk's waits are shorter.
        """
        folders = sorted({relative.rpartition("/")[0] for relative, _ in files})
        with disk_errors(self.root):
            self._make_all(folders)
            try:
                for relative, data in files:
                    point(f"{kind}.write")
                    with open(self.path(relative + TEMPORARY), "wb", opener=_private) as file:
                        os.fchmod(file.fileno(), PRIVATE_FILE)  # it may have been there
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
        """A binary file to write; leaving the block publishes it at `relative`, an exception drops it.

        Errors of the body pass as they are: it may read from elsewhere. Guard its writes with `disk_errors`.
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
            # Closing tries to write the rest, and fails again: the first error is the one to raise.
            with suppress(OSError):
                file.close()
            with suppress(OSError):
                self.path(temporary).unlink()
            raise

    def publish(self, temporary: str, relative: str, kind: str) -> None:
        """Gives a finished file its final name, durably."""
        with disk_errors(self.root):
            self.path(temporary).chmod(PRIVATE_FILE)  # DuckDB made some
            self._rename(temporary, relative, kind)
        self.sync_folder(str(Path(relative).parent), kind)

    def _rename(self, temporary: str, relative: str, kind: str) -> None:
        """Once its data are on the disk."""
        point(f"{kind}.fsync")
        sync(self.path(temporary))
        point(f"{kind}.rename")
        self.path(temporary).replace(self.path(relative))

    def append(self, relative: str, data: bytes, kind: str) -> None:
        """Appends to a file in place. Not atomic: for derived files whose readers notice a torn end."""
        with self._in_place(relative, "ab", kind) as file:
            file.write(data)

    def overwrite(self, relative: str, offsets: Sequence[int], data: bytes, kind: str) -> None:
        """Writes `data` at each of `offsets` of a file in place. Not atomic: for rows that nobody reads any more."""
        with self._in_place(relative, "r+b", kind) as file:
            for offset in offsets:
                file.seek(offset)
                file.write(data)

    def truncate(self, relative: str, size: int, kind: str) -> None:
        """Cuts a file off in place after `size` bytes."""
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
                os.fdatasync(file.fileno())  # not its times, which would take as long again

    def sync_folder(self, relative: str, kind: str) -> None:
        """Makes the names in a folder durable."""
        point(f"{kind}.fsync_folder")
        with disk_errors(self.root):
            sync(self.path(relative))

    def make(self, relative: str) -> None:
        """Makes a folder and its parents; the new names are durable afterwards."""
        with disk_errors(self.root):
            self._make_all([relative])

    def _make_all(self, folders: Sequence[str]) -> None:
        """Folders of one parent together; whoever finds a folder there may rely on its name."""
        for _, siblings in groupby(map(self.path, folders), lambda path: path.parent):
            changed = dict[Path, None]()
            with self._making:
                try:
                    for path in siblings:
                        missing = takewhile(lambda folder: not folder.exists(), (path, *path.parents))
                        for folder in reversed(list(missing)):
                            changed[folder.parent] = None
                            folder.mkdir(PRIVATE_FOLDER, exist_ok=True)
                finally:  # what is there now will not be made, nor synced, a second time
                    for parent in changed:
                        sync(parent)

    def is_private(self) -> bool:
        """Whether nobody else gets into the folder."""
        return not self.root.stat().st_mode & 0o077

    def make_private(self) -> None:
        """Lets nobody else into the folder, where it is ours."""
        with suppress(OSError):
            self.root.chmod(PRIVATE_FOLDER)

    def holds(self, path: Path) -> bool:
        """Whether `path` below the folder is in it, and not behind a link that leads out."""
        return path.parent.resolve().is_relative_to(self.root.resolve())

    def unlink(self, relative: str) -> None:
        """Removes a file, if it exists."""
        point("unlink")
        with disk_errors(self.root):
            self.path(relative).unlink(missing_ok=True)

    def quarantine(self, relative: str) -> bool:
        """Moves a file that may be needed after all into quarantine, under the same path. False if it is missing."""
        if not self.path(relative).exists():
            return False
        target = f"{QUARANTINE}/{relative}"
        self.make(target.rpartition("/")[0])
        point("set_aside")
        with disk_errors(self.root):
            self.path(relative).replace(self.path(target))
        return True


def _on_each(function: Callable[[A], None], items: Sequence[A]) -> None:
    """Calls it with each item, on threads where there are many. Raises the first error."""
    if len(items) <= _FEW:
        for item in items:
            function(item)
        return
    pieces = [items[writer::_WRITERS] for writer in range(_WRITERS)]  # handing each over would take as long as doing it
    with ThreadPoolExecutor(_WRITERS, thread_name_prefix="store-files") as pool:
        deque(pool.map(lambda piece: deque(map(function, piece), 0), pieces), 0)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | NO_LINK, PRIVATE_FILE)


def sync(path: Path) -> None:
    """Waits until the file, or the names in the folder, are on the disk."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
