"""The reference matrix: the embeddings of a directory's references as one flat file, for search.

Derived and never the truth: `<stem>.f32` holds n x d float32, `<stem>.seq` n int64 (both little-endian), row by
row in the order of the identities. `.seq` is written last, and a matrix serves only when its sequence numbers
are exactly the catalog's; else it is made anew. So no crash between the two files, and no append that was
missed, can do harm.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from pipeline.store.durable import Folder, disk_errors
from pipeline.types import FloatArray, IntArray

_CHUNK_ROWS = 65_536
VECTOR_TYPE = np.dtype("<f4")
SEQ_TYPE = np.dtype("<i8")


def stem(generation: int, directory_id: int) -> str:
    return f"references/g{generation:04d}/{directory_id}"


def load(folder: Folder, name: str, seq: IntArray, size: int, vectors: Callable[[int, int], FloatArray]) -> FloatArray:
    """The matrix [n, size] with the rows `seq` [n], memory-mapped read-only.

    `vectors(start, stop)` gives those rows from the truth; it is asked only when the file does not fit.
    """
    if len(seq) == 0:
        return np.zeros((0, size), np.float32)
    if not fits(folder, name, seq, size):
        _build(folder, name, seq, vectors)
    mapped: FloatArray = np.memmap(folder.path(name + ".f32"), VECTOR_TYPE, "r", shape=(len(seq), size))
    return mapped


def fits(folder: Folder, name: str, seq: IntArray, size: int) -> bool:
    """Whether the files hold exactly the rows `seq`."""
    try:
        stored = np.fromfile(folder.path(name + ".seq"), SEQ_TYPE)
        found = folder.path(name + ".f32").stat().st_size
    except OSError:
        return False
    return found == len(seq) * size * VECTOR_TYPE.itemsize and np.array_equal(stored, seq)


def _build(folder: Folder, name: str, seq: IntArray, vectors: Callable[[int, int], FloatArray]) -> None:
    folder.make(name.rpartition("/")[0])
    with folder.replacing(name + ".f32", "matrix") as out:
        for start in range(0, len(seq), _CHUNK_ROWS):
            chunk = vectors(start, min(start + _CHUNK_ROWS, len(seq)))
            with disk_errors(folder.root):
                out.write(np.ascontiguousarray(chunk, VECTOR_TYPE).tobytes())
    folder.write(name + ".seq", np.ascontiguousarray(seq, SEQ_TYPE).tobytes(), "matrix")


def append(folder: Folder, name: str, seq: IntArray, vectors: FloatArray) -> None:
    """Adds the rows that a commit brought. A matrix that is torn is left for `load` to rebuild."""
    folder.make(name.rpartition("/")[0])
    rows = _size(folder, name + ".seq") / SEQ_TYPE.itemsize
    if _size(folder, name + ".f32") != rows * vectors.shape[1] * VECTOR_TYPE.itemsize:
        return
    folder.append(name + ".f32", np.ascontiguousarray(vectors, VECTOR_TYPE).tobytes(), "matrix")
    folder.append(name + ".seq", np.ascontiguousarray(seq, SEQ_TYPE).tobytes(), "matrix")


def _size(folder: Folder, file: str) -> int:
    path = folder.path(file)
    return path.stat().st_size if path.exists() else 0
