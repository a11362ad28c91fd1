"""The identical-image rule: which references stem from an image, and from the same face in it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

SAME_FACE_IOU = 0.5  # two boxes of one image with at least this IoU are one face


class ImageLookup:
    """Which references stem from an image. One thread may add while others find.

    Costs about 0.3 KB of host memory per hash.
    """

    def __init__(self) -> None:
        self._by_hash: dict[str, list[tuple[int, int, Sequence[float]]]] = {}

    def add(self, order: int, position: int, hashes: Iterable[str], box: Sequence[float]) -> None:
        """Makes the reference at `position` findable by each of `hashes`; `box` is xyxy in pixels."""
        entry = (order, position, box)
        for image_hash in hashes:
            # A list only grows, so that whoever is iterating over it sees what was there when it began.
            self._by_hash.setdefault(image_hash, []).append(entry)

    def find(
        self, hashes: Iterable[str], box: Sequence[float], among: Callable[[int], bool] | None = None
    ) -> int | None:
        """The position of the reference of lowest order with one of `hashes` and IoU >= 0.5 with `box`, or None.

        `among`, if given, says which positions count.
        """
        found = []
        for image_hash in hashes:
            for order, position, known_box in self._by_hash.get(image_hash, ()):
                if box_iou(known_box, box) >= SAME_FACE_IOU and (among is None or among(position)):
                    found.append((order, position))
        return min(found)[1] if found else None

    def moved(self, positions: Sequence[int]) -> ImageLookup:
        """A copy in which the reference at p stands at positions[p], and not at all where that is negative."""
        copy = ImageLookup()
        for image_hash, entries in self._by_hash.items():
            kept = list(_moved(entries, positions))
            if kept:
                copy._by_hash[image_hash] = kept
        return copy


def _moved(
    entries: Iterable[tuple[int, int, Sequence[float]]], positions: Sequence[int]
) -> Iterator[tuple[int, int, Sequence[float]]]:
    for order, position, box in entries:
        if positions[position] >= 0:
            yield order, positions[position], box


def box_iou(a: Sequence[float], b: Sequence[float]) -> float:
    """Intersection over union of two xyxy boxes; 0 for boxes without area."""
    width = min(a[2], b[2]) - max(a[0], b[0])
    height = min(a[3], b[3]) - max(a[1], b[1])
    if width <= 0 or height <= 0:
        return 0.0
    common = width * height
    return common / ((a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - common)
