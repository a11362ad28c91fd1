"""Image pyramids, and cells of P-Net's output."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.types import Array

CELL = 12  # pixels that one cell of P-Net's output sees
STRIDE = 2  # pixels between neighbouring cells


@dataclass(frozen=True)
class Level:
    """An image resampled to height x width by `scale`."""

    scale: float
    height: int
    width: int


def pyramid(height: int, width: int, min_face_px: int, factor: float) -> list[Level]:
    """An image's levels, largest first; none if it is too small for a face.

    As in facenet-pytorch: a face of min_face_px fills a cell in the first level.
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
    """Upper bound of the intersection over union of two cells' boxes in different levels.

    At best the smaller box is inside the larger. Rounded corners may change sides by one, most for the two smallest.
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
    regression: Array  # [n, 4] float32, relative to the cell's sides
