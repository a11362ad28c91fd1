"""The locks of a store: LOCK for the one process that has it open, LOCK.run for the one process that does runs.

A lock is `flock` on the file. The kernel frees it when the process ends, so a crash leaves no stale lock; the file
itself stays. Its text names the holder, for the error message, and `url` is the admin port of a server that holds the
store.

Whoever can read the token of that port may work on the store through the server. A server makes it, with mode 0600,
when it opens the port, and removes it when it closes the port. The file that a crash leaves behind is worthless: the
next server makes another one.
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
    """A lock that is held. `release()` ends it."""

    path: Path
    fd: int
    holder: dict[str, Any]
    read_only: bool = False

    @classmethod
    def acquire(cls, root: Path, command: str, name: str = LOCK_NAME, *, reading: bool = False) -> StoreLock:
        """Takes a lock of the store at `root`, at once or not at all. With `reading` also on a disk that nobody can
        write, where it keeps out nobody else who reads.

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
        with contextlib.suppress(OSError):  # it may be somebody else's
            os.fchmod(fd, PRIVATE_FILE)  # who can open it can hold it
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

    def announce(self, url: str | None) -> None:
        """Writes the address where the holder takes the work of other commands; None: nowhere."""
        self.holder["url"] = url
        self._write_holder()

    def _write_holder(self) -> None:
        text = json.dumps(self.holder).encode() + b"\n"
        with disk_errors(self.path.parent):
            # In this order a reader never sees an empty file.
            os.pwrite(self.fd, text, 0)
            os.ftruncate(self.fd, len(text))

    def __enter__(self) -> StoreLock:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.release()

    def release(self) -> None:
        """Frees the lock; a second call does nothing."""
        if self.fd >= 0:
            _all_held.discard(self)
            with contextlib.suppress(OSError):
                os.ftruncate(self.fd, 0)
                fcntl.flock(self.fd, fcntl.LOCK_UN)  # a program that is being started may hold a copy until it runs
            os.close(self.fd)
            self.fd = -1


_all_held: weakref.WeakSet[StoreLock] = weakref.WeakSet()


def _drop_in_child() -> None:
    """A forked child shares the lock's file: it would keep the store locked after its parent's death."""
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
    for _ in range(20):  # the holder may not have written its name yet
        with contextlib.suppress(OSError, ValueError):
            holder = json.loads(path.read_text("utf-8"))
        if holder:
            break
        time.sleep(0.01)
    fields = {key: holder.get(key, "unknown") for key in ("pid", "host", "since", "command")}
    # The loopback of another machine or container is not ours.
    here = (holder.get("host"), holder.get("boot_id")) == (platform.node(), _boot_id())
    return StoreLocked(path=root, **fields, url=holder.get("url") if here else None)


def make_token(folder: Folder) -> str:
    """Writes a new token of 256 bits. Raises StoreFull, StoreUnwritable."""
    token = secrets.token_urlsafe(32)
    with disk_errors(folder.root):
        # Not overwritten: an old file may have another mode, or another owner.
        folder.path(TOKEN_NAME).unlink(missing_ok=True)
        fd = os.open(folder.path(TOKEN_NAME), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, PRIVATE_FILE)
        with os.fdopen(fd, "w", encoding="ascii") as file:
            file.write(token + "\n")
    return token


def read_token(folder: Folder) -> str:
    """The token. Raises OSError where there is none, or this user may not read it."""
    return folder.path(TOKEN_NAME).read_text("ascii").strip()


def remove_token(folder: Folder) -> None:
    with disk_errors(folder.root):
        folder.path(TOKEN_NAME).unlink(missing_ok=True)
