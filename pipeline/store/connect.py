"""The door to a store: the store itself while nobody holds it, else the server that does.

So every command works the same with and without a server. A holder that is no server, or one that is starting or
stopping, is told as StoreLocked, as ever.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from pipeline.errors import StoreLocked
from pipeline.store.client import StoreClient
from pipeline.store.remote import RemoteStore

# What commands work on. A union and no protocol: the type checker compares the two method by method.
Store: TypeAlias = StoreClient | RemoteStore


def open_store(path: Path, *, command: str) -> Store:
    """Opens the store at `path`. Raises StoreMissing, StoreLocked, StoreDamaged, StoreTooNew, ServerUnreachable."""
    return through_door(lambda: StoreClient.open(path, command=command))


def through_door(open_it: Callable[[], StoreClient]) -> Store:
    """What `open_it` gives, or the way through the server that already holds the store."""
    try:
        return open_it()
    except StoreLocked as locked:
        if locked.fields["url"] is None:
            raise
        return RemoteStore(Path(str(locked.fields["path"])), str(locked.fields["url"]))
