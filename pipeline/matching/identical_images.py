"""The identical-image rule: references made from the same image and the same face in it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Protocol, TypeAlias

SAME_FACE_IOU = 0.5  # two boxes of one image with at least this IoU are one face

Entry: TypeAlias = tuple[int, int, Sequence[float]]  # of a reference: order, position, and box xyxy in pixels


def nothing(_: int) -> bool:
    """Skips no position."""
    return False


class Images(Protocol):
    """Looks up references by image."""

    def entries(self, image_hash: str) -> Iterable[Entry]:
        """The references made from the image with this hash, removed ones included."""


class ImageLookup:
    """The references in memory by image hash: about 0.3 KB each. One thread may add while others find."""

    def __init__(self) -> None:
        self._by_hash: dict[str, list[Entry]] = {}

    def add(self, order: int, position: int, hashes: Iterable[str], box: Sequence[float]) -> None:
        """Adds the reference at `position` under each of `hashes`; `box` is xyxy in pixels."""
        entry = (order, position, box)
        for image_hash in hashes:
            # Lists only grow: a thread iterating over one meanwhile misses at most the new entry.
            self._by_hash.setdefault(image_hash, []).append(entry)

    def entries(self, image_hash: str) -> Iterable[Entry]:
        return self._by_hash.get(image_hash, ())

    def withdraw(self, hashes: Iterable[str]) -> None:
        """Removes the reference added last, which has these hashes. Not while others find."""
        for image_hash in hashes:
            self._by_hash[image_hash].pop()

    def find(self, hashes: Collection[str], box: Sequence[float], skip: Callable[[int], bool] = nothing) -> int | None:
        """The position of the lowest-order reference with one of `hashes` and IoU >= 0.5 with `box`, or None; without
        positions to `skip`."""
        found = [each for each in same_faces([self], hashes, box) if not skip(each[1])]
        return min(found)[1] if found else None

    def moved(self, positions: Mapping[int, int]) -> ImageLookup:
        """A copy with each position p replaced by positions[p]; references at other positions are left out."""
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
