"""A store's locks (`flock`), and the token of the admin port (FORMAT.md). LOCK: the process that has the store open;
LOCK.run: the process that does runs.

The kernel frees a lock when its process ends, so no lock is ever stale. A token left by a crash is worthless: the next
server makes another.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import platform
import secrets
import time
import weakref
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from pipeline.errors import StoreLocked
from pipeline.store.files.durable import NO_LINK, PRIVATE_FILE, Folder, disk_errors

LOCK_NAME = "LOCK"
RUN_LOCK_NAME = "LOCK.run"
REINDEX_LOCK_NAME = "LOCK.reindex"
TOKEN_NAME = "admin.token"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(eq=False)
class StoreLock:
    """A held lock, until `release()`."""

    path: Path
    fd: int
    holder: dict[str, Any]
    read_only: bool = False

    @classmethod
    def acquire(cls, root: Path, command: str, name: str = LOCK_NAME, *, reading: bool = False) -> StoreLock:
        """Takes a lock of the store at `root`, without waiting. `reading=True` also works on a read-only file system;
        readers there do not exclude each other.

        Raises StoreLocked naming the holder, StoreFull, or StoreUnwritable.
        """
        path = root / name
        with disk_errors(root):
            try:
                fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | NO_LINK, PRIVATE_FILE)
            except OSError as exc:
                if not reading or exc.errno != errno.EROFS:
                    raise
                return cls(path, os.open(path, os.O_RDONLY | os.O_CLOEXEC), {}, read_only=True)
        with contextlib.suppress(OSError):  # it may have another owner
            os.fchmod(fd, PRIVATE_FILE)  # whoever can open it can hold it
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            raise _locked(root, path) from None
        since = datetime.now(timezone.utc).isoformat(timespec="seconds")
        holder = {"pid": os.getpid(), "host": platform.node(), "boot_id": _boot_id(), "url": None, "since": since}
        lock = cls(path, fd, {**holder, "command": command})
        _all_held.add(lock)
        try:
            lock._write_holder()
        except BaseException:
            lock.release()
            raise
        return lock

    @staticmethod
    def is_held(root: Path, name: str) -> bool:
        """Whether somebody holds this lock of the store."""
        try:
            fd = os.open(root / name, os.O_RDONLY | os.O_CLOEXEC | NO_LINK)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(fd)
        return False

    def announce(self, url: str | None) -> None:
        """Writes the address where the holder executes other commands' work; None: it does not."""
        self.holder["url"] = url
        self._write_holder()

    def _write_holder(self) -> None:
        text = json.dumps(self.holder).encode() + b"\n"
        with disk_errors(self.path.parent):
            # This order never leaves the file empty.
            os.pwrite(self.fd, text, 0)
            os.ftruncate(self.fd, len(text))

    def __enter__(self) -> StoreLock:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.release()

    def release(self) -> None:
        """Frees the lock. Idempotent."""
        if self.fd >= 0:
            _all_held.discard(self)
            with contextlib.suppress(OSError):
                os.ftruncate(self.fd, 0)
                fcntl.flock(self.fd, fcntl.LOCK_UN)  # a starting program may hold a copy until exec
            os.close(self.fd)
            self.fd = -1


_all_held: weakref.WeakSet[StoreLock] = weakref.WeakSet()


def _drop_in_child() -> None:
    """A forked child shares the lock's file, and would keep the store locked after its parent's death."""
    for lock in list(_all_held):
        with contextlib.suppress(OSError):
            os.close(lock.fd)
        lock.fd = -1
    _all_held.clear()


os.register_at_fork(after_in_child=_drop_in_child)


def _boot_id() -> str:
    return _BOOT_ID.read_text("ascii").strip() if _BOOT_ID.exists() else ""


def _locked(root: Path, path: Path) -> StoreLocked:
    holder: dict[str, Any] = {}
    for _ in range(20):  # the holder may not have written it yet
        with contextlib.suppress(OSError, ValueError):
            holder = json.loads(path.read_text("utf-8"))
        if holder:
            break
        time.sleep(0.01)
    fields = {key: holder.get(key, "unknown") for key in ("pid", "host", "since", "command")}
    # Another machine's or container's loopback is not ours.
    here = (holder.get("host"), holder.get("boot_id")) == (platform.node(), _boot_id())
    return StoreLocked(path=root, **fields, url=holder.get("url") if here else None)


def make_token(folder: Folder) -> str:
    """Writes a new 256-bit token. Raises StoreFull, StoreUnwritable."""
    token = secrets.token_urlsafe(32)
    remove_token(folder)  # not overwritten: an old file may have another mode or owner
    with disk_errors(folder.root):
        fd = os.open(folder.path(TOKEN_NAME), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, PRIVATE_FILE)
        with os.fdopen(fd, "w", encoding="ascii") as file:
            file.write(token + "\n")
    return token


def read_token(folder: Folder) -> str:
    """Raises OSError if it is missing or unreadable for this user."""
    return folder.path(TOKEN_NAME).read_text("ascii").strip()


def remove_token(folder: Folder) -> None:
    with disk_errors(folder.root):
        folder.path(TOKEN_NAME).unlink(missing_ok=True)
