"""The folder of converted and downloaded weights. Processes share it; files are complete or absent."""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

import platformdirs

from pipeline.errors import CacheUnwritable

_CHUNK_BYTES = 2**20
_SHORT_WAIT_S: Final = 3.0  # shorter waits are not logged
_log: Final = logging.getLogger(__name__)


def cache_folder(setting: str | None = None) -> Path:
    """The folder of the setting `model.cache`, else the user's cache folder; may be missing."""
    return Path(setting).expanduser() if setting else platformdirs.user_cache_path("facepipe")


def sha256_of(path: Path, copy_to: BinaryIO | None = None) -> str:
    """SHA-256 of a file, lower-case hexadecimal; also copies it to `copy_to`. Raises OSError."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
            if copy_to is not None:
                copy_to.write(chunk)
    return digest.hexdigest()


@contextmanager
def cache_errors(folder: Path) -> Iterator[None]:
    """Turns an OSError into CacheUnwritable."""
    try:
        yield
    except OSError as exc:
        raise CacheUnwritable(path=folder, detail=exc.strerror or str(exc)) from exc


@contextmanager
def exclusive(folder: Path, name: str) -> Iterator[None]:
    """Makes the folder and locks weight set `name` between processes. Raises CacheUnwritable.

    Long waits are logged. The kernel releases a dead process's lock.
    """
    with cache_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / f"{name}.lock").open("ab")
    with file:
        with cache_errors(folder):
            _lock(file)
        yield


def _lock(file: BinaryIO) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        waiting = threading.Timer(_SHORT_WAIT_S, _log.warning, ["waiting for another process that has %s", file.name])
        waiting.start()
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
        finally:
            waiting.cancel()


@contextmanager
def replacing(target: Path) -> Iterator[BinaryIO]:
    """A file to write, published as `target` after the block, or after an exception not at all.

    Use it under `exclusive`: the temporary name is fixed, so that killed processes leave at most one. Raises
    CacheUnwritable, also for an OSError in the block.
    """
    temporary = target.with_name(target.name + ".tmp")
    try:
        with cache_errors(target.parent), temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        publish(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


def publish(temporary: Path, target: Path) -> None:
    """Durably renames a synced file within its folder. Raises CacheUnwritable."""
    with cache_errors(target.parent):
        temporary.replace(target)
        folder = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
