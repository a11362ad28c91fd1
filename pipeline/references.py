"""The references of one directory in memory: what search and grouping compare a face with."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch

from pipeline.errors import EmbeddingInvalid, UsageError
from pipeline.types import FloatArray, IntArray

SAME_FACE_IOU = 0.5  # two boxes of one image with at least this IoU are one face
NORM_TOLERANCE = 1e-3  # float32 vectors of norm 1 are off by 1e-6 at most; anything further is a fault

_FIRST_CAPACITY = 1024
_Scalar = TypeVar("_Scalar", bound=np.generic)


class ImageLookup:
    """Which references stem from an image: the identical-image rule.

    Costs about 0.3 KB of host memory per hash.
    """

    def __init__(self) -> None:
        self._by_hash: dict[str, list[tuple[int, int, Sequence[float]]]] = {}

    def add(self, order: int, position: int, hashes: Iterable[str], box: Sequence[float]) -> None:
        """Makes the reference at `position` findable by each of `hashes`; `box` is xyxy in pixels."""
        entry = (order, position, box)
        for image_hash in hashes:
            self._by_hash.setdefault(image_hash, []).append(entry)

    def find(self, hashes: Iterable[str], box: Sequence[float]) -> int | None:
        """The position of the earliest reference with one of `hashes` and IoU >= 0.5 with `box`, or None."""
        found = []
        for image_hash in hashes:
            for order, position, known_box in self._by_hash.get(image_hash, ()):
                if box_iou(known_box, box) >= SAME_FACE_IOU:
                    found.append((order, position))
        return min(found)[1] if found else None


def box_iou(a: Sequence[float], b: Sequence[float]) -> float:
    """Intersection over union of two xyxy boxes; 0 for boxes without area."""
    width = min(a[2], b[2]) - max(a[0], b[0])
    height = min(a[3], b[3]) - max(a[1], b[1])
    if width <= 0 or height <= 0:
        return 0.0
    common = width * height
    return common / ((a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - common)


class ReferenceIndex:
    """A growing set of n reference vectors of d dimensions, with order numbers, image hashes and boxes.

    Memory: 4 n d bytes on the device (up to twice that, because capacity doubles, and three times while it does),
    the same on the host for exact scores (on the CPU the two are one), 8 n bytes of order numbers, and about
    0.3 KB per image hash. A million references of 512 dimensions take 2-4 GB.

    Positions are 0, 1, ... in the order of appending and never change; equal scores go to the lower order number.
    """

    def __init__(self, embedding_size: int, device: str | torch.device = "cpu") -> None:
        if embedding_size < 1:
            raise UsageError(message=f"An embedding has at least one dimension, not {embedding_size}.")
        self.embedding_size = embedding_size
        self.device = torch.device(device)
        self.images = ImageLookup()
        self.max_norm = 0.0  # of all vectors so far, float64
        self._length = 0
        self._order = np.empty(0, dtype=np.int64)
        self._host = np.empty((0, embedding_size), dtype=np.float32)
        self._vectors = self._on_device()

    def __len__(self) -> int:
        return self._length

    @property
    def vectors(self) -> torch.Tensor:
        """[n, d] float32 on the device: what products are made of. A view; do not write."""
        return self._vectors[: self._length]

    @property
    def host_vectors(self) -> FloatArray:
        """[n, d] float32 on the host: what exact scores are made of. A view; do not write."""
        return self._host[: self._length]

    @property
    def order(self) -> IntArray:
        """[n] int64: the order of insertion of the identities."""
        return self._order[: self._length]

    def append(
        self,
        vectors: FloatArray,
        order: IntArray,
        image_hashes: Sequence[Iterable[str]],
        boxes: FloatArray,
    ) -> None:
        """Adds m references: `vectors` [m, d] of norm 1, `order` [m], the hashes of each one's image (of its bytes
        and of its pixels), `boxes` [m, 4] xyxy in pixels of that image.

        Raises EmbeddingInvalid, or UsageError when the lengths disagree; then nothing was added.
        """
        count = len(vectors)
        norm = check_embeddings(vectors, self.embedding_size)
        if len(order) != count or len(image_hashes) != count or boxes.shape != (count, 4):
            raise UsageError(
                message=f"{count} references need as many order numbers, hashes and boxes, "
                f"not {len(order)}, {len(image_hashes)} and {list(boxes.shape)}."
            )
        start, end = self._length, self._length + count
        self._reserve(end)
        self._order[start:end] = order
        self._host[start:end] = vectors
        if self.device.type != "cpu":
            self._vectors[start:end] = torch.from_numpy(self._host[start:end]).to(self.device)
        rows = zip(order.tolist(), image_hashes, boxes.tolist(), strict=True)
        for position, (number, hashes, box) in enumerate(rows, start):
            self.images.add(number, position, hashes, box)
        self.max_norm = max(self.max_norm, norm)
        self._length = end

    def _reserve(self, length: int) -> None:
        """Makes room for `length` references. Views handed out before keep the old memory and stay right."""
        if length <= len(self._host):
            return
        capacity = max(length, 2 * len(self._host), _FIRST_CAPACITY)
        self._host = _grown(self._host, capacity, self._length)
        self._order = _grown(self._order, capacity, self._length)
        self._vectors = self._on_device()

    def _on_device(self) -> torch.Tensor:
        host = torch.from_numpy(self._host)
        if self.device.type == "cpu":
            return host  # shares the memory
        vectors = torch.empty(self._host.shape, dtype=torch.float32, device=self.device)
        vectors[: self._length] = host[: self._length].to(self.device)
        return vectors


def _grown(array: npt.NDArray[_Scalar], capacity: int, length: int) -> npt.NDArray[_Scalar]:
    grown = np.empty((capacity, *array.shape[1:]), dtype=array.dtype)
    grown[:length] = array[:length]
    return grown


def check_embeddings(vectors: FloatArray, size: int) -> float:
    """The largest L2 norm (float64) of `vectors` [n, size], 0.0 for none. Raises EmbeddingInvalid unless they are
    finite float32 of norm 1 within 1e-3."""
    if vectors.ndim != 2 or vectors.shape[1] != size or vectors.dtype != np.float32:
        raise EmbeddingInvalid(size=size, detail=f"these are {vectors.dtype} of shape {list(vectors.shape)}")
    if len(vectors) == 0:
        return 0.0
    # In blocks: the float64 copy of a million vectors would take 4 GB.
    blocks = (vectors[i : i + 4096].astype(np.float64) for i in range(0, len(vectors), 4096))
    norms = np.sqrt(np.concatenate([np.einsum("ij,ij->i", block, block) for block in blocks]))
    off = np.flatnonzero(~(np.abs(norms - 1.0) <= NORM_TOLERANCE))  # so that NaN is off
    if len(off):
        raise EmbeddingInvalid(size=size, detail=f"vector {off[0]} of {len(vectors)} has norm {norms[off[0]]:g}")
    return float(norms.max())
