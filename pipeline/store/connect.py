"""Opens a store, or the way to it through the server that holds it, so every command works with and without a server.

Where the process that holds the store is no server, or one that is starting or stopping, StoreLocked is raised.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pipeline.errors import StoreLocked
from pipeline.store.local import LocalStore
from pipeline.store.operations import Store
from pipeline.store.records import StoreIdentity
from pipeline.store.remote import RemoteStore


def open_store(path: Path, *, command: str) -> Store:
    """Opens the store at `path`. Raises StoreMissing, StoreLocked, StoreDamaged, StoreTooNew, ServerUnreachable."""
    return _or_through_server(lambda: LocalStore.open(path, command=command))


def open_or_create(path: Path, make_identity: Callable[[], StoreIdentity], *, command: str) -> Store:
    """The same, or makes a store with what `make_identity` returns; that is called only then."""
    return _or_through_server(lambda: LocalStore.open_or_create(path, make_identity, command=command))


def _or_through_server(open_it: Callable[[], LocalStore]) -> Store:
    try:
        return open_it()
    except StoreLocked as locked:
        if locked.fields["url"] is None:
            raise
        return RemoteStore(Path(str(locked.fields["path"])), str(locked.fields["url"]))
