"""Index segments: immutable, memory-mapped files with up to 65,536 references of a directory, laid out for search. See
FORMAT.md.

They are derived from embedding shards and catalog; a damaged or foreign one is written again. Opening reads only header
and checksums. Each block of 256 KiB is verified before its first use: a flipped bit could otherwise return the wrong
person.
"""

from __future__ import annotations

import functools
import hashlib
import mmap
import os
import stat
import uuid
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from pipeline.errors import StoreDamaged
from pipeline.store.files.durable import NO_LINK, Folder, disk_errors
from pipeline.store.files.mapped_rows import BLOCK_BYTES, SUM_TYPE, BlockSums, CheckedBlocks, MappedRows
from pipeline.store.files.segment_header import (
    MAX_ROWS,
    PAGE_BYTES,
    SUM_BYTES,
    Header,
    SegmentKey,
    SegmentUnreadable,
    SegmentUnusable,
    image_key_id,
)
from pipeline.types import ByteArray, DoubleArray, FloatArray, IntArray

_CHUNK_ROWS: Final = 4096  # converted at a time
_MEASURED: Final = 1.0 + 2.0**-20
_ID_BYTES: Final = 16  # of a UUID, and an image hash's digest
_HALF: Final = 8
_PER_ROW: Final = ("vectors", "seq", "order", "person_ids", "boxes")  # columns of `SegmentRows`, stored as they are


class VectorCodes(NamedTuple):
    """int8 copy of n vectors; see `matching.int8_filter.Codes`, also for the proof."""

    codes: npt.NDArray[np.int8]  # [n, d]
    scales: FloatArray  # [n]
    errors: FloatArray  # [n] >= L2 norm of vector - scale * codes


class ImageTable(NamedTuple):
    """k image hashes: halves of their digests, and the rows with such an image."""

    high: npt.NDArray[np.uint64]  # [k]
    low: npt.NDArray[np.uint64]  # [k]
    rows: IntArray  # [k]


@dataclass(frozen=True, eq=False)
class SegmentRows:
    """n references of a directory for a new segment: 1 <= n <= 65,536, `seq` strictly ascending."""

    vectors: FloatArray  # [n, d] finite
    codes: VectorCodes  # of the vectors
    seq: IntArray  # [n] reference numbers
    order: IntArray  # [n] person numbers
    person_ids: ByteArray  # [n, 16] the bytes of UUIDs
    boxes: FloatArray  # [n, 4] xyxy in pixels of the upright original
    images: ImageTable  # of their photos, any order

    def __len__(self) -> int:
        return len(self.seq)

    @property
    def columns(self) -> dict[str, npt.NDArray[Any]]:
        """The content of each section."""
        high, low, of_rows = self.images
        by_digest = np.lexsort((of_rows, low, high))
        keys = np.ascontiguousarray(self.person_ids).reshape(-1).view(">u8")[::2].astype(np.uint64)
        by_person = np.argsort(keys, kind="stable")
        return {
            **self.codes._asdict(),
            **{name: getattr(self, name) for name in _PER_ROW},
            "person_keys": keys[by_person],
            "person_rows": by_person.astype(np.uint32),
            "image_high": high[by_digest],
            "image_low": low[by_digest],
            "image_rows": of_rows[by_digest].astype(np.uint32),
        }

    @classmethod
    def joined(cls, parts: Sequence[SegmentRows]) -> SegmentRows:
        """All rows, in order of the parts."""
        starts = np.cumsum([0, *map(len, parts)])
        images = [
            part.images._replace(rows=part.images.rows + start) for part, start in zip(parts, starts, strict=False)
        ]
        return cls(
            codes=VectorCodes(*map(np.concatenate, zip(*(part.codes for part in parts), strict=True))),
            images=ImageTable(*map(np.concatenate, zip(*images, strict=True))),
            **{name: np.concatenate([getattr(part, name) for part in parts]) for name in _PER_ROW},
        )


def uuid_bytes(texts: Sequence[str]) -> ByteArray:
    """[n, 16] the UUIDs' bytes."""
    return np.frombuffer(b"".join(uuid.UUID(text).bytes for text in texts), np.uint8).reshape(-1, _ID_BYTES)


def image_table(hashes: Sequence[tuple[str, ...]], image_key: bytes) -> ImageTable:
    """Of each row's photo hashes."""
    of_rows = [(row, text) for row, texts in enumerate(hashes) for text in dict.fromkeys(texts)]
    digests = b"".join(_digest(text, image_key) for _, text in of_rows)
    halves = np.frombuffer(digests, ">u8").astype(np.uint64).reshape(-1, 2)
    return ImageTable(halves[:, 0], halves[:, 1], np.array([row for row, _ in of_rows], np.int64))


def codes_of(vectors: FloatArray) -> VectorCodes:
    """int8 copy of `vectors` [n, d], finite and non-zero: as `int8_kernels.quantize`, except for an error's last
    bit."""
    rows, size = vectors.shape
    made = VectorCodes(np.empty((rows, size), np.int8), np.empty(rows, np.float32), np.empty(rows, np.float32))
    for start in range(0, rows, _CHUNK_ROWS):
        chunk = slice(start, start + _CHUNK_ROWS)
        exact = vectors[chunk].astype(np.float64)
        made.scales[chunk] = np.abs(vectors[chunk]).max(axis=1) / np.float32(127.0)
        units = made.scales[chunk].astype(np.float64)[:, None]
        rounded: DoubleArray = np.rint(exact / units).clip(-127.0, 127.0)
        made.codes[chunk] = rounded
        made.errors[chunk] = _norms(exact - units * rounded) * _MEASURED
    return made


def _norms(rows: DoubleArray) -> DoubleArray:
    """L2 norms [n] of `rows` [n, d]."""
    norms: DoubleArray = np.sqrt(np.einsum("ij,ij->i", rows, rows))
    return norms


# Writing


def write(folder: Folder, relative: str, key: SegmentKey, rows: SegmentRows, image_key: bytes) -> int:
    """Writes a segment durably and atomically, making its folder if missing; returns its size in bytes.

    `image_key`, 1 to 64 bytes, is needed to find images, and is not in the file. Vectors and codes are converted in
    chunks, without a second copy. Raises StoreFull, StoreUnwritable; ValueError if `rows` cannot be a segment.
    """
    if not 1 <= len(rows.seq) <= MAX_ROWS:
        raise ValueError(f"a segment has 1 to {MAX_ROWS} rows, not {len(rows.seq)}")
    if not image_key:
        raise ValueError("without a key anybody could test which photos a segment has")
    columns = rows.columns
    hashes = len(columns["image_rows"])
    header = Header.of(key, len(rows.seq), hashes, _max_norm(rows.vectors), image_key)
    _require_valid(header, columns)
    folder.make(relative.rpartition("/")[0])
    sums = BlockSums()
    with folder.replacing(relative, "segment") as file, disk_errors(folder.root):
        file.write(header.page())
        for part in _parts(header, columns):
            file.write(part)
            sums.add(part)
        table = sums.table()
        file.write(table + zlib.crc32(table).to_bytes(SUM_BYTES, "little"))
    return header.file_bytes


def _require_valid(header: Header, columns: dict[str, npt.NDArray[Any]]) -> None:
    for name, section in header.sections.items():
        column = columns[name]
        if column.shape != section.shape or not np.can_cast(column.dtype, section.dtype, "equiv"):
            raise ValueError(f"{name} must be {section.dtype} {section.shape}, not {column.dtype} {column.shape}")
    if not (np.diff(columns["seq"]) > 0).all():
        raise ValueError("the numbers of the references do not ascend")


def _max_norm(vectors: FloatArray) -> float:
    """Largest L2 norm of `vectors` [n, d], float64."""
    chunks = (vectors[start : start + _CHUNK_ROWS] for start in range(0, len(vectors), _CHUNK_ROWS))
    return float(np.max([_norms(chunk.astype(np.float64)).max() for chunk in chunks]))


def _digest(image_hash: str, image_key: bytes) -> bytes:
    """16 bytes, the digest of a hash."""
    return hashlib.blake2b(image_hash.encode(), key=image_key, digest_size=_ID_BYTES).digest()


def _parts(header: Header, columns: dict[str, npt.NDArray[Any]]) -> Iterator[memoryview]:
    """The bytes between header and checksums."""
    ends = [*(section.offset for section in header.sections.values()), header.end][1:]
    for (name, section), end in zip(header.sections.items(), ends, strict=True):
        for start in range(0, len(columns[name]), _CHUNK_ROWS):
            part = np.ascontiguousarray(columns[name][start : start + _CHUNK_ROWS], section.dtype)
            yield part.reshape(-1).view(np.uint8).data
        yield memoryview(bytes(end - section.end))


# Reading


class Segment:
    """An open, read-only segment of n references: a `FrozenPart` of an index. Thread-safe. Unaffected if the file is
    replaced or deleted; the file must not be changed in place.

    Reading rows and looking up persons and images raises StoreDamaged for a damaged block.
    """

    def __init__(self, folder: Folder, relative: str, header: Header, mapped: mmap.mmap, image_key: bytes) -> None:
        """See `open`."""
        self.file = relative
        self.key = header.key
        self._path = folder.path(relative)
        self.max_norm = header.max_norm  # largest L2 norm of the vectors, float64
        self.dead: IntArray = np.empty(0, np.int64)  # [t] rows of removed references, ascending
        self._header = header
        self._mapped = mapped
        self._image_key = image_key
        sums = np.frombuffer(mapped, SUM_TYPE, header.blocks, header.end)
        damaged = functools.partial(_damaged, folder.root, relative, header)
        self._blocks = CheckedBlocks(memoryview(mapped)[PAGE_BYTES : header.end], sums, damaged)
        self.vectors: MappedRows[np.float32] = self._rows("vectors")  # [n, d]
        self.codes: MappedRows[np.int8] = self._rows("codes")  # [n, d]
        self.scales: MappedRows[np.float32] = self._rows("scales")  # [n]
        self.errors: MappedRows[np.float32] = self._rows("errors")  # [n]
        self.seq: MappedRows[np.int64] = self._rows("seq")  # [n] ascending
        self.order: MappedRows[np.int64] = self._rows("order")  # [n]
        self.person_ids: MappedRows[np.uint8] = self._rows("person_ids")  # [n, 16] the bytes of UUIDs
        self.boxes: MappedRows[np.float32] = self._rows("boxes")  # [n, 4] xyxy
        self._person_keys: MappedRows[np.uint64] = self._rows("person_keys")
        self._person_rows: MappedRows[np.uint32] = self._rows("person_rows")
        self._image_high: MappedRows[np.uint64] = self._rows("image_high")
        self._image_low: MappedRows[np.uint64] = self._rows("image_low")
        self._image_rows: MappedRows[np.uint32] = self._rows("image_rows")

    @classmethod
    def open(
        cls, folder: Folder, relative: str, key: SegmentKey, image_key: bytes, removed: IntArray | None = None
    ) -> Segment:
        """Maps the file, even on a read-only disk; takes the same time for any number of rows. `removed`: numbers of
        removed references, of any segments.

        Raises SegmentUnreadable if the system cannot read it now; SegmentUnusable if it is missing, truncated, a link,
        damaged in header, checksums or reference numbers, or of another `key` or `image_key`.
        """
        try:
            mapped = _map(folder, relative)
        except FileNotFoundError as exc:
            raise SegmentUnusable("it is missing") from exc
        except OSError as exc:
            raise SegmentUnreadable(f"it cannot be read: {exc.strerror}") from exc
        header = Header.read(mapped[:PAGE_BYTES])
        if header.key != key:
            raise SegmentUnusable(f"it is of {header.key}, not of {key}")
        if header.image_key_id != image_key_id(image_key):
            raise SegmentUnusable("it was written under another key for images")
        if len(mapped) != header.file_bytes:
            raise SegmentUnusable(f"it has {len(mapped)} bytes, not {header.file_bytes}")
        if zlib.crc32(mapped[header.end : -SUM_BYTES]) != int.from_bytes(mapped[-SUM_BYTES:], "little"):
            raise SegmentUnusable("its checksums are not as they were written")
        segment = cls(folder, relative, header, mapped, image_key)
        if removed is not None and len(removed):
            try:
                segment.dead = np.flatnonzero(np.isin(segment.seq.checked(0, len(segment)), removed))
            except StoreDamaged as exc:
                raise SegmentUnusable("the numbers of its references are damaged") from exc
        return segment

    def __len__(self) -> int:
        """The number of references, n."""
        return self._header.rows

    @property
    def file_bytes(self) -> int:
        """The file's size."""
        return self._header.file_bytes

    def person_row(self, person_id: str) -> int | None:
        """The row of the person's last reference; None if there is none."""
        try:
            wanted = uuid.UUID(person_id).bytes
        except ValueError:  # no person has it
            return None
        keys, half = self._person_keys.checked(0, len(self)), _number(wanted[:_HALF])
        first = int(keys.searchsorted(half))
        if first == len(keys) or keys[first] != half:
            return None
        rows: list[int] = self._person_rows.checked(first, int(keys.searchsorted(half, "right"))).tolist()
        return next((row for row in reversed(rows) if self.person_ids.checked(row, row + 1).tobytes() == wanted), None)

    def image_rows(self, image_hash: str) -> list[int]:
        """Rows of references from photos with this hash, ascending. Most lookups, one per face and segment, find
        nothing and take 2 µs."""
        high, low = _halves(image_hash, self._image_key)
        keys = self._image_high.checked(0, len(self._image_high))
        first = int(keys.searchsorted(high))
        if first == len(keys) or keys[first] != high:
            return []
        end = int(keys.searchsorted(high, "right"))
        same = self._image_low.checked(first, end) == low
        rows: list[int] = self._image_rows.checked(first, end)[same].tolist()
        return rows

    def live(self) -> SegmentRows:
        """The rows that are not removed, in memory."""
        kept = np.setdiff1d(np.arange(len(self)), self.dead)
        moved = np.full(len(self), -1)
        moved[kept] = np.arange(len(kept))
        hashes = len(self._image_rows)
        rows = moved[self._image_rows.checked(0, hashes)]
        high, low = self._image_high.checked(0, hashes), self._image_low.checked(0, hashes)
        return SegmentRows(
            codes=VectorCodes(self.codes.at(kept), self.scales.at(kept), self.errors.at(kept)),
            images=ImageTable(high[rows >= 0], low[rows >= 0], rows[rows >= 0]),
            **{name: getattr(self, name).at(kept) for name in _PER_ROW},
        )

    def verify(self) -> str | None:
        """Reads the whole file and describes the first damage, or returns None. Not through the map: a bad sector would
        end the process."""
        try:
            with self._path.open("rb") as file:
                file.seek(PAGE_BYTES)
                left = self._header.end - PAGE_BYTES
                for block in range(self._header.blocks):
                    data = file.read(min(BLOCK_BYTES, left))
                    left -= BLOCK_BYTES
                    if not self._blocks.is_sound(block, data):
                        return _damage(self._header, block)
        except OSError as exc:
            return f"it cannot be read: {exc.strerror}"
        return None

    def _rows(self, name: str) -> MappedRows[Any]:
        section = self._header.sections[name]
        array = np.ndarray(section.shape, section.dtype, self._mapped, section.offset)
        return MappedRows(self._blocks, array, section.offset - PAGE_BYTES)


def _damaged(root: Path, relative: str, header: Header, block: int) -> StoreDamaged:
    """The error for a damaged block. Not a method: a reference cycle would keep the file open."""
    detail = f"the index segment {relative} is not as it was written: {_damage(header, block)}"
    cure = f"`facepipe check --store {root} --repair` makes it again from the embeddings."
    return StoreDamaged(path=root, detail=detail, cure=cure)


def _damage(header: Header, block: int) -> str:
    """Describes a damaged block's place."""
    start = PAGE_BYTES + block * BLOCK_BYTES
    stop = min(start + BLOCK_BYTES, header.end)
    names = [name for name, section in header.sections.items() if section.offset < stop and section.end > start]
    return f"bytes {start} to {stop} ({', '.join(names)}) differ from their checksum"


def _map(folder: Folder, relative: str) -> mmap.mmap:
    """The file as a read-only memory map. Raises OSError; SegmentUnusable if empty or not a plain file."""
    path = folder.path(relative)
    if not stat.S_ISREG(path.lstat().st_mode):  # links are never ours, and opening a pipe would block
        raise SegmentUnusable("it is not a plain file")
    descriptor = os.open(path, os.O_RDONLY | NO_LINK)
    try:
        if os.fstat(descriptor).st_size == 0:  # cannot be mapped
            raise SegmentUnusable("it is empty")
        return mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
    finally:
        os.close(descriptor)


@functools.lru_cache(64)  # a face is looked up in every segment
def _halves(image_hash: str, image_key: bytes) -> tuple[np.uint64, np.uint64]:
    """A hash's digest as in the lookup table."""
    digest = _digest(image_hash, image_key)
    return _number(digest[:_HALF]), _number(digest[_HALF:])


def _number(half: bytes) -> np.uint64:
    """8 bytes, big-endian. Not an int, which NumPy would compare as float64, losing its last bits."""
    number: np.uint64 = np.uint64(int.from_bytes(half, "big"))
    return number
