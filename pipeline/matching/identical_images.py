"""The identical-image rule: which references were made from an image, and from the same face in it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Protocol, TypeAlias

SAME_FACE_IOU = 0.5  # two boxes of one image with at least this IoU are one face

Entry: TypeAlias = tuple[int, int, Sequence[float]]  # of a reference: order, position, and box xyxy in pixels


class Images(Protocol):
    """Says which references were made from an image."""

    def entries(self, image_hash: str) -> Iterable[Entry]:
        """The references that were made from the image with this hash, removed ones included."""


class ImageLookup:
    """The references in memory that were made from each image. One thread may add while others find.

    Takes about 0.3 KB of host memory per hash.
    """

    def __init__(self) -> None:
        self._by_hash: dict[str, list[Entry]] = {}

    def add(self, order: int, position: int, hashes: Iterable[str], box: Sequence[float]) -> None:
        """Makes the reference at `position` findable by each of `hashes`; `box` is xyxy in pixels."""
        entry = (order, position, box)
        for image_hash in hashes:
            # Lists only grow, so a thread that iterates over one meanwhile misses at most the new entry.
            self._by_hash.setdefault(image_hash, []).append(entry)

    def entries(self, image_hash: str) -> Iterable[Entry]:
        return self._by_hash.get(image_hash, ())

    def find(self, hashes: Collection[str], box: Sequence[float]) -> int | None:
        """The position of the reference of lowest order with one of `hashes` and IoU >= 0.5 with `box`, or None."""
        found = same_faces([self], hashes, box)
        return min(found)[1] if found else None

    def moved(self, positions: Mapping[int, int]) -> ImageLookup:
        """A copy in which the reference at p is at positions[p], and is missing if p is."""
        copy = ImageLookup()
        for image_hash, entries in self._by_hash.items():
            kept = [(order, positions[place], box) for order, place, box in entries if place in positions]
            if kept:
                copy._by_hash[image_hash] = kept
        return copy


def same_faces(images: Iterable[Images], hashes: Collection[str], box: Sequence[float]) -> list[tuple[int, int]]:
    """(order, position) of each reference in `images` with one of `hashes` and IoU >= 0.5 with `box`."""
    return [
        (order, position)
        for each in images
        for image_hash in hashes
        for order, position, reference_box in each.entries(image_hash)
        if box_iou(reference_box, box) >= SAME_FACE_IOU
    ]


def box_iou(a: Sequence[float], b: Sequence[float]) -> float:
    """Intersection over union of two xyxy boxes; 0 if one has no area."""
    width = min(a[2], b[2]) - max(a[0], b[0])
    height = min(a[3], b[3]) - max(a[1], b[1])
    if width <= 0 or height <= 0:
        return 0.0
    common = width * height
    return common / ((a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - common)
