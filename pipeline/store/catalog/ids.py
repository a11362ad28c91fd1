"""Ids: the next free numbers, and those that are promised to commits in preparation.

A shard's face ids are written into its Parquet file, so they must be known before its transaction, and while that
file is written other commits go on. A promise lives in memory only: after a crash nothing was written with its
numbers. Sequence numbers of persons are not promised but drawn inside the transaction: they are the order of insertion.
"""

from __future__ import annotations

from pipeline.store.catalog.connection import Catalog
from pipeline.store.records import Counters


def counters(catalog: Catalog) -> Counters:
    """The next numbers that no row has."""
    return Counters(*catalog.rows("SELECT next_media_id, next_face_id, next_person_seq FROM core.store")[0])


class PromisedIds:
    """The media and face ids that were given out. For the thread that owns the catalog."""

    def __init__(self) -> None:
        self._media: list[range] = []
        self._faces: list[range] = []

    def next(self, catalog: Catalog) -> Counters:
        """The next numbers that are neither taken nor promised."""
        free = counters(catalog)
        return Counters(
            _above(free.next_media_id, self._media), _above(free.next_face_id, self._faces), free.next_person_seq
        )

    def promise(self, catalog: Catalog, media: int, faces: int) -> Counters:
        """The first of so many media and face ids that no other commit gets."""
        first = self.next(catalog)
        self._media.append(range(first.next_media_id, first.next_media_id + media))
        self._faces.append(range(first.next_face_id, first.next_face_id + faces))
        return first

    def is_free(self, catalog: Catalog, first_media: int | None, first_face: int | None) -> bool:
        """Whether a commit may use ids from these on: they are promised, or above all that are taken."""
        free = counters(catalog)
        return _may_begin(first_media, free.next_media_id, self._media) and _may_begin(
            first_face, free.next_face_id, self._faces
        )

    def settle(self, first_media: int | None, first_face: int | None) -> None:
        """Ends the promise to the commit that begins with these ids: it is in."""
        self._media = [promised for promised in self._media if promised and first_media not in promised]
        self._faces = [promised for promised in self._faces if promised and first_face not in promised]


def _above(free: int, promises: list[range]) -> int:
    return max([free, *(promised.stop for promised in promises)])


def _may_begin(first: int | None, free: int, promises: list[range]) -> bool:
    return first is None or first >= free or any(first in promised for promised in promises)
