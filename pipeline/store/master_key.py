"""The master key, from the settings or a key file, which is made on first use.

A key file is one line of base64 (32 bytes), readable only by its owner. It is never overwritten: without the key the
images are lost.
"""

from __future__ import annotations

import base64
import binascii
import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import platformdirs

from pipeline.config import SecuritySettings
from pipeline.errors import MasterKeyMissing, UsageError
from pipeline.store.files.durable import sync
from pipeline.store.files.encryption import KEY_BYTES, MasterKey

_SETTING = "the setting security.master_key"
_FILE_BYTES = 4096  # longer than any key file
_OWNER_ONLY = 0o700


def key_file(settings: SecuritySettings) -> Path:
    """The key file to use if no setting gives the key itself; it may not exist."""
    if settings.master_key_file:
        return Path(settings.master_key_file).expanduser().absolute()
    return platformdirs.user_config_path("facepipe") / "master.key"


def load_master_key(settings: SecuritySettings, store: Path) -> MasterKey:
    """The master key from the settings, for `store`.

    Raises MasterKeyMissing if there is none, UsageError if it is unusable.
    """
    if settings.master_key:
        if settings.master_key_file:
            _refuse("security.master_key and security.master_key_file are both set: give one of them")
        return MasterKey(_decoded(settings.master_key, _SETTING), _SETTING)
    path = key_file(settings)
    try:
        return MasterKey(_read(path), str(path))
    except FileNotFoundError:
        raise MasterKeyMissing(path=store, detail=f"there is no file {path}") from None


def load_or_make_master_key(settings: SecuritySettings, store: Path) -> MasterKey:
    """`load_master_key` for a new encrypted store: durably makes a key file with a random key if there is none.

    Raises UsageError.
    """
    try:
        return load_master_key(settings, store)
    except MasterKeyMissing:
        path = key_file(settings)
        made = _make(path)
    return MasterKey(_read(path), str(path), made=made)


def _read(path: Path) -> bytes:
    """Raises FileNotFoundError; UsageError if the file is not a key, or readable by others."""
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            text = file.read(_FILE_BYTES)
    except FileNotFoundError:
        raise
    except OSError as exc:
        _refuse(f"the master key file {path} cannot be read: {exc.strerror}")
    if mode & 0o077:
        _refuse(f"others can read the master key file {path} (mode {mode:04o}): chmod 600 {path}")
    return _decoded(text.decode("ascii", errors="replace"), f"the master key file {path}")


def _decoded(text: str, source: str) -> bytes:
    """Decodes a base64 key. The error does not quote the text, which may be a mistyped key."""
    try:
        data = base64.b64decode(text.strip(), validate=True)
    except (binascii.Error, ValueError):
        data = b""
    if len(data) != KEY_BYTES:
        _refuse(f"{source} is not {KEY_BYTES} bytes in base64, as `openssl rand -base64 {KEY_BYTES}` prints them")
    return data


def _refuse(what: str) -> NoReturn:
    raise UsageError(message=f"{what[0].upper()}{what[1:]}.")


def _make(path: Path) -> bool:
    """Makes a key file durably, or not at all; False if another process was first."""
    try:
        _make_folder(path.parent)
        fd, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)  # mode 0600
        try:
            with os.fdopen(fd, "wb") as file:
                file.write(base64.b64encode(os.urandom(KEY_BYTES)) + b"\n")
                file.flush()
                os.fsync(file.fileno())
            with suppress(FileExistsError):
                path.hardlink_to(temporary)  # unlike a rename, does not overwrite
                return True
            return False
        finally:
            Path(temporary).unlink()
            sync(path.parent)
    except OSError as exc:
        _refuse(f"the master key file {path} cannot be made: {exc.strerror}")


def _make_folder(folder: Path) -> None:
    for missing in reversed([parent for parent in (folder, *folder.parents) if not parent.exists()]):
        missing.mkdir(_OWNER_ONLY, exist_ok=True)
        sync(missing.parent)
