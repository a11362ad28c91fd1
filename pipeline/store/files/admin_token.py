"""The token of the admin port: whoever can read this file may work on the store through the server that holds it.

A server makes it, with mode 0600, when it opens its admin port, and removes it when it closes the port. The file that
a crash leaves behind is worthless: the next server makes another one.
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
        # Not overwritten: an old file may have another mode, or another owner.
        folder.path(TOKEN_NAME).unlink(missing_ok=True)
        fd = os.open(folder.path(TOKEN_NAME), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "w", encoding="ascii") as file:
            file.write(token + "\n")
    return token


def read_token(folder: Folder) -> str:
    """The token. Raises OSError where there is none, or this user may not read it."""
    return folder.path(TOKEN_NAME).read_text("ascii").strip()


def remove_token(folder: Folder) -> None:
    with disk_errors(folder.root):
        folder.path(TOKEN_NAME).unlink(missing_ok=True)
