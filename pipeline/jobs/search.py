"""Recognition: who is in this photo, from the identities of one directory. Nothing is stored.

The identity service answers, in this process or, while a server is running, in the server.
"""

from __future__ import annotations

from pathlib import Path

from pipeline.config import Settings
from pipeline.jobs.accounts import find_account
from pipeline.jobs.store import Store, open_store
from pipeline.store import FaceAnswer, SearchQuery


def search(
    image: bytes, store: Path, settings: Settings, account: str | None, directory: str, top: int
) -> list[FaceAnswer]:
    """The faces of an encoded image, each with its identity and the `top` most similar ones.

    Raises ImageRejected, StoreError, ModelError, DeviceError.
    """
    with open_store(store, settings, command="search", reading=True) as opened:
        return recognise(opened, image, account, directory, top)


def recognise(store: Store, image: bytes, account: str | None, directory: str, top: int) -> list[FaceAnswer]:
    """The same in an open store. Raises AccountUnknown and UsageError as well."""
    _, account_id = find_account(store, account)
    return store.search(SearchQuery(image, account_id, directory, top, store.settled.match.threshold))
