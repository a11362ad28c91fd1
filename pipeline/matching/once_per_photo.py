"""Nobody twice on a photo: which faces must be of different people."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import TypeAlias

from pipeline.errors import UsageError
from pipeline.matching.identical_images import SAME_FACE_IOU, box_iou
from pipeline.types import IntArray

Person: TypeAlias = str | int  # an id; or the number of the batch's face that founded it


@dataclass(frozen=True)
class OncePerPhoto:
    """Which of n faces must be of different people."""

    photos: IntArray  # [n] two faces of one photo are of two people; -1: no constraint
    person_of: Callable[[int], str] = str  # whose reference is at a position of the index
    # photo -> people of its faces that are not in the batch
    taken: Mapping[int, Set[str]] = field(default_factory=dict)
    # [n] whose face it is by a user's word. It precedes others at that person and yields to them at other people; those
    # of one person do not exclude each other. A new person is whose its first face is
    said: Sequence[str | None] = ()


def photo_ranges(once: OncePerPhoto) -> list[range]:
    """The faces of each photo with constraints, in order. Raises UsageError if those of two photos are mixed."""
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for face, photo in enumerate(once.photos.tolist()):
        if photo >= 0:
            first.setdefault(photo, face)
            last[photo] = face
    found = [range(first[photo], last[photo] + 1) for photo in first]
    if any(one.stop > other.start for one, other in itertools.pairwise(found)):
        raise UsageError(message="The faces of a photo must follow each other.")
    return [faces for faces in found if len(faces) > 1 or once.taken.get(int(once.photos[faces.start]))]


def blocks(count: int, block_faces: int, photos: Sequence[range]) -> Iterator[tuple[int, int]]:
    """Start and end of each block: none ends within a photo."""
    start = 0
    while start < count:
        end = min(start + block_faces, count)
        within = bisect.bisect_left(photos, end, key=lambda faces: faces.stop)  # the first that ends here or later
        if within < len(photos) and photos[within].start < end:
            end = photos[within].stop
        yield start, end
        start = end


def photos_with_rule(
    photos: Sequence[int], boxes: Sequence[Sequence[float]], allowed: Set[int] = frozenset()
) -> list[int]:
    """`OncePerPhoto.photos` of faces with these photos and boxes: -1 on photos where somebody is `allowed` to be twice,
    and for boxes that do not count."""
    on_photo: dict[int, list[int]] = {}
    for face, photo in enumerate(photos):
        if photo not in allowed:
            on_photo.setdefault(photo, []).append(face)
    found = [-1] * len(photos)
    for photo, faces in on_photo.items():
        for face, counts in zip(faces, faces_that_count([boxes[face] for face in faces]), strict=True):
            found[face] = photo if counts else -1
    return found


def faces_that_count(boxes: Sequence[Sequence[float]]) -> list[bool]:
    """Whether each box of an image is a face of its own: of boxes that overlap by half, only the first."""
    own: list[Sequence[float]] = []
    counts = []
    for box in boxes:
        counts.append(not any(box_iou(box, other) >= SAME_FACE_IOU for other in own))
        if counts[-1]:
            own.append(box)
    return counts
