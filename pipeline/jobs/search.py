"""Recognises a photo's people among the identities of one directory. Stores nothing.

The identity service answers, in this process or in a running server.
"""

from __future__ import annotations

from pipeline.jobs.accounts import find_account
from pipeline.jobs.store import Store
from pipeline.store import FaceAnswer, SearchQuery


def recognise(store: Store, image: bytes, account: str | None, directory: str, top: int) -> list[FaceAnswer]:
    """Returns the faces of an encoded image, each with its identity and the `top` most similar ones.

    Raises AccountUnknown, UsageError, ImageRejected, StoreError, ModelError, DeviceError.
    """
    account_id = find_account(store, account).account_id
    return store.search(SearchQuery(image, account_id, directory, top, store.settled.match.threshold))
