"""The model of the one writer of a run: `bench_writer.py` fits and checks it, `capacity.py` reckons with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

SIZE: Final = 512  # numbers of an embedding


@dataclass(frozen=True)
class Model:
    """Seconds and bytes of each face, new person and multiply-add."""

    group_s_per_face: float
    s_per_multiply_add: float
    rest_s_per_face: float
    rest_s_per_person: float
    bytes_per_face: float
    bytes_per_person: float  # besides the picture: rows, and the vector in the matrix of references

    def seconds(self, faces: float, new: float, products: float) -> float:
        per_face = self.group_s_per_face + self.rest_s_per_face
        return per_face * faces + self.rest_s_per_person * new + self.s_per_multiply_add * products

    def bytes(self, faces: float, new: float, picture_bytes: float) -> float:
        return self.bytes_per_face * faces + (self.bytes_per_person + picture_bytes) * new
