"""The references of one directory, which search and grouping compare faces with.

They are rows of frozen parts, which stay where they are, and of a tail in memory, which grows. Rows are only appended,
and removed rows are only marked as dead. So a snapshot is a length, a list of dead rows and the arrays of the moment:
readers need no lock, and no writer disturbs them (multi-version concurrency control).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, TypeVar

import numpy as np
import numpy.typing as npt

from pipeline.errors import EmbeddingInvalid, UsageError
from pipeline.matching.columns import Column, MemoryRows, Rows, Scalar, dead_between
from pipeline.matching.frozen import FrozenImages, FrozenPart
from pipeline.matching.identical_images import ImageLookup, Images, same_faces
from pipeline.matching.int8_filter import MAX_DIMENSIONS, CodeColumns, Codes, grown, load_kernels
from pipeline.matching.products import HostVectors
from pipeline.runtime.device import HOST
from pipeline.types import FloatArray, IntArray

if TYPE_CHECKING:
    from pipeline.matching.device_products import DeviceVectors

NORM_TOLERANCE: Final = 1e-3  # float32 rounding changes a norm of 1 by 1e-6 at most; more is a fault

_FIRST_CAPACITY: Final = 1024
_COMPACT_DEAD: Final = 1024  # fewer dead rows cost nothing worth a copy of the index
_told: set[str] = set()  # devices of which a warning said that they are too small for a search
_log = logging.getLogger(__name__)
_Answer = TypeVar("_Answer")


def with_room(work: Callable[[IndexView], _Answer], view: IndexView) -> _Answer:
    """`work(view)`, or where its device has no memory for that, the same on the host: the answer is the same."""
    if view.device == HOST:
        return work(view)

    from pipeline.runtime.device import lack_of_memory, own_stream

    try:
        with own_stream(view.device):
            return work(view)
    except RuntimeError as exc:
        detail = lack_of_memory(exc)
    if view.device not in _told:
        _told.add(view.device)
        _log.warning("%s has too little memory for a search (%s): the CPU does it", view.device, detail)
    return work(view.on_host())


@dataclass(frozen=True, eq=False)
class IndexView:
    """The n references of an index as they were at one moment, for any number of threads. Nothing in it changes.

    Positions are 0 .. n - 1; those in `dead` are removed references, which no search finds.
    """

    embedding_size: int
    vectors: HostVectors | DeviceVectors  # [n, d] float32 on the device, for matrix products
    host_vectors: Column[np.float32]  # [n, d], for exact scores
    order: Column[np.int64]  # [n] the order of insertion of the identities, unique among live rows
    codes: CodeColumns | None  # [n, d] the int8 copy, if there is one
    max_norm: float  # of all vectors that were ever in the index, float64
    dead: IntArray  # [t] ascending
    images: Sequence[Images] = field(repr=False)  # of the index, with later and removed references
    lineage: object = field(repr=False)  # the index whose positions these are

    def __len__(self) -> int:
        """The number of positions, dead ones included."""
        return len(self.order)

    def view(self) -> IndexView:
        """Itself, so that functions take an index or a view."""
        return self

    @property
    def device(self) -> str:
        """Where matrix products are made: `cpu`, or as torch calls it."""
        return self.vectors.device

    def vectors_at(self, positions: IntArray) -> FloatArray:
        """A copy [m, d] of the vectors at `positions` [m]."""
        return self.host_vectors.at(positions)

    def orders_at(self, positions: IntArray) -> IntArray:
        """The order numbers [m] of the references at `positions` [m]."""
        return self.order.at(positions)

    def on_host(self) -> IndexView:
        """The same on the CPU. Copies no vectors."""
        return replace(self, vectors=HostVectors(self.host_vectors))

    def part(self, rows: range) -> IndexView:
        """A view of consecutive positions alone, for searches among them; the first is at 0. Copies no vectors."""
        between = slice(rows.start, rows.stop)
        return replace(
            self,
            vectors=self.vectors[between],
            host_vectors=self.host_vectors[between],
            order=self.order[between],
            codes=None if self.codes is None else self.codes[between],
            dead=dead_between(self.dead, rows.start, rows.stop),
            images=(),
            lineage=object(),
        )

    def is_alive(self, position: int) -> bool:
        """Whether there is a live reference at `position`."""
        place = int(np.searchsorted(self.dead, position))
        return 0 <= position < len(self) and not (place < len(self.dead) and self.dead[place] == position)

    def find_identical(self, hashes: Collection[str], box: Sequence[float]) -> int | None:
        """The position of the live reference with one of `hashes` and IoU >= 0.5 with `box` (xyxy in pixels of that
        image), the one of lowest order if there are several; None if there is none."""
        found = self._identical(hashes, box)
        return min(found)[1] if found else None

    def is_of(self, position: int, hashes: Collection[str], box: Sequence[float]) -> bool:
        """Whether the reference at `position` is alive and of this very image and face, as in `find_identical`."""
        return any(place == position for _, place in self._identical(hashes, box))

    def _identical(self, hashes: Collection[str], box: Sequence[float]) -> list[tuple[int, int]]:
        """(order, position) of the live references of this very image and face."""
        return [found for found in same_faces(self.images, hashes, box) if self.is_alive(found[1])]


@dataclass(frozen=True)
class Changes:
    """How an index changed between two views of it."""

    appended: range  # positions, some of which may be dead again
    removed: IntArray  # newly dead positions, ascending, with those appended since


def changes_since(old: IndexView, new: IndexView) -> Changes | None:
    """The changes from `old` to the later view `new`. None if positions mean something else there: `new` is of a
    compacted copy or of another index."""
    if old.lineage is not new.lineage:
        return None
    same = len(old.dead) == len(new.dead)  # dead rows never come back
    removed = new.dead[:0] if same else np.setdiff1d(new.dead, old.dead, assume_unique=True)
    return Changes(range(len(old), len(new)), removed)


class ReferenceIndex:
    """Reference vectors of d dimensions, with order numbers, image hashes and boxes.

    Positions are 0, 1, ...: the rows of the frozen parts, one part after another, then those of the tail, in the order
    of appending. They never change. One thread at a time may write; any thread may call `view` at any time, and sees
    each write completely or not at all.

    Memory on the host, for the t rows of the tail: 4 t d bytes (up to twice that, because capacity doubles, and three
    times while it does), 8 t bytes of order numbers, and about 0.3 KB per image hash. A million references of 512
    dimensions take 2-4 GB. `quantized` adds an int8 copy of t (d + 8) bytes, which makes searches for few faces on the
    CPU about three times as fast; it needs numba, and there is none without it. A device has a copy of all vectors,
    those of frozen parts included; where it has too little memory, the host goes on alone. Removed references keep
    their memory until `compacted`.

    Frozen parts take none, and making an index of them reads none of their rows, but for that copy. What they hold is
    read when a search needs it, which raises StoreDamaged if it is damaged.
    """

    def __init__(
        self,
        embedding_size: int,
        device: str = HOST,
        *,
        quantized: bool = False,
        frozen: Sequence[FrozenPart] = (),
    ) -> None:
        """`device`: `cpu`, or one of torch's."""
        if embedding_size < 1:
            raise UsageError(message=f"An embedding has at least one dimension, not {embedding_size}.")
        self.embedding_size = embedding_size
        self.device = device
        self._quantized = quantized
        self._frozen = frozen
        self._starts = np.cumsum([0, *map(len, frozen)], dtype=np.int64)  # of the frozen parts, and of the tail
        self._lineage = object()
        self._frozen_images = [FrozenImages(*each) for each in zip(frozen, self._starts.tolist(), strict=False)]
        self._images = ImageLookup()
        self._tail_vectors = np.empty((0, embedding_size), dtype=np.float32)
        self._tail_order = np.empty(0, dtype=np.int64)
        worth = quantized and device == HOST and embedding_size <= MAX_DIMENSIONS and load_kernels() is not None
        self._tail_codes = Codes.empty(0, embedding_size) if worth else None
        self._lay_out(self.tail_start)
        dead = [part.dead + start for part, start in zip(frozen, self._starts, strict=False)]
        max_norm = max((part.max_norm for part in frozen), default=0.0)
        self._view = self._snapshot(self.tail_start, max_norm, np.concatenate([self._tail_order, *dead]))

    def __len__(self) -> int:
        """The number of positions, dead ones included."""
        return len(self._view)

    @property
    def tail_start(self) -> int:
        """The position of the first reference that was appended: how many rows the frozen parts have."""
        return int(self._starts[-1])

    @property
    def memory_bytes(self) -> int:
        """What the vectors in the host's memory take: those of the tail."""
        return 4 * self.embedding_size * (len(self) - self.tail_start)

    @property
    def worth_compacting(self) -> bool:
        """Whether so many rows of the tail are dead (a quarter, and at least 1,024) that searching them costs more than
        a copy."""
        dead = len(self._view.dead) - int(np.searchsorted(self._view.dead, self.tail_start))
        return dead >= _COMPACT_DEAD and 4 * dead > len(self) - self.tail_start

    def view(self) -> IndexView:
        """The references as they are now, in constant time."""
        return self._view

    def append(
        self,
        vectors: FloatArray,
        order: IntArray,
        image_hashes: Sequence[Iterable[str]],
        boxes: FloatArray,
        removed: IntArray | None = None,
    ) -> None:
        """Adds m references: `vectors` [m, d] of norm 1, `order` [m], the hashes of each image (of its bytes and of its
        pixels), `boxes` [m, 4] xyxy in pixels of that image. In the same step it does what `remove` does with those at
        `removed`: a view has either these or the new ones.

        Raises EmbeddingInvalid, or UsageError if the lengths disagree; then nothing was changed.
        """
        view, count = self._view, len(vectors)
        norm = check_embeddings(vectors, self.embedding_size)
        if len(order) != count or len(image_hashes) != count or boxes.shape != (count, 4):
            raise UsageError(
                message=f"{count} references need as many order numbers, hashes and boxes, "
                f"not {len(order)}, {len(image_hashes)} and {list(boxes.shape)}."
            )
        dead = view.dead if removed is None else _with_dead(view, removed)
        self._write(len(view), vectors, order)
        rows = zip(order.tolist(), image_hashes, boxes.tolist(), strict=True)
        for position, (number, hashes, box) in enumerate(rows, len(view)):
            self._images.add(number, position, hashes, box)
        self._view = self._snapshot(len(view) + count, max(view.max_norm, norm), dead)

    def remove(self, positions: IntArray) -> None:
        """Makes the references at `positions` [t] dead. Raises UsageError, and removes none, if one is not alive or is
        named twice."""
        view = self._view
        self._view = self._snapshot(len(view), view.max_norm, _with_dead(view, positions))

    def compacted(self) -> tuple[ReferenceIndex, IntArray]:
        """A copy whose tail has no dead rows, and the positions [l], ascending, that the rows of its tail had here.

        It shares the frozen parts, whose rows keep their positions, dead ones included.
        """
        view, start = self._view, self.tail_start
        frozen_dead, tail_dead = np.split(view.dead, np.searchsorted(view.dead, [start]))
        alive = np.ones(len(view) - start, dtype=np.bool_)
        alive[tail_dead - start] = False
        kept = start + np.flatnonzero(alive)
        copy = ReferenceIndex(self.embedding_size, self.device, quantized=self._quantized, frozen=self._frozen)
        copy._write(start, view.vectors_at(kept), view.orders_at(kept))
        copy._images = self._images.moved({position: start + row for row, position in enumerate(kept.tolist())})
        copy._view = copy._snapshot(start + len(kept), view.max_norm, frozen_dead)
        return copy, kept

    def _snapshot(self, length: int, max_norm: float, dead: IntArray) -> IndexView:
        return IndexView(
            self.embedding_size,
            self._vectors[:length],
            self._host_vectors[:length],
            self._order[:length],
            None if self._codes is None else self._codes[:length],
            max_norm,
            dead,
            [*self._frozen_images, self._images],
            self._lineage,
        )

    def _lay_out(self, length: int) -> None:
        """Makes the columns of the frozen parts and the tail's arrays, with the room that these have for more than
        `length` rows."""
        frozen, tail_codes = self._frozen, self._tail_codes
        self._host_vectors = self._column([part.vectors for part in frozen], self._tail_vectors)
        self._order = self._column([part.order for part in frozen], self._tail_order)
        self._vectors = self._on_device(length)
        self._codes: CodeColumns | None = None
        if tail_codes is not None:
            self._codes = CodeColumns(
                self._column([part.codes for part in frozen], tail_codes.codes),
                self._column([part.scales for part in frozen], tail_codes.scales),
                self._column([part.errors for part in frozen], tail_codes.errors),
            )

    def _column(self, frozen: Sequence[Rows[Scalar]], tail: npt.NDArray[Scalar]) -> Column[Scalar]:
        return Column([*frozen, MemoryRows(tail)], self._starts, 0, self.tail_start + len(tail))

    def _write(self, start: int, vectors: FloatArray, order: IntArray) -> None:
        """Fills rows from position `start` on, which no view has yet."""
        end, first = start + len(vectors), start - self.tail_start
        self._reserve(start, end)
        rows = slice(first, first + len(vectors))
        self._tail_order[rows] = order
        self._tail_vectors[rows] = vectors
        if not isinstance(self._vectors, HostVectors):
            self._vectors.write(start, self._tail_vectors[rows])
        if self._tail_codes is not None:
            self._tail_codes.put(first, self._tail_vectors[rows])

    def _reserve(self, length: int, needed: int) -> None:
        """Makes room for `needed` references. Older views keep the old memory and stay right."""
        filled, wanted = length - self.tail_start, needed - self.tail_start
        if wanted <= len(self._tail_order):
            return
        # A little more than needed, so that the first insertion after a load does not copy everything.
        capacity = max(wanted + wanted // 8, 2 * len(self._tail_order), _FIRST_CAPACITY)
        self._tail_vectors = grown(self._tail_vectors, capacity, filled)
        self._tail_order = grown(self._tail_order, capacity, filled)
        if self._tail_codes is not None:
            self._tail_codes = self._tail_codes.grown(capacity, filled)
        self._lay_out(length)

    def _on_device(self, length: int) -> HostVectors | DeviceVectors:
        """The first `length` vectors where products are made, with as much room as there is on the host."""
        if self.device == HOST:
            return HostVectors(self._host_vectors)  # shares the memory
        from pipeline.matching.device_products import DeviceVectors
        from pipeline.runtime.device import lack_of_memory

        try:
            return DeviceVectors.copied(self._host_vectors, length, self.device)
        except RuntimeError as exc:
            detail, device, self.device = lack_of_memory(exc), self.device, HOST
            _log.warning("%s has too little memory for all references (%s): the CPU searches them", device, detail)
            return self._on_device(length)


def _with_dead(view: IndexView, positions: IntArray) -> IntArray:
    """The dead rows of `view` and `positions`, ascending, in a new array."""
    new = np.unique(positions)
    in_range = len(new) == 0 or (new[0] >= 0 and new[-1] < len(view))
    if len(new) != len(positions) or not in_range or np.isin(new, view.dead).any():
        raise UsageError(message=f"Only references that are there can be removed, each once: not {positions}.")
    return np.insert(view.dead, np.searchsorted(view.dead, new), new)


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
    bad = np.flatnonzero(~(np.abs(norms - 1.0) <= NORM_TOLERANCE))  # negated, so that NaN is bad
    if len(bad):
        raise EmbeddingInvalid(size=size, detail=f"vector {bad[0]} of {len(vectors)} has norm {norms[bad[0]]:g}")
    return float(norms.max())
