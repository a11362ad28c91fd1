"""Numbers that are promised to commits in the making.

A shard's face ids stand in its Parquet file, so they must be known before its transaction, and while that file is
written other commits go on. A promise lives in memory only: after a crash nothing was written with its numbers.
Sequence numbers of persons are not promised but drawn inside the transaction: they are the order of insertion.
"""

from __future__ import annotations

from pipeline.store.catalog import known
from pipeline.store.catalog.connection import Catalog
from pipeline.store.records import Counters


class PromisedIds:
    """The media and face ids that were given out. For the thread that owns the catalog."""

    def __init__(self) -> None:
        self._media: list[range] = []
        self._faces: list[range] = []

    def next(self, catalog: Catalog) -> Counters:
        """The next numbers that are neither taken nor promised."""
        now = known.counters(catalog)
        return Counters(
            _above(now.next_media_id, self._media), _above(now.next_face_id, self._faces), now.next_person_seq
        )

    def promise(self, catalog: Catalog, media: int, faces: int) -> Counters:
        """So many media and face ids from the numbers answered."""
        first = self.next(catalog)
        self._media.append(range(first.next_media_id, first.next_media_id + media))
        self._faces.append(range(first.next_face_id, first.next_face_id + faces))
        return first

    def is_free(self, catalog: Catalog, first_media: int | None, first_face: int | None) -> bool:
        """Whether a commit may bring ids from these on: they are promised, or above all that are taken."""
        now = known.counters(catalog)
        return _may_begin(first_media, now.next_media_id, self._media) and _may_begin(
            first_face, now.next_face_id, self._faces
        )

    def settle(self, first_media: int | None, first_face: int | None) -> None:
        """The commit that begins with these ids is in."""
        self._media = [promised for promised in self._media if promised and first_media not in promised]
        self._faces = [promised for promised in self._faces if promised and first_face not in promised]


def _above(free: int, promised: list[range]) -> int:
    return max([free, *(each.stop for each in promised)])


def _may_begin(first: int | None, free: int, promised: list[range]) -> bool:
    return first is None or first >= free or any(first in each for each in promised)
