"""The references of one directory in memory, which search and grouping compare faces with.

Rows are only appended, and removed rows are only marked as dead. So a snapshot is a length, a list of dead rows and the
arrays of the moment: readers need no lock, and no writer disturbs them (multi-version concurrency control).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, TypeVar

import numpy as np

from pipeline.errors import EmbeddingInvalid, UsageError
from pipeline.matching.identical_images import ImageLookup
from pipeline.matching.int8_filter import MAX_DIMENSIONS, Codes, grown, load_kernels
from pipeline.matching.products import HostVectors, dead_between
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
    host_vectors: FloatArray  # [n, d] float32, for exact scores
    order: IntArray  # [n] the order of insertion of the identities, unique among live rows
    codes: Codes | None  # [n, d] the int8 copy, if there is one
    max_norm: float  # of all vectors that were ever in the index, float64
    dead: IntArray  # [t] ascending
    images: ImageLookup = field(repr=False)  # of the index, with later and removed references
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
            images=ImageLookup(),
            lineage=object(),
        )

    def is_alive(self, position: int) -> bool:
        """Whether there is a live reference at `position`."""
        place = int(np.searchsorted(self.dead, position))
        return 0 <= position < len(self) and not (place < len(self.dead) and self.dead[place] == position)

    def find_identical(self, hashes: Iterable[str], box: Sequence[float]) -> int | None:
        """The position of the live reference with one of `hashes` and IoU >= 0.5 with `box` (xyxy in pixels of that
        image), the one of lowest order if there are several; None if there is none."""
        return self.images.find(hashes, box, self.is_alive)

    def is_of(self, position: int, hashes: Iterable[str], box: Sequence[float]) -> bool:
        """Whether the reference at `position` is alive and of this very image and face, as in `find_identical`."""
        return self.is_alive(position) and self.images.find(hashes, box, lambda place: place == position) is not None


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

    Memory: 4 n d bytes on the device (up to twice that, because capacity doubles, and three times while it does),
    the same on the host for exact scores (on the CPU the two are one), 8 n bytes of order numbers, and about
    0.3 KB per image hash. A million references of 512 dimensions take 2-4 GB. Where the device has too little memory,
    the host goes on alone. `quantized` adds an int8 copy of n (d + 8) bytes, which makes searches for few faces on the
    CPU about three times as fast; it needs numba, and there is none without it. Removed references keep their memory
    until `compacted`.

    Positions are 0, 1, ... in the order of appending and never change. One thread at a time may write; any thread may
    call `view` at any time, and sees each write completely or not at all.
    """

    def __init__(self, embedding_size: int, device: str = HOST, *, quantized: bool = False) -> None:
        """`device`: `cpu`, or one of torch's."""
        if embedding_size < 1:
            raise UsageError(message=f"An embedding has at least one dimension, not {embedding_size}.")
        self.embedding_size = embedding_size
        self.device = device
        self._images = ImageLookup()
        self._lineage = object()
        self._order = np.empty(0, dtype=np.int64)
        self._host = np.empty((0, embedding_size), dtype=np.float32)
        self._vectors = self._on_device(0)
        self._quantized = quantized
        worth = quantized and device == HOST and embedding_size <= MAX_DIMENSIONS and load_kernels() is not None
        self._codes = Codes.empty(0, embedding_size) if worth else None
        self._view = self._snapshot(0, 0.0, np.empty(0, dtype=np.int64))

    def __len__(self) -> int:
        """The number of positions, dead ones included."""
        return len(self._view)

    @property
    def worth_compacting(self) -> bool:
        """Whether so many rows are dead (a quarter, and at least 1,024) that searching them costs more than a copy."""
        dead = len(self._view.dead)
        return dead >= _COMPACT_DEAD and 4 * dead > len(self)

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
        """A copy without the dead rows, and the positions [l], ascending, that its rows had here."""
        view = self._view
        alive = np.ones(len(view), dtype=np.bool_)
        alive[view.dead] = False
        kept = np.flatnonzero(alive)
        moved = np.where(alive, np.cumsum(alive) - 1, -1)
        copy = ReferenceIndex(self.embedding_size, self.device, quantized=self._quantized)
        copy._write(0, view.host_vectors[kept], view.order[kept])
        copy._images = self._images.moved(moved.tolist())
        copy._view = copy._snapshot(len(kept), view.max_norm, view.dead[:0])
        return copy, kept

    def _snapshot(self, length: int, max_norm: float, dead: IntArray) -> IndexView:
        return IndexView(
            self.embedding_size,
            self._vectors[:length],
            self._host[:length],
            self._order[:length],
            None if self._codes is None else self._codes[:length],
            max_norm,
            dead,
            self._images,
            self._lineage,
        )

    def _write(self, start: int, vectors: FloatArray, order: IntArray) -> None:
        """Fills rows from `start` on, which no view has yet."""
        end = start + len(vectors)
        self._reserve(start, end)
        self._order[start:end] = order
        self._host[start:end] = vectors
        if not isinstance(self._vectors, HostVectors):
            self._vectors.write(start, self._host[start:end])
        if self._codes is not None:
            self._codes.put(start, self._host[start:end])

    def _reserve(self, length: int, needed: int) -> None:
        """Makes room for `needed` references. Older views keep the old memory and stay right."""
        if needed <= len(self._host):
            return
        # A little more than needed, so that the first insertion after a load does not copy everything.
        capacity = max(needed + needed // 8, 2 * len(self._host), _FIRST_CAPACITY)
        self._host = grown(self._host, capacity, length)
        self._order = grown(self._order, capacity, length)
        self._vectors = self._on_device(length)
        if self._codes is not None:
            self._codes = self._codes.grown(capacity, length)

    def _on_device(self, length: int) -> HostVectors | DeviceVectors:
        """The first `length` vectors where products are made, with as much room as `_host` has."""
        if self.device == HOST:
            return HostVectors(self._host)  # shares the memory
        from pipeline.matching.device_products import DeviceVectors
        from pipeline.runtime.device import lack_of_memory

        try:
            return DeviceVectors.copied(self._host, length, self.device)
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
