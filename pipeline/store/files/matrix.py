"""The reference matrix: the embeddings of a directory's references as one flat file, for search.

A cache: `<stem>.f32` holds rows of d float32, `<stem>.crc` a checksum of each row with its number as uint32, and
`<stem>.seq` the number of each row's reference as int64 (all little-endian). A number is never used twice and its
vector never changes, so a row is right, damaged or not needed:

missing rows   references of posted images, or an append that did not happen: `load` takes them from the embeddings
dead rows      references that were replaced or deleted: ignored; `blank` overwrites them, and when there are too many
               the files are rebuilt
torn ends      after a crash in an append: cut off. `.seq` is written last, so its rows have their vectors
wrong sums     a file was changed: all are rebuilt from the embeddings
"""

from __future__ import annotations

import logging
import os
import zlib
from collections.abc import Callable, Sequence

import numpy as np

from pipeline.store.files.durable import Folder, disk_errors
from pipeline.types import FloatArray, IntArray

_CHUNK_ROWS = 65_536
_DEAD_SHARE = 0.25
VECTOR_TYPE = np.dtype("<f4")
SEQ_TYPE = np.dtype("<i8")
CRC_TYPE = np.dtype("<u4")
BLANK = -1  # the number of a row that was overwritten with zeros

_log = logging.getLogger(__name__)
Vectors = Callable[[IntArray], FloatArray]  # positions [m] in `seq` -> their vectors [m, d]


def stem(generation: int, directory_id: int) -> str:
    """The name of a directory's matrix, without the endings of its files."""
    return f"references/g{generation:04d}/{directory_id}"


def files(name: str) -> tuple[str, str, str]:
    """The files of the vectors, of their checksums and of the numbers."""
    return name + ".f32", name + ".crc", name + ".seq"


def remove(folder: Folder, name: str) -> None:
    """Deletes a matrix: the numbers first, without which no reader uses the vectors."""
    for file in reversed(files(name)):
        if folder.path(file).is_dir():
            folder.quarantine(file)
        else:
            folder.unlink(file)


def load(folder: Folder, name: str, seq: IntArray, size: int, vectors: Vectors) -> FloatArray:
    """The matrix [n, size] with the rows `seq` [n] in this order, read-only.

    A memory map where the file has them in this order, else a copy in memory. `vectors` is called for the rows that
    the file lacks; they are appended to it.
    """
    if len(seq) == 0:
        return np.zeros((0, size), np.float32)
    stored = _trim(folder, name, size)
    rows = _find(stored, seq)
    lacking = np.flatnonzero(rows < 0)
    found = rows[rows >= 0]
    damaged = len(_wrong(folder, name, size, stored, found)) > 0
    if damaged:
        _log.warning("the reference matrix %s was damaged, and is made again from the embeddings", folder.path(name))
    dead = len(stored) - len(found)
    if damaged or dead >= max(1, _DEAD_SHARE * len(stored)) or len(stored) == 0:
        remove(folder, name)
        try:
            append(folder, name, seq, size, vectors)
        except BaseException:
            remove(folder, name)  # part of it would keep a full disk full
            raise
        rows = np.arange(len(seq))
    elif len(lacking):
        lacking = lacking[np.argsort(seq[lacking])]
        append(folder, name, seq[lacking], size, lambda part: vectors(lacking[part]))
        rows[lacking] = len(stored) + np.arange(len(lacking))
    mapped: FloatArray = np.memmap(folder.path(name + ".f32"), VECTOR_TYPE, "r").reshape(-1, size)
    if np.array_equal(rows, np.arange(len(seq))):
        return mapped[: len(seq)]
    gathered = np.asarray(mapped[rows])
    gathered.flags.writeable = False
    return gathered


def numbers(folder: Folder, name: str, size: int) -> IntArray:
    """The numbers of the complete rows, in the file's order; none where the files cannot be right."""
    try:
        complete = min(folder.path(file).stat().st_size // row for file, row in _rows(name, size))
        stored: IntArray = np.fromfile(folder.path(name + ".seq"), SEQ_TYPE, complete)
    except OSError:
        return np.zeros(0, np.int64)
    used = stored[stored != BLANK]
    ascend = bool((np.diff(used) > 0).all())  # true but for some rebuilt ones, and ten times as fast as `unique`
    return stored if ascend or len(np.unique(used)) == len(used) else stored[:0]


def append(folder: Folder, name: str, seq: IntArray, size: int, vectors: Vectors) -> None:
    """Appends the rows `seq` [m]; after a crash the first of them are there."""
    folder.make(name.rpartition("/")[0])
    _trim(folder, name, size)
    for start in range(0, len(seq), _CHUNK_ROWS):
        part = np.arange(start, min(start + _CHUNK_ROWS, len(seq)))
        chunk, added = np.ascontiguousarray(vectors(part), VECTOR_TYPE), np.ascontiguousarray(seq[part], SEQ_TYPE)
        sums = _sums(added, chunk, range(len(part)))
        for file, data in zip(files(name), (chunk.tobytes(), sums.tobytes(), added.tobytes()), strict=True):
            folder.append(file, data, "matrix")


def blank(folder: Folder, name: str, current: IntArray, size: int) -> None:
    """Overwrites the rows whose references are not among `current`: nothing of a deleted person stays."""
    stored = _trim(folder, name, size)
    dead = np.flatnonzero((stored != BLANK) & ~np.isin(stored, current))
    if len(dead) == 0:
        return
    row = size * VECTOR_TYPE.itemsize
    folder.overwrite(name + ".f32", [int(place) * row for place in dead], bytes(row), "matrix")
    stored[dead] = BLANK
    folder.write(name + ".seq", stored.astype(SEQ_TYPE).tobytes(), "matrix")


def _find(stored: IntArray, seq: IntArray) -> IntArray:
    """The position [n] of each of `seq` [n] in `stored`; -1: it is not there."""
    order = np.argsort(stored, kind="stable")
    place = np.searchsorted(stored, seq, sorter=order)
    rows: IntArray = np.append(order, 0)[place]
    rows[np.append(stored, BLANK)[np.where(place < len(stored), rows, len(stored))] != seq] = -1
    return rows


def _trim(folder: Folder, name: str, size: int) -> IntArray:
    """`numbers`, after cutting off what follows their rows in both files."""
    for file in files(name):
        if folder.path(file).is_symlink():  # never ours, and what it leads to would be cut off
            folder.unlink(file)
    stored = numbers(folder, name, size)
    for file, row in _rows(name, size):
        path = folder.path(file)
        with disk_errors(folder.root):
            if path.exists() and path.stat().st_size > len(stored) * row:
                os.truncate(path, len(stored) * row)
    return stored


def _rows(name: str, size: int) -> list[tuple[str, int]]:
    """Each file with the bytes of one row."""
    return list(zip(files(name), (size * VECTOR_TYPE.itemsize, CRC_TYPE.itemsize, SEQ_TYPE.itemsize), strict=True))


# Checksums: without them a flipped bit, or two rows that changed places, would answer with the wrong person


def wrong_rows(folder: Folder, name: str, size: int, current: IntArray) -> IntArray:
    """The positions of the rows that are not as they were written. Zeros are no damage where the reference is not among
    `current`: `blank` was cut off before it took the number away."""
    stored = numbers(folder, name, size)
    wrong = _wrong(folder, name, size, stored, np.flatnonzero(stored != BLANK))
    if len(wrong) == 0:
        return wrong
    blanked = ~np.isin(stored[wrong], current) & ~_mapped(folder, name, size, len(stored))[wrong].any(axis=1)
    return wrong[~blanked]


def _mapped(folder: Folder, name: str, size: int, rows: int) -> FloatArray:
    return np.memmap(folder.path(name + ".f32"), VECTOR_TYPE, "r", shape=(rows, size))


def _wrong(folder: Folder, name: str, size: int, stored: IntArray, rows: IntArray) -> IntArray:
    """Those of the positions `rows` that are not as they were written; `stored`: the numbers of all rows."""
    if len(rows) == 0:
        return rows
    vectors = _mapped(folder, name, size, len(stored))
    written = np.fromfile(folder.path(name + ".crc"), CRC_TYPE)
    wrong: IntArray = rows[_sums(stored, vectors, rows.tolist()) != written[rows]]
    return wrong


def _sums(seq: IntArray, vectors: FloatArray, rows: Sequence[int]) -> IntArray:
    """CRC-32 [m] of the number, as 8 bytes, and the vector of each of `rows` [m]."""
    if not rows:
        return np.zeros(0, CRC_TYPE)
    starts, width = memoryview(np.ascontiguousarray(seq, SEQ_TYPE).data).cast("B"), vectors.shape[1] * 4
    data = memoryview(vectors.data).cast("B")
    return np.array(
        [zlib.crc32(data[n * width : (n + 1) * width], zlib.crc32(starts[n * 8 : (n + 1) * 8])) for n in rows], CRC_TYPE
    )
