"""What a store's rows say of photos: which row of a path counts, and why of some photos nothing can be said."""

from __future__ import annotations

from typing import Final

from pipeline.types import ACCEPTED_STATUSES, DUPLICATE_ROW

NOT_IN_STORE: Final = "not in the store"
NOT_KEPT: Final = "the store keeps no embedding of a face that its quality gate rejected"
DELETED: Final = "a person on it was deleted from the store"

# SQL, a table of media_id: of each path the latest row in a directory ($2) of an account ($1).
LATEST_ROWS: Final = f"""
    SELECT max(media_id) AS media_id FROM core.media
    WHERE account_id = $1 AND directory = $2 AND path IS NOT NULL AND status <> '{DUPLICATE_ROW}'
    GROUP BY path
"""
# SQL, of a row `m` of core.media: whether a face on it is there no more. Which of them was nearest the centre, and
# how many there were, nobody knows then.
HAS_DELETED: Final = "m.media_id IN (SELECT media_id FROM core.faces WHERE outcome = 'removed')"


def unusable(status: str, reason: str | None, deleted: bool) -> str | None:
    """Why nothing can be said of the faces on a row's photo; None where something can."""
    if status not in ACCEPTED_STATUSES:
        return f"{status}: {reason}"
    return DELETED if deleted else None
