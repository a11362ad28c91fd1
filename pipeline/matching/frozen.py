"""Immutable parts of an index, such as a store's segments: searched in place, not copied."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from pipeline.matching.columns import Rows
from pipeline.matching.identical_images import Entry
from pipeline.types import IntArray


class FrozenPart(Protocol):
    """n immutable references, with the data an index needs."""

    def __len__(self) -> int: ...

    @property
    def vectors(self) -> Rows[np.float32]:
        """[n, d] float32 of norm 1."""

    @property
    def order(self) -> Rows[np.int64]:
        """[n], as in `IndexView`."""

    @property
    def boxes(self) -> Rows[np.float32]:
        """[n, 4] xyxy in pixels of each reference's image."""

    @property
    def codes(self) -> Rows[np.int8]:
        """[n, d], as in `int8_filter.Codes`."""

    @property
    def scales(self) -> Rows[np.float32]:
        """[n], as in `int8_filter.Codes`."""

    @property
    def errors(self) -> Rows[np.float32]:
        """[n], as in `int8_filter.Codes`."""

    @property
    def max_norm(self) -> float:
        """At least the largest L2 norm of `vectors` in float64."""

    @property
    def dead(self) -> IntArray:
        """[t] the removed rows, ascending."""

    def image_rows(self, image_hash: str) -> Sequence[int]:
        """The rows of the image with this hash, removed ones included."""


@dataclass(frozen=True)
class FrozenImages:
    """The `Images` of a frozen part whose first row is at position `start`."""

    part: FrozenPart
    start: int

    def entries(self, image_hash: str) -> Iterator[Entry]:
        """As `Images.entries`."""
        rows = np.array(self.part.image_rows(image_hash), dtype=np.int64)
        if len(rows):
            orders, boxes = self.part.order.at(rows).tolist(), self.part.boxes.at(rows).tolist()
            yield from zip(orders, (self.start + rows).tolist(), boxes, strict=True)
