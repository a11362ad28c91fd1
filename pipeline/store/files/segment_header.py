"""The header of an index segment: identity and sections. See "Index segments" in FORMAT.md.

It is one page of 4096 bytes, so opening a file costs the same at any size.
"""

from __future__ import annotations

import hashlib
import json
import math
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np

from pipeline.store.files.mapped_rows import BLOCK_BYTES

PAGE_BYTES: Final = 4096  # header size, and alignment of sections
SUM_BYTES: Final = 4
MAX_ROWS: Final = 65_536
_MAGIC: Final = b"FACESEG\n"
_VERSION: Final = 1
_VERSION_BYTES: Final = 4
_FORMAT: Final = "facepipe index segment"
_NUMBERS: Final = "little-endian float32/int8"


class SegmentUnusable(Exception):
    """An index segment that cannot be used, and why. Users never see it: the caller makes the segment again."""


class SegmentUnreadable(SegmentUnusable):
    """One that may be sound: the system does not let it be read now."""


@dataclass(frozen=True)
class SegmentKey:
    """A segment's identity; a segment is only used if all of it matches."""

    store: str  # hexadecimal, from the store's creation
    generation: int
    directory_id: int
    embedding_size: int  # d


@dataclass(frozen=True)
class Section:
    """An array in the file."""

    offset: int  # bytes from the file's start
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def end(self) -> int:
        """The offset after its last byte."""
        return self.offset + self.dtype.itemsize * math.prod(self.shape)


@dataclass(frozen=True)
class Header:
    """A segment's parsed header."""

    key: SegmentKey
    rows: int  # n
    image_hashes: int  # k
    max_norm: float  # largest L2 norm of the vectors, float64
    image_key_id: str
    sections: Mapping[str, Section]
    end: int  # the offset after the sections: of the checksums

    @classmethod
    def of(cls, key: SegmentKey, rows: int, image_hashes: int, max_norm: float, image_key: bytes) -> Header:
        """A new file's header, with consecutive sections."""
        sections, end = dict[str, Section](), PAGE_BYTES
        for name, (dtype, shape) in _arrays(rows, key.embedding_size, image_hashes).items():
            sections[name] = Section(end, dtype, shape)
            end = _aligned(sections[name].end)
        return cls(key, rows, image_hashes, max_norm, image_key_id(image_key), sections, end)

    @property
    def blocks(self) -> int:
        """The number of blocks with checksums."""
        return -(-(self.end - PAGE_BYTES) // BLOCK_BYTES)

    @property
    def file_bytes(self) -> int:
        """The file's size."""
        return self.end + SUM_BYTES * (self.blocks + 1)

    def page(self) -> bytes:
        """The header's bytes."""
        fields = {
            "format": _FORMAT,
            **asdict(self.key),
            "rows": self.rows,
            "image_hashes": self.image_hashes,
            "numbers": _NUMBERS,
            "max_norm": self.max_norm,
            "image_key_id": self.image_key_id,
            "block_size": BLOCK_BYTES,
            "sections_end": self.end,
            "cipher": None,
            "salt": None,
            "sections": {
                name: {"offset": section.offset, "dtype": section.dtype.str, "shape": section.shape}
                for name, section in self.sections.items()
            },
        }
        text = json.dumps(fields, allow_nan=False).encode()
        data = (_MAGIC + _VERSION.to_bytes(_VERSION_BYTES, "little") + text).ljust(PAGE_BYTES - SUM_BYTES)
        if len(data) > PAGE_BYTES - SUM_BYTES:
            raise ValueError("the header of an index segment does not fit into its page")
        return data + zlib.crc32(data).to_bytes(SUM_BYTES, "little")

    @classmethod
    def read(cls, page: bytes) -> Header:
        """Parses a file's first bytes. Raises SegmentUnusable."""
        text = len(_MAGIC) + _VERSION_BYTES
        if len(page) < PAGE_BYTES:
            raise SegmentUnusable("it is shorter than a header")
        if not page.startswith(_MAGIC):
            raise SegmentUnusable("it is not an index segment")
        version = int.from_bytes(page[len(_MAGIC) : text], "little")
        if version != _VERSION:
            raise SegmentUnusable(f"its version is {version}, not {_VERSION}")
        if zlib.crc32(page[:-SUM_BYTES]) != int.from_bytes(page[-SUM_BYTES:], "little"):
            raise SegmentUnusable("its header is not as it was written")
        try:
            return cls._of_fields(json.loads(page[text:-SUM_BYTES]))
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as exc:
            raise SegmentUnusable(f"its header cannot be read: {exc!r}") from exc

    @classmethod
    def _of_fields(cls, fields: Mapping[str, Any]) -> Header:
        """Raises ValueError, TypeError, KeyError or OverflowError."""
        fixed = {"format": _FORMAT, "numbers": _NUMBERS, "block_size": BLOCK_BYTES, "cipher": None, "salt": None}
        for name, value in fixed.items():
            if fields[name] != value:
                raise ValueError(f"{name} is {fields[name]!r}, not {value!r}")
        rows, size, image_hashes, end = (
            _count(fields[name]) for name in ("rows", "embedding_size", "image_hashes", "sections_end")
        )
        key = SegmentKey(str(fields["store"]), _count(fields["generation"]), _count(fields["directory_id"]), size)
        max_norm = float(fields["max_norm"])
        if not 0 < rows <= MAX_ROWS or not math.isfinite(max_norm) or end % PAGE_BYTES:
            raise ValueError("a number is out of range")
        sections = {
            name: _section(fields["sections"][name], dtype, shape, end)
            for name, (dtype, shape) in _arrays(rows, size, image_hashes).items()
        }
        return cls(key, rows, image_hashes, max_norm, str(fields["image_key_id"]), sections, end)


def _section(fields: Mapping[str, Any], dtype: np.dtype[Any], shape: tuple[int, ...], end: int) -> Section:
    """Raises ValueError unless it has this type and shape, and lies before `end`."""
    section = Section(_count(fields["offset"]), dtype, shape)
    if [fields["dtype"], fields["shape"]] != [dtype.str, list(shape)]:
        raise ValueError(f"a section is {fields['dtype']} of shape {fields['shape']}, not {dtype.str} of {list(shape)}")
    if section.offset < PAGE_BYTES or section.offset % PAGE_BYTES or section.end > end:
        raise ValueError(f"a section is at {section.offset}")
    return section


def image_key_id(image_key: bytes) -> str:
    """16 hexadecimal digits that identify the key and reveal nothing of it."""
    return hashlib.blake2b(b"facepipe image key id", key=image_key, digest_size=8).hexdigest()


def _arrays(rows: int, size: int, image_hashes: int) -> dict[str, tuple[np.dtype[Any], tuple[int, ...]]]:
    """Type and shape of each section, in file order: n `rows` of `size` d; k `image_hashes`."""
    n, k = rows, image_hashes
    return {
        "codes": (np.dtype("i1"), (n, size)),
        "scales": (np.dtype("<f4"), (n,)),
        "errors": (np.dtype("<f4"), (n,)),
        "vectors": (np.dtype("<f4"), (n, size)),
        "seq": (np.dtype("<i8"), (n,)),
        "order": (np.dtype("<i8"), (n,)),
        "person_ids": (np.dtype("u1"), (n, 16)),
        "boxes": (np.dtype("<f4"), (n, 4)),
        "person_keys": (np.dtype("<u8"), (n,)),
        "person_rows": (np.dtype("<u4"), (n,)),
        "image_high": (np.dtype("<u8"), (k,)),
        "image_low": (np.dtype("<u8"), (k,)),
        "image_rows": (np.dtype("<u4"), (k,)),
    }


def _aligned(offset: int) -> int:
    """The next valid section offset."""
    return -(-offset // PAGE_BYTES) * PAGE_BYTES


def _count(value: object) -> int:
    """Raises ValueError unless it is a non-negative int."""
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is no number of things")
    return value
