"""Which faces of a photo that changed are faces that it showed before.

A face is one of the earlier ones if it is at the same place, or like it. Place alone could hand a person to a stranger
whose photo took the name of another; so a face at the same place must not be farther from the earlier one than two
photos of one person hardly ever are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Final

import numpy as np

from pipeline.config import CONTRACT_THRESHOLD
from pipeline.matching.calibration import Calibration
from pipeline.matching.identical_images import box_iou
from pipeline.matching.match import Matcher
from pipeline.types import FloatArray

_SAME_PLACE: Final = 0.5  # intersection over union of the boxes
_BOUND_FMR: Final = 1e-2  # of the bound for faces at the same place
Box = tuple[float, float, float, float]


@dataclass(frozen=True)
class PlacedFace:
    """A face where it is in its photo."""

    box: Box | None  # xyxy as fractions of the upright photo's width and height; None: unknown
    embedding: FloatArray | None  # [d] float32; None: none is stored


def place_bound(calibration: Calibration, threshold: float) -> float:
    """The T beyond which a face at an earlier one's place is another one: that of a false match rate of 1 %, or of the
    highest that was measured; without any, twice the contract's T. Never below the `threshold` of matches."""
    bound = calibration.threshold_near(_BOUND_FMR)
    return max(2 * CONTRACT_THRESHOLD if bound is None else bound, threshold)


def same_faces(
    earlier: Sequence[PlacedFace], later: Sequence[PlacedFace], matcher: Matcher, bound: Matcher
) -> dict[int, int]:
    """The number of each later face that is an earlier one -> that one's number; one to one, the surest first: like it
    and at its place, then like it, then at its place and within the `bound`."""
    pairs = []
    for (number, new), (known, old) in product(enumerate(later), enumerate(earlier)):
        overlap = box_iou(new.box, old.box) if new.box is not None and old.box is not None else 0.0
        there = overlap >= _SAME_PLACE
        distance = math.nan
        if new.embedding is not None and old.embedding is not None:
            distance = float(matcher.distances(new.embedding[None], old.embedding[None])[0])
        like = bool(matcher.matches(np.array([distance]))[0])
        within = math.isnan(distance) or bool(bound.matches(np.array([distance]))[0])
        if like or (there and within):
            pairs.append((not (like and there), not like, distance if like else -overlap, number, known))
    found: dict[int, int] = {}
    for *_, number, known in sorted(pairs):
        if number not in found and known not in found.values():
            found[number] = known
    return found
