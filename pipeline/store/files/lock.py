"""The locks of a store: LOCK, one process with one StoreClient at a time; LOCK.run, one process that does runs.

`flock` on the file for as long as its holder wants. The kernel frees it with its holder, so a crash leaves no
stale lock; the file itself stays. What it says of the holder is for people, for the refusal, and for the door:
`url` is where a server that holds the store takes the other commands' work.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import platform
import time
import weakref
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from pipeline.errors import StoreLocked
from pipeline.store.files.durable import disk_errors

LOCK_NAME = "LOCK"
RUN_LOCK_NAME = "LOCK.run"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(eq=False)
class StoreLock:
    """A lock that is held. `release()` ends it."""

    path: Path
    fd: int
    holder: dict[str, Any]

    @classmethod
    def acquire(cls, root: Path, command: str, name: str = LOCK_NAME) -> StoreLock:
        """Takes a lock of the store at `root`, at once or not at all.

        Raises StoreLocked naming the holder, StoreFull, or StoreUnwritable.
        """
        path = root / name
        with disk_errors(root):
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            raise _locked(root, path) from None
        lock = cls(path, fd, _holder(command))
        _held.add(lock)
        try:
            lock._tell()
        except BaseException:
            lock.release()
            raise
        return lock

    def announce(self, url: str | None) -> None:
        """Says where the holder takes other commands' work; None: nowhere."""
        self.holder["url"] = url
        self._tell()

    def _tell(self) -> None:
        text = json.dumps(self.holder).encode() + b"\n"
        with disk_errors(self.path.parent):
            # In this order a reader never finds the file empty.
            os.pwrite(self.fd, text, 0)
            os.ftruncate(self.fd, len(text))

    def __enter__(self) -> StoreLock:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.release()

    def release(self) -> None:
        if self.fd >= 0:
            _held.discard(self)
            with contextlib.suppress(OSError):
                os.ftruncate(self.fd, 0)
            os.close(self.fd)
            self.fd = -1


_held: weakref.WeakSet[StoreLock] = weakref.WeakSet()


def _drop_in_child() -> None:
    """A forked child shares the lock's file: it would keep the store locked after its parent's death."""
    for lock in list(_held):
        with contextlib.suppress(OSError):
            os.close(lock.fd)
        lock.fd = -1
    _held.clear()


os.register_at_fork(after_in_child=_drop_in_child)


def _boot_id() -> str:
    return _BOOT_ID.read_text("ascii").strip() if _BOOT_ID.exists() else ""


def _holder(command: str) -> dict[str, Any]:
    return {
        "pid": os.getpid(),
        "host": platform.node(),
        "boot_id": _boot_id(),
        "url": None,
        "since": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "command": command,
    }


def _locked(root: Path, path: Path) -> StoreLocked:
    holder: dict[str, Any] = {}
    for _ in range(20):  # the holder may be between taking the lock and writing its name
        with contextlib.suppress(OSError, ValueError):
            holder = json.loads(path.read_text("utf-8"))
        if holder:
            break
        time.sleep(0.01)
    known = {key: holder.get(key, "unknown") for key in ("pid", "host", "since", "command")}
    # An address on the loopback of another machine, or of another container, means something else here.
    here = (holder.get("host"), holder.get("boot_id")) == (platform.node(), _boot_id())
    return StoreLocked(path=root, **known, url=holder.get("url") if here else None)
