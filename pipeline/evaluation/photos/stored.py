"""Why an evaluation leaves out some photos of a store."""

from __future__ import annotations

from typing import Final

from pipeline.types import ACCEPTED_STATUSES

NOT_IN_STORE: Final = "not in the store"
NOT_KEPT: Final = "the store keeps no embedding of a face that its quality gate rejected"
DELETED: Final = "a person on it was deleted from the store"


def unusable(status: str, reason: str | None, deleted: bool) -> str | None:
    """Why nothing can be said of the faces on a row's photo; None where something can."""
    if status not in ACCEPTED_STATUSES:
        return f"{status}: {reason}"
    return DELETED if deleted else None
