"""The token of the door: who can read this file may work on the store through the server that holds it.

Made when a server opens its door, mode 0600, and removed when it closes it. A crash leaves it behind, of no use:
the next server makes another one.
"""

from __future__ import annotations

import os
import secrets

from pipeline.store.files.durable import Folder, disk_errors

TOKEN_NAME = "admin.token"


def make_token(folder: Folder) -> str:
    """Writes a new token of 256 bits. Raises StoreFull, StoreUnwritable."""
    token = secrets.token_urlsafe(32)
    with disk_errors(folder.root):
        # Never opened again under its mode: a file that was there may have another one, or another owner.
        folder.path(TOKEN_NAME).unlink(missing_ok=True)
        fd = os.open(folder.path(TOKEN_NAME), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "w", encoding="ascii") as file:
            file.write(token + "\n")
    return token


def read_token(folder: Folder) -> str:
    """Raises OSError where there is none, or not for this user."""
    return folder.path(TOKEN_NAME).read_text("ascii").strip()


def remove_token(folder: Folder) -> None:
    with disk_errors(folder.root):
        folder.path(TOKEN_NAME).unlink(missing_ok=True)
