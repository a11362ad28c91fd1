"""Sequential threshold grouping in blocks: faces are decided one by one, at the speed of matrix products.

A block is compared at once with the index and the identities of earlier blocks; only within a block are comparisons
sequential. Exact scores decide, so the block size affects only the speed.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np

from pipeline.errors import UsageError
from pipeline.matching.error_bound import ProductFilter
from pipeline.matching.identical_images import ImageLookup, nothing
from pipeline.matching.match import Matcher, Nearest
from pipeline.matching.once_per_photo import OncePerPhoto, Person, blocks, photo_ranges
from pipeline.matching.references import IndexView, ReferenceIndex, check_embeddings, with_room
from pipeline.types import BoolArray, Decisions, DoubleArray, FaceBatch, FloatArray, IntArray

MAX_BLOCK_FACES: Final = 8192
_EVERYBODY: Final = 2**63 - 1  # positions
_SEARCHED: Final = 8  # references searched at first for a face's next match

_NOBODY: Final[Set[Person]] = frozenset()
_NO_PHOTOS: Final = OncePerPhoto(np.empty(0, np.int64))


def group_faces(
    faces: FaceBatch,
    index: ReferenceIndex | IndexView,
    matcher: Matcher,
    block_faces: int = 1024,
    once: OncePerPhoto | None = None,
) -> Decisions:
    """Decides, in order, the identity of each of n faces: a reference of `index`, or a face inserted before it.

    The earliest live reference of the same image and face (same hash, IoU >= 0.5) is its identity, with d = 0 at any
    threshold. Else it is the reference with the highest score >= 1.0 (the earlier of equals). Else an insertable face
    becomes a new identity.

    With `once` nobody is twice on a photo, whose faces follow each other (others of -1 may lie between). Of its faces
    with one person the first face of a new person keeps it; else one that a user gave it; else the nearest of those
    that a user gave nobody, of equals one of the same image, then the earliest. The others are barred from it, and the
    photo is decided again. A block ends with a photo, so it may be longer.

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

    photos = [] if once is None else photo_ranges(once)

    def group(view: IndexView) -> Decisions:
        grouping = _Grouping(faces, view, matcher, norm, once, photos)
        for start, end in blocks(count, block_faces, photos):
            grouping.decide(start, end)
        return grouping.decisions()

    return with_room(group, index.view())


@dataclass(frozen=True)
class _Pairs:
    """Pairs of a block that may match: the partners of row r, all before r, are columns[starts[r] : starts[r + 1]]."""

    starts: list[int]
    columns: IntArray
    products: DoubleArray  # float32 products of the pairs


# An identity that a face matches: its position (-1: none), distance and rank as `Matcher.ranks`.
_Match: TypeAlias = tuple[int, float, float]
_NONE: Final[_Match] = -1, math.nan, -math.inf


def _matches(nearest: Nearest) -> list[_Match]:
    """Those of all faces, one after another."""
    columns = (each.ravel().tolist() for each in (nearest.positions, nearest.distances, nearest.ranks))
    return list(zip(*columns, strict=True))


@dataclass(frozen=True)
class _Block:
    """Faces start .. end - 1, compared."""

    start: int
    earlier: list[_Match]  # by row: the best identity before the block
    pairs: _Pairs


class _Grouping:
    """The state of one `group_faces` call."""

    def __init__(
        self,
        faces: FaceBatch,
        view: IndexView,
        matcher: Matcher,
        norm: float,
        once: OncePerPhoto | None,
        photos: Sequence[range],
    ) -> None:
        """`photos`: the faces of each photo on which nobody may be twice."""
        self._faces = faces
        self._view = view
        self._matcher = matcher
        self._once = once or _NO_PHOTOS
        self._photos = photos
        self._filter = ProductFilter(view.embedding_size, norm * norm, matcher.calibration)
        self._inserted_before = ReferenceIndex(view.embedding_size, view.device)  # by earlier blocks
        self._inserted_images = ImageLookup()  # by the whole batch so far
        self._insertable: list[bool] = faces.insertable.tolist()
        self._boxes: list[list[float]] = faces.boxes.tolist()
        self._founders: list[int] = []  # the inserted faces
        # By face of a photo and offset of an index: matches searched, and those left, the best last
        self._next_of: dict[tuple[int, int], tuple[int, list[_Match]]] = {}
        self._position = np.full(len(faces), -1, dtype=np.int64)
        self._inserted = np.zeros(len(faces), dtype=np.bool_)
        self._distance = np.full(len(faces), np.nan)
        self._by_image = [False] * len(faces)  # by the rule of identical images

    def decisions(self) -> Decisions:
        return Decisions(self._position, self._inserted, self._matcher.scores(self._distance))

    def decide(self, start: int, end: int) -> None:
        """Decides the faces start .. end - 1; all before them are decided."""
        block = self._compared(start, end)
        done = start
        for photo in self._photos_of(start, end):
            self._decide_each(range(done, photo.start), block)
            self._decide_photo(photo, block)
            done = photo.stop
        self._decide_each(range(done, end), block)
        if end < len(self._faces):
            self._keep_inserted(start, end)

    def _photos_of(self, start: int, end: int) -> Sequence[range]:
        if not self._photos:
            return ()
        first, last = (bisect.bisect_left(self._photos, each, key=lambda faces: faces.start) for each in (start, end))
        return self._photos[first:last]

    def _compared(self, start: int, end: int) -> _Block:
        vectors = self._faces.embeddings[start:end]
        earlier = self._earlier(vectors)
        may_be_inserted = earlier.positions[:, 0] < 0
        for photo in self._photos_of(start, end):
            may_be_inserted[photo.start - start : photo.stop - start] = True  # it may lose its match
        pairs = self._pairs(vectors, self._faces.insertable[start:end] & may_be_inserted)
        return _Block(start, _matches(earlier), pairs)

    def _decide_each(self, faces: range, block: _Block) -> None:
        for face in faces:
            self._decide(face, block, _NOBODY)

    def _decide(self, face: int, block: _Block, barred: Set[Person], end: int = _EVERYBODY) -> None:
        """Decides a face as if these people, and positions from `end` on, did not exist; the block's `earlier` has none
        of them."""
        self._match(face, block, barred, end)
        if self._position[face] < 0:
            self._insert(face)

    def _match(self, face: int, block: _Block, barred: Set[Person], end: int) -> None:
        position, distance = self._identical(face, barred, end), 0.0
        self._by_image[face] = position is not None
        if position is None:
            row = face - block.start
            position, distance, _ = block.earlier[row]
            if block.pairs.starts[row] != block.pairs.starts[row + 1]:
                position, distance = self._within(row, block, barred, end)
        self._position[face], self._distance[face] = position, distance if position >= 0 else math.nan

    def _decide_photo(self, faces: range, block: _Block) -> None:
        """Decides the faces of a photo on which nobody may be twice."""
        taken = self._once.taken.get(int(self._once.photos[faces.start]), _NOBODY)
        bound = [face for face in faces if self._once.photos[face] >= 0]
        barred: dict[int, set[Person]] = {face: set() for face in bound}
        losing = [(face, person) for face in bound for person in taken]
        self._next_of.clear()
        if len(bound) == len(faces) and not self._once.said:
            # Whoever is new on this photo keeps its person. So nobody is compared with it, and only who loses is
            # matched again.
            end, again = len(self._view) + len(self._founders), bound
            while again:
                for face, person in losing:
                    barred[face].add(person)
                for face in dict.fromkeys(again):
                    self._leave_out(face, barred[face], block)
                    self._match(face, block, barred[face], end)
                losing = self._losing(bound)
                again = [face for face, _ in losing]
            for face in faces:
                self._decide(face, block, barred[face], end)
            return
        while True:
            for face, person in losing:
                barred[face].add(person)
                self._leave_out(face, barred[face], block)
            for face in faces:
                self._decide(face, block, barred.get(face, _NOBODY))
            losing = self._losing(bound)
            if not losing:
                return
            self._withdraw(faces)

    def _person(self, position: int) -> Person:
        new = position - len(self._view)
        return self._once.person_of(position) if new < 0 else self._founders[new]

    def _losing(self, faces: Sequence[int]) -> list[tuple[int, Person]]:
        """The faces of a photo with a person that another one keeps, and that person."""
        shown: dict[Person, list[int]] = {}
        for face in faces:
            position = int(self._position[face])
            if position >= 0:
                shown.setdefault(self._person(position), []).append(face)
        losing = []
        for person, rivals in shown.items():
            keeper, *others = sorted(rivals, key=self._claim)
            said = self._said(keeper)
            losing += [(face, person) for face in others if said is None or self._said(face) != said]
        return losing

    def _claim(self, face: int) -> tuple[bool, int, float, bool]:
        """Which of a photo's faces keeps a person: the lowest."""
        founds = bool(self._inserted[face])
        return not founds, self._word(face), float(self._distance[face]), not self._by_image[face]

    def _word(self, face: int) -> int:
        """0 if a user gave the face to the person that it matches, 2 if to another one, else 1."""
        said = self._said(face)
        if said is None:
            return 1
        person = self._person(int(self._position[face]))
        return 0 if said == (self._said(person) if isinstance(person, int) else person) else 2

    def _said(self, face: int) -> str | None:
        return self._once.said[face] if self._once.said else None

    def _leave_out(self, face: int, barred: Set[Person], block: _Block) -> None:
        """Replaces the face's match before its block by the best one of nobody `barred`."""
        known = block.earlier[face - block.start]
        if known[0] < 0 or self._person(known[0]) not in barred:
            return
        stored = self._next(self._view, 0, face, barred)
        new = self._next(self._inserted_before, len(self._view), face, barred)
        # The index is older than this batch, so it wins ties.
        block.earlier[face - block.start] = new if new[2] > stored[2] else stored

    def _next(self, index: ReferenceIndex | IndexView, offset: int, face: int, barred: Set[Person]) -> _Match:
        """The best match of nobody `barred`, who become only more, in an index whose first position is `offset`."""
        searched, left = self._next_of.get((face, offset), (0, []))
        while True:
            while left:
                position, distance, rank = left[-1]
                if position < 0:
                    return _NONE
                if self._person(offset + position) not in barred:
                    return offset + position, distance, rank
                left.pop()
            if searched == len(index):
                return _NONE
            count = min(4 * searched or _SEARCHED, len(index))
            nearest = self._matcher.nearest(index, self._faces.embeddings[face : face + 1], count, matching=True)
            searched, left = count, _matches(nearest)[searched:][::-1]
            self._next_of[face, offset] = searched, left

    def _withdraw(self, faces: range) -> None:
        """Undoes the decision of the last faces."""
        for face in reversed(faces):
            if self._inserted[face]:
                self._founders.pop()
                self._inserted_images.withdraw(self._faces.image_hashes[face])
        self._position[faces.start : faces.stop] = -1
        self._inserted[faces.start : faces.stop] = False
        self._distance[faces.start : faces.stop] = np.nan

    def _identical(self, face: int, barred: Set[Person], end: int) -> int | None:
        hashes, box = self._faces.image_hashes[face], self._boxes[face]

        def is_barred(position: int) -> bool:
            return position >= end or self._person(position) in barred

        skip = is_barred if barred or end < _EVERYBODY else nothing
        position = self._view.find_identical(hashes, box, skip)
        return self._inserted_images.find(hashes, box, skip) if position is None else position

    def _insert(self, face: int) -> None:
        """Makes the face a new identity if it is insertable."""
        if not self._insertable[face]:
            return
        position = len(self._view) + len(self._founders)
        self._inserted_images.add(position, position, self._faces.image_hashes[face], self._boxes[face])
        self._position[face], self._distance[face], self._inserted[face] = position, 0.0, True
        self._founders.append(face)

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

    def _within(self, row: int, block: _Block, barred: Set[Person], end: int) -> tuple[int, float]:
        """Position and distance of a face's best match among `earlier` and the faces inserted before it in its
        block."""
        position, distance, rank = block.earlier[row]
        part = slice(block.pairs.starts[row], block.pairs.starts[row + 1])
        columns, products = block.pairs.columns[part], block.pairs.products[part]
        allowed = self._inserted[block.start + columns] & (self._position[block.start + columns] < end)
        if barred:
            allowed &= ~np.isin(block.start + columns, [person for person in barred if isinstance(person, int)])
        columns, products = columns[allowed], products[allowed]
        if len(columns) == 0:
            return position, distance
        columns = columns[products >= self._filter.cut(products.max())]
        embeddings = self._faces.embeddings[block.start + columns]
        face = np.broadcast_to(self._faces.embeddings[block.start + row], embeddings.shape)
        distances = self._matcher.distances(face, embeddings)
        ranks = self._matcher.ranks(distances)
        best = int(ranks.argmax())  # of equals the earliest
        if ranks[best] <= rank or not self._matcher.matches(distances[best : best + 1])[0]:
            return position, distance
        return int(self._position[block.start + columns[best]]), float(distances[best])

    def _keep_inserted(self, start: int, end: int) -> None:
        """Adds this block's identities for later blocks; `_inserted_images` has their images already."""
        faces = start + np.flatnonzero(self._inserted[start:end])
        vectors, boxes = self._faces.embeddings[faces], self._faces.boxes[faces]
        self._inserted_before.append(vectors, self._position[faces], [()] * len(faces), boxes)
