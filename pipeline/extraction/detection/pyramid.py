"""The image pyramids of a batch, and the cells of P-Net's output over them."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.types import Array

CELL = 12  # pixels that one cell of P-Net's output sees
STRIDE = 2  # pixels between neighbouring cells


@dataclass(frozen=True)
class Level:
    """One step of an image's pyramid: the image resampled to height x width by `scale`."""

    scale: float
    height: int
    width: int


def pyramid(height: int, width: int, min_face_px: int, factor: float) -> list[Level]:
    """The levels of an image, the largest first; none for an image too small to hold a face.

    Scales and sizes as in facenet-pytorch: a face of min_face_px is as large as one cell in the first level.
    """
    scale = CELL / min_face_px
    shorter = min(height, width) * scale
    levels = []
    while shorter >= CELL:
        levels.append(Level(scale, int(height * scale + 1), int(width * scale + 1)))
        scale *= factor
        shorter *= factor
    return levels


def most_overlap(min_face_px: int, factor: float) -> float:
    """A bound on the intersection over union of the boxes of two cells in different levels of a pyramid.

    The smaller box lies in the larger one at best. Their corners are whole pixels, so each side may be off by one; that
    counts most for the two smallest.
    """
    side = (CELL - 1) * min_face_px / CELL
    return ((side + 1) / (side / factor - 1)) ** 2


@dataclass(frozen=True)
class Cells:
    """n cells of P-Net's output, on the batch's device."""

    image: Array  # [n] int64
    level: Array  # [n] int64
    scale: Array  # [n] float32, of the level
    column: Array  # [n] int64, in the level
    row: Array  # [n] int64
    probability: Array  # [n] float32
    regression: Array  # [n, 4] float32, shares of the cell's sides
