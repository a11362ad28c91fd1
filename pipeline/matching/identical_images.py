"""The identical-image rule: which references were made from an image, and from the same face in it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

SAME_FACE_IOU = 0.5  # two boxes of one image with at least this IoU are one face


class ImageLookup:
    """The references that were made from each image. One thread may add while others find.

    Takes about 0.3 KB of host memory per hash.
    """

    def __init__(self) -> None:
        self._by_hash: dict[str, list[tuple[int, int, Sequence[float]]]] = {}

    def add(self, order: int, position: int, hashes: Iterable[str], box: Sequence[float]) -> None:
        """Makes the reference at `position` findable by each of `hashes`; `box` is xyxy in pixels."""
        entry = (order, position, box)
        for image_hash in hashes:
            # Lists only grow, so a thread that iterates over one meanwhile misses at most the new entry.
            self._by_hash.setdefault(image_hash, []).append(entry)

    def find(
        self, hashes: Iterable[str], box: Sequence[float], among: Callable[[int], bool] | None = None
    ) -> int | None:
        """The position of the reference of lowest order with one of `hashes` and IoU >= 0.5 with `box`, or None.

        `among` says which positions count; None: all do.
        """
        matches = []
        for image_hash in hashes:
            for order, position, reference_box in self._by_hash.get(image_hash, ()):
                if box_iou(reference_box, box) >= SAME_FACE_IOU and (among is None or among(position)):
                    matches.append((order, position))
        return min(matches)[1] if matches else None

    def moved(self, positions: Sequence[int]) -> ImageLookup:
        """A copy in which the reference at p is at positions[p], and is missing where that is negative."""
        copy = ImageLookup()
        for image_hash, entries in self._by_hash.items():
            kept = [(order, positions[place], box) for order, place, box in entries if positions[place] >= 0]
            if kept:
                copy._by_hash[image_hash] = kept
        return copy


def box_iou(a: Sequence[float], b: Sequence[float]) -> float:
    """Intersection over union of two xyxy boxes; 0 if one has no area."""
    width = min(a[2], b[2]) - max(a[0], b[0])
    height = min(a[3], b[3]) - max(a[1], b[1])
    if width <= 0 or height <= 0:
        return 0.0
    common = width * height
    return common / ((a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - common)
