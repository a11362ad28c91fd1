"""Sequential threshold grouping in blocks: faces are decided one by one, at the speed of matrix products.

A block is compared at once with the index and the identities of earlier blocks; only within a block are comparisons
sequential. Exact scores decide, so the block size affects only the speed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from pipeline.errors import UsageError
from pipeline.matching.error_bound import ProductFilter
from pipeline.matching.identical_images import ImageLookup
from pipeline.matching.match import Matcher, Nearest
from pipeline.matching.references import IndexView, ReferenceIndex, check_embeddings, with_room
from pipeline.types import BoolArray, Decisions, DoubleArray, FaceBatch, FloatArray, IntArray

MAX_BLOCK_FACES: Final = 8192


def group_faces(
    faces: FaceBatch, index: ReferenceIndex | IndexView, matcher: Matcher, block_faces: int = 1024
) -> Decisions:
    """Decides, in order, the identity of each of n faces: a reference of `index`, or a face inserted before it.

    The earliest live reference of the same image and face (same hash, IoU >= 0.5) is its identity, with d = 0 at any
    threshold. Else it is the reference with the highest score >= 1.0 (the earlier of equals). Else an insertable face
    becomes a new identity.

    The k-th inserted face, from 0, is at position len(index) + k. `index` does not change: the caller appends the
    inserted faces, in order, at their commit. Memory: 1-2 copies of the inserted vectors, 6 block_faces^2 bytes, and 24
    bytes for each pair in a block that may match. `block_faces` is in [1, 8192]. Raises UsageError, EmbeddingInvalid,
    and DeviceError if the device's float32 products have reduced precision.
    """
    if not 1 <= block_faces <= MAX_BLOCK_FACES:
        raise UsageError(message=f"A block has 1 to {MAX_BLOCK_FACES} faces, not {block_faces}.")
    count = len(faces)
    if len(faces.insertable) != count or len(faces.image_hashes) != count or faces.boxes.shape != (count, 4):
        raise UsageError(
            message=f"{count} embeddings need as many insertable flags, image hashes and boxes, not "
            f"{len(faces.insertable)}, {len(faces.image_hashes)} and {list(faces.boxes.shape)}."
        )
    norm = check_embeddings(faces.embeddings, index.embedding_size)

    def group(view: IndexView) -> Decisions:
        grouping = _Grouping(faces, view, matcher, norm)
        for start in range(0, count, block_faces):
            grouping.decide(start, min(start + block_faces, count))
        return grouping.decisions()

    return with_room(group, index.view())


@dataclass(frozen=True)
class _Pairs:
    """Pairs of a block that may match: the partners of row r, all before r, are columns[starts[r] : starts[r + 1]]."""

    starts: list[int]
    columns: IntArray
    products: DoubleArray  # float32 products of the pairs


class _Grouping:
    """The state of one `group_faces` call."""

    def __init__(self, faces: FaceBatch, view: IndexView, matcher: Matcher, norm: float) -> None:
        self._faces = faces
        self._view = view
        self._matcher = matcher
        self._filter = ProductFilter(view.embedding_size, norm * norm, matcher.calibration)
        self._inserted_before = ReferenceIndex(view.embedding_size, view.device)  # by earlier blocks
        self._inserted_images = ImageLookup()  # by the whole batch so far
        self._insertable: list[bool] = faces.insertable.tolist()
        self._boxes: list[list[float]] = faces.boxes.tolist()
        self._count = 0
        self._position = np.full(len(faces), -1, dtype=np.int64)
        self._inserted = np.zeros(len(faces), dtype=np.bool_)
        self._distance = np.full(len(faces), np.nan)

    def decisions(self) -> Decisions:
        return Decisions(self._position, self._inserted, self._matcher.scores(self._distance))

    def decide(self, start: int, end: int) -> None:
        """Decides the faces start .. end - 1; all before them are decided."""
        vectors = self._faces.embeddings[start:end]
        earlier = self._earlier(vectors)
        pairs = self._pairs(vectors, self._faces.insertable[start:end] & (earlier.positions[:, 0] < 0))
        positions, distances = earlier.positions[:, 0].tolist(), earlier.distances[:, 0].tolist()
        for row, face in enumerate(range(start, end)):
            position, distance = self._identical(face), 0.0
            if position is None:
                position, distance = positions[row], distances[row]
                if pairs.starts[row] != pairs.starts[row + 1]:
                    position, distance = self._within(row, start, earlier, pairs)
            if position < 0:
                self._insert(face)
            else:
                self._position[face], self._distance[face] = position, distance
        if end < len(self._faces):
            self._keep_inserted(start, end)

    def _identical(self, face: int) -> int | None:
        hashes, box = self._faces.image_hashes[face], self._boxes[face]
        position = self._view.find_identical(hashes, box)
        return self._inserted_images.find(hashes, box) if position is None else position

    def _insert(self, face: int) -> None:
        """Makes the face a new identity if it is insertable."""
        if not self._insertable[face]:
            return
        position = len(self._view) + self._count
        self._inserted_images.add(position, position, self._faces.image_hashes[face], self._boxes[face])
        self._position[face], self._distance[face], self._inserted[face] = position, 0.0, True
        self._count += 1

    def _earlier(self, vectors: FloatArray) -> Nearest:
        """The best match of each face among the identities before its block: one column."""
        stored = self._matcher.nearest(self._view, vectors, 1, matching=True)
        new = self._matcher.nearest(self._inserted_before, vectors, 1, matching=True)
        # The index is older than this batch, so it wins ties.
        better = new.ranks > stored.ranks
        return Nearest(
            np.where(better, len(self._view) + new.positions, stored.positions),
            np.where(better, new.distances, stored.distances),
            np.where(better, new.ranks, stored.ranks),
        )

    def _pairs(self, vectors: FloatArray, may_be_inserted: BoolArray) -> _Pairs:
        """The pairs (face, earlier face that may be inserted) whose score may reach 1.0."""
        # Most requests have one face; an empty product costs as much as everything else but the search.
        if len(vectors) == 1:
            return _Pairs([0, 0], np.empty(0, np.int64), np.empty(0))
        partners = np.flatnonzero(may_be_inserted)
        cut = self._filter.match_cut(self._matcher.threshold)
        rows, columns, values = self._view.vectors.pairs(vectors, partners, cut)
        starts = np.searchsorted(rows, np.arange(len(vectors) + 1))
        return _Pairs(starts.tolist(), partners[columns], values.astype(np.float64))

    def _within(self, row: int, start: int, earlier: Nearest, pairs: _Pairs) -> tuple[int, float]:
        """Position and distance of a face's best match among `earlier` and the faces inserted before it in its
        block."""
        before_block = int(earlier.positions[row, 0]), float(earlier.distances[row, 0])
        part = slice(pairs.starts[row], pairs.starts[row + 1])
        columns, products = pairs.columns[part], pairs.products[part]
        inserted = self._inserted[start + columns]
        columns, products = columns[inserted], products[inserted]
        if len(columns) == 0:
            return before_block
        columns = columns[products >= self._filter.cut(products.max())]
        embeddings = self._faces.embeddings[start + columns]
        face = np.broadcast_to(self._faces.embeddings[start + row], embeddings.shape)
        distances = self._matcher.distances(face, embeddings)
        ranks = self._matcher.ranks(distances)
        best = int(ranks.argmax())  # of equals the earliest
        if ranks[best] <= earlier.ranks[row, 0] or not self._matcher.matches(distances[best : best + 1])[0]:
            return before_block
        return int(self._position[start + columns[best]]), float(distances[best])

    def _keep_inserted(self, start: int, end: int) -> None:
        """Adds this block's identities for later blocks; `_inserted_images` has their images already."""
        faces = start + np.flatnonzero(self._inserted[start:end])
        vectors, boxes = self._faces.embeddings[faces], self._faces.boxes[faces]
        self._inserted_before.append(vectors, self._position[faces], [()] * len(faces), boxes)
