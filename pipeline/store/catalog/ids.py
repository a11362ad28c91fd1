"""Ids: the next free numbers, and those that are reserved for commits in preparation.

A shard's face ids are written into its Parquet file, so they must be known before its transaction, and while that
file is written other commits go on. A reservation is in memory only: after a crash nothing was written with its
numbers. Sequence numbers of persons are not reserved but drawn inside the transaction: they are the order of insertion.
"""

from __future__ import annotations

import threading

from pipeline.store.catalog.connection import Catalog
from pipeline.store.records import Counters


def counters(catalog: Catalog) -> Counters:
    """The next numbers that no row has."""
    return Counters(*catalog.rows("SELECT next_media_id, next_face_id, next_person_seq FROM core.store")[0])


class ReservedIds:
    """Media and face ids; each is given out once. For any thread."""

    def __init__(self, free: Counters) -> None:
        """`free`: of the store as it was opened."""
        self._lock = threading.Lock()
        self._media, self._faces = free.next_media_id, free.next_face_id

    def take(self, media: int, faces: int) -> tuple[int, int]:
        """The first of so many media ids, and of so many face ids."""
        with self._lock:
            first = self._media, self._faces
            self._media, self._faces = self._media + media, self._faces + faces
            return first
