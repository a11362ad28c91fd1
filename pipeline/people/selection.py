"""Which faces of a photo a post is about: all, or those that it selects. The others are neither processed nor answered.

Boxes are xyxy in pixels of the upright image.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.errors import SeveralFaces
from pipeline.extraction.rows import ExtractedFace
from pipeline.people.types import PostRequest


@dataclass(frozen=True)
class Selection:
    """Faces from the largest to the smallest."""

    faces: Sequence[ExtractedFace]
    described: int | None  # which of them the headers describe; None: one that is left out


def select_faces(faces: Sequence[ExtractedFace], request: PostRequest, width: int, height: int) -> Selection:
    """Selects among all faces of an image, given from the largest to the smallest.

    The headers describe the face nearest to a point, where one is given, else the largest of all. Raises SeveralFaces
    where the request is about one face, and several are left.
    """
    kept = [face for face in faces if face.box[3] - face.box[1] >= request.larger_than * height]
    by_place = request.closest_x is not None or request.closest_y is not None
    if by_place:
        kept = sorted(kept, key=lambda face: _distance(face, request, width, height))[:1]
    elif request.largest_only:
        kept = [face for face in kept if face is faces[0]]
    if request.is_about_one_face and len(kept) > 1:
        raise SeveralFaces()
    return Selection(kept, 0 if kept and (by_place or kept[0] is faces[0]) else None)


def _distance(face: ExtractedFace, request: PostRequest, width: int, height: int) -> float:
    """Pixels from the centre of the face to the point; along one axis where only that is given."""
    x1, y1, x2, y2 = face.box
    dx = 0.0 if request.closest_x is None else (x1 + x2) / 2 - request.closest_x * width
    dy = 0.0 if request.closest_y is None else (y1 + y2) / 2 - request.closest_y * height
    return math.hypot(dx, dy)
