"""The index of a directory's references: the rows of frozen parts and of a growing tail in memory.

Rows are only appended or marked dead, so a snapshot is a length, a list of dead rows and the current arrays. Readers
need no lock (multi-version concurrency control).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

import numpy as np

from pipeline.errors import EmbeddingInvalid, UsageError
from pipeline.matching.columns import Column, MemoryRows, Rows, dead_between
from pipeline.matching.identical_images import Entry, ImageLookup, Images, nothing, same_faces
from pipeline.matching.int8_filter import MAX_DIMENSIONS, CodeColumns, load_kernels
from pipeline.matching.products import HostVectors
from pipeline.runtime.device import HOST
from pipeline.types import FloatArray, IntArray

if TYPE_CHECKING:
    from pipeline.matching.device_products import DeviceVectors

NORM_TOLERANCE: Final = 1e-3  # float32 rounding changes a norm of 1 by at most 1e-6

_CODES: Final = ("codes", "scales", "errors")  # of `CodeColumns`
_FIRST_CAPACITY: Final = 1024
_COMPACT_DEAD: Final = 1024  # fewer dead rows are not worth a copy of the index
_told: set[str] = set()  # devices already warned about as too small for a search
_log = logging.getLogger(__name__)
_Answer = TypeVar("_Answer")


class FrozenPart(Protocol):
    """n immutable references with the data that an index needs, such as a store's segment: searched in place."""

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
        """[n, d], as in `int8_filter.CodeColumns`."""

    @property
    def scales(self) -> Rows[np.float32]:
        """[n], as in `int8_filter.CodeColumns`."""

    @property
    def errors(self) -> Rows[np.float32]:
        """[n], as in `int8_filter.CodeColumns`."""

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


def with_room(work: Callable[[IndexView], _Answer], view: IndexView) -> _Answer:
    """`work(view)`, repeated on the host if the view's device runs out of memory: the answer is the same."""
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
    """An immutable, thread-safe snapshot of the n references of an index. Searches skip those in `dead`."""

    embedding_size: int
    vectors: HostVectors | DeviceVectors  # [n, d] float32 on the device, for matrix products
    host_vectors: Column[np.float32]  # [n, d], for exact scores
    order: Column[np.int64]  # [n] insertion order of the identities, unique among live rows
    codes: CodeColumns | None  # [n, d] the int8 copy
    max_norm: float  # of all vectors ever in the index, float64
    dead: IntArray  # [t] ascending
    images: Sequence[Images] = field(repr=False)  # include later and removed references
    lineage: object = field(repr=False)  # identifies the index that the positions belong to

    def __len__(self) -> int:
        """The number of positions, dead ones included."""
        return len(self.order)

    def view(self) -> IndexView:
        """Returns itself, so that functions can take an index or a view."""
        return self

    @property
    def device(self) -> str:
        """The device of matrix products: `cpu`, or torch's name."""
        return self.vectors.device

    def vectors_at(self, positions: IntArray) -> FloatArray:
        """A copy [m, d] of the vectors at `positions` [m]."""
        return self.host_vectors.at(positions)

    def orders_at(self, positions: IntArray) -> IntArray:
        """The order numbers [m] of the references at `positions` [m]."""
        return self.order.at(positions)

    def on_host(self) -> IndexView:
        """The same view for the CPU. Copies no vectors."""
        return replace(self, vectors=HostVectors(self.host_vectors))

    def part(self, rows: range) -> IndexView:
        """A view of consecutive positions, renumbered from 0, for searches. Copies no vectors."""
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

    def find_identical(
        self, hashes: Collection[str], box: Sequence[float], skip: Callable[[int], bool] = nothing
    ) -> int | None:
        """The position of the lowest-order live reference with one of `hashes` and IoU >= 0.5 with `box` (xyxy in
        pixels of that image), or None; without positions to `skip`."""
        found = [each for each in self._identical(hashes, box) if not skip(each[1])]
        return min(found)[1] if found else None

    def is_of(self, position: int, hashes: Collection[str], box: Sequence[float]) -> bool:
        """Whether the reference at `position` is alive and of this image and face, as in `find_identical`."""
        return any(place == position for _, place in self._identical(hashes, box))

    def _identical(self, hashes: Collection[str], box: Sequence[float]) -> list[tuple[int, int]]:
        """(order, position) of the live references of this image and face."""
        return [found for found in same_faces(self.images, hashes, box) if self.is_alive(found[1])]


@dataclass(frozen=True)
class Changes:
    """The changes between two views of an index."""

    appended: range  # positions; some may be dead already
    removed: IntArray  # newly dead positions, ascending, including appended ones


def changes_since(old: IndexView, new: IndexView) -> Changes | None:
    """The changes from `old` to the later view `new`. None if `new` is of another index or a compacted copy."""
    if old.lineage is not new.lineage:
        return None
    same = len(old.dead) == len(new.dead)  # dead rows never come back
    removed = new.dead[:0] if same else np.setdiff1d(new.dead, old.dead, assume_unique=True)
    return Changes(range(len(old), len(new)), removed)


class ReferenceIndex:
    """Reference vectors of d dimensions, with order numbers, image hashes and boxes.

    Positions 0, 1, ... are the rows of the frozen parts, then those of the tail in order of appending; they never
    change. One thread at a time may write. Any thread may call `view`; it sees each write completely or not at all.

    Host memory for t tail rows: 4 t d bytes (up to twice that, as capacity doubles, and three times while it does), 8 t
    bytes of order numbers, and about 0.3 KB per image hash; 2-4 GB for a million references of 512 dimensions.
    `quantized` adds, on the host and with numba, an int8 copy of t (d + 8) bytes, which makes searches for few faces
    about three times as fast. A device holds a copy of all vectors; if its memory is too small, the host searches.
    Removed references keep their memory until `compacted`.

    Frozen parts take no host memory. Their rows are read by searches and for a device's copy, which raises StoreDamaged
    if they are damaged.
    """

    def __init__(
        self,
        embedding_size: int,
        device: str = HOST,
        *,
        quantized: bool = False,
        frozen: Sequence[FrozenPart] = (),
    ) -> None:
        """`device`: `cpu`, or torch's name."""
        if embedding_size < 1:
            raise UsageError(message=f"An embedding has at least one dimension, not {embedding_size}.")
        self.embedding_size = embedding_size
        self.device = device
        self._quantized = quantized
        self._frozen = frozen
        self._starts = np.cumsum([0, *map(len, frozen)], dtype=np.int64)  # of the frozen parts and the tail
        self._lineage = object()
        self._frozen_images = [FrozenImages(*each) for each in zip(frozen, self._starts.tolist(), strict=False)]
        self._images = ImageLookup()
        kinds: dict[str, tuple[type[np.generic], tuple[int, ...]]]  # dtype and shape of a row, by name in FrozenPart
        kinds = {"vectors": (np.float32, (embedding_size,)), "order": (np.int64, ())}
        kernels = load_kernels() if quantized and device == HOST and embedding_size <= MAX_DIMENSIONS else None
        if kernels is not None:
            kinds |= {"codes": (np.int8, (embedding_size,)), "scales": (np.float32, ()), "errors": (np.float32, ())}
        self._kernels = kernels
        self._tail = {name: np.empty((0, *shape), dtype) for name, (dtype, shape) in kinds.items()}
        self._lay_out(self.tail_start)
        dead = [part.dead + start for part, start in zip(frozen, self._starts, strict=False)]
        max_norm = max((part.max_norm for part in frozen), default=0.0)
        self._view = self._snapshot(self.tail_start, max_norm, np.concatenate([self._tail["order"], *dead]))

    def __len__(self) -> int:
        """The number of positions, dead ones included."""
        return len(self._view)

    @property
    def tail_start(self) -> int:
        """The position of the first row of the tail."""
        return int(self._starts[-1])

    @property
    def memory_bytes(self) -> int:
        """Size of the tail's vectors."""
        return 4 * self.embedding_size * (len(self) - self.tail_start)

    @property
    def worth_compacting(self) -> bool:
        """Whether more than a quarter of the tail, and at least 1,024 rows, are dead: then a copy costs less."""
        dead = len(self._view.dead) - int(np.searchsorted(self._view.dead, self.tail_start))
        return dead >= _COMPACT_DEAD and 4 * dead > len(self) - self.tail_start

    def view(self) -> IndexView:
        """A snapshot, in constant time."""
        return self._view

    def append(
        self,
        vectors: FloatArray,
        order: IntArray,
        image_hashes: Sequence[Iterable[str]],
        boxes: FloatArray,
        removed: IntArray | None = None,
    ) -> None:
        """Adds m references: `vectors` [m, d] of norm 1, `order` [m], each image's hashes (of its bytes and pixels),
        and `boxes` [m, 4] xyxy in pixels of that image. Removes those at `removed` in the same step: a view has either
        these or the new ones.

        Raises EmbeddingInvalid, or UsageError if the lengths disagree; then nothing is changed.
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
        """Marks the references at `positions` [t] dead. Raises UsageError, and removes none, if one is not alive or is
        given twice."""
        view = self._view
        self._view = self._snapshot(len(view), view.max_norm, _with_dead(view, positions))

    def compacted(self) -> tuple[ReferenceIndex, IntArray]:
        """A copy without the tail's dead rows, and the old positions [l] of its tail's rows, ascending.

        It shares the frozen parts, whose rows, dead or not, keep their positions.
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
        columns = {name: column[:length] for name, column in self._columns.items()}
        return IndexView(
            self.embedding_size,
            self._vectors[:length],
            columns["vectors"],
            columns["order"],
            CodeColumns(*(columns[name] for name in _CODES)) if self._kernels is not None else None,
            max_norm,
            dead,
            [*self._frozen_images, self._images],
            self._lineage,
        )

    def _lay_out(self, length: int) -> None:
        """Makes the columns of the frozen parts and of the tail's arrays, with their whole capacity. `length`: the
        positions in use."""
        self._columns: dict[str, Column[Any]] = {}
        for name, tail in self._tail.items():
            parts = [*(getattr(part, name) for part in self._frozen), MemoryRows(tail)]
            self._columns[name] = Column(parts, self._starts, 0, self.tail_start + len(tail))
        self._vectors = self._on_device(length)

    def _write(self, start: int, vectors: FloatArray, order: IntArray) -> None:
        """Fills rows from position `start`, which no view includes yet."""
        end, first = start + len(vectors), start - self.tail_start
        self._reserve(start, end)
        new = {name: tail[first : first + len(vectors)] for name, tail in self._tail.items()}
        new["order"][:], new["vectors"][:] = order, vectors
        if not isinstance(self._vectors, HostVectors):
            self._vectors.write(start, new["vectors"])
        if self._kernels is not None:
            self._kernels.quantize(new["vectors"], *(new[name] for name in _CODES))

    def _reserve(self, length: int, needed: int) -> None:
        """Ensures capacity for `needed` references; older views keep the old arrays."""
        filled, wanted = length - self.tail_start, needed - self.tail_start
        if wanted <= len(self._tail["order"]):
            return
        # Spare capacity: the first insertion after a load should not copy everything.
        capacity = max(wanted + wanted // 8, 2 * len(self._tail["order"]), _FIRST_CAPACITY)
        for name, tail in self._tail.items():
            self._tail[name] = np.empty((capacity, *tail.shape[1:]), tail.dtype)
            self._tail[name][:filled] = tail[:filled]
        self._lay_out(length)

    def _on_device(self, length: int) -> HostVectors | DeviceVectors:
        """The vectors for matrix products, with the host's capacity; a device gets a copy of the first `length`."""
        if self.device == HOST:
            return HostVectors(self._columns["vectors"])  # shares the memory
        from pipeline.matching.device_products import DeviceVectors
        from pipeline.runtime.device import lack_of_memory

        try:
            return DeviceVectors.copied(self._columns["vectors"], length, self.device)
        except RuntimeError as exc:
            detail, device, self.device = lack_of_memory(exc), self.device, HOST
            _log.warning("%s has too little memory for all references (%s): the CPU searches them", device, detail)
            return self._on_device(length)


def _with_dead(view: IndexView, positions: IntArray) -> IntArray:
    """The dead rows of `view` plus `positions`, ascending, in a new array. Raises UsageError."""
    new = np.unique(positions)
    in_range = len(new) == 0 or (new[0] >= 0 and new[-1] < len(view))
    if len(new) != len(positions) or not in_range or np.isin(new, view.dead).any():
        raise UsageError(message=f"Only references that are there can be removed, each once: not {positions}.")
    return np.insert(view.dead, np.searchsorted(view.dead, new), new)


def check_embeddings(vectors: FloatArray, size: int) -> float:
    """The largest L2 norm (float64) of `vectors` [n, size]; 0.0 for n = 0. Raises EmbeddingInvalid unless they are
    finite float32 of norm 1 +- 1e-3."""
    if vectors.ndim != 2 or vectors.shape[1] != size or vectors.dtype != np.float32:
        raise EmbeddingInvalid(size=size, detail=f"these are {vectors.dtype} of shape {list(vectors.shape)}")
    if len(vectors) == 0:
        return 0.0
    # In blocks: a float64 copy of a million vectors takes 4 GB.
    blocks = (vectors[i : i + 4096].astype(np.float64) for i in range(0, len(vectors), 4096))
    norms = np.sqrt(np.concatenate([np.einsum("ij,ij->i", block, block) for block in blocks]))
    bad = np.flatnonzero(~(np.abs(norms - 1.0) <= NORM_TOLERANCE))  # negated to catch NaN
    if len(bad):
        raise EmbeddingInvalid(size=size, detail=f"vector {bad[0]} of {len(vectors)} has norm {norms[bad[0]]:g}")
    return float(norms.max())
