"""The batches of a Parquet manifest, whose few bytes may stand for any number: codes repeat a value millions of times.

Texts stay what they are in the file, numbers of a dictionary's values, until their size is known.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

_BATCH_ROWS: Final = 1024
_ROW_BYTES: Final = 2**18  # on average in a batch; a CSV field has at most 2**17
_COLUMN_BYTES: Final = 2**30  # of a row group, as encoded
_VALUES_PER_ROW: Final = 10_000  # on average in a row group, of lists
_DICTIONARIES: Final = frozenset({"NONE", "STRING"})  # logical types that can stay numbers


@contextmanager
def open_parquet(path: Path) -> Iterator[pq.ParquetFile]:
    """The file for `batches`. Raises ValueError where its own figures are beyond the limits, and pa.ArrowException."""
    metadata = pq.read_metadata(path)
    leaves = [metadata.schema.column(number) for number in range(metadata.num_columns)]
    for group in (metadata.row_group(number) for number in range(metadata.num_row_groups)):
        for number, leaf in enumerate(leaves):
            chunk = group.column(number)
            if chunk.total_uncompressed_size > _COLUMN_BYTES or leaf.length > _ROW_BYTES:
                raise ValueError(f"column {leaf.path} takes too much memory")
            if chunk.num_values > _VALUES_PER_ROW * max(group.num_rows, 1):
                raise ValueError(f"column {leaf.path} has too many values per row")
    texts = [c.path for c in leaves if c.physical_type == "BYTE_ARRAY" and c.logical_type.type in _DICTIONARIES]
    with pq.ParquetFile(path, metadata=metadata, read_dictionary=texts) as file:
        yield file


def batches(file: pq.ParquetFile) -> Iterator[pa.RecordBatch]:
    """Its rows, a bounded number of bytes at once. Raises ValueError where they hold more, and pa.ArrowException."""
    for batch in file.iter_batches(batch_size=_BATCH_ROWS):
        size = sum(_plain_bytes(column) for column in batch.columns)
        if size > _ROW_BYTES * batch.num_rows:
            raise ValueError(f"its rows hold {size // batch.num_rows:,} bytes each, the limit is {_ROW_BYTES:,}")
        yield batch


def _plain_bytes(values: pa.Array) -> int:
    """What the values take when each stands for itself."""
    if pa.types.is_dictionary(values.type):
        lengths = pc.binary_length(values.dictionary).cast(pa.int64())
        return pc.sum(lengths.take(values.indices)).as_py() or 0
    if pa.types.is_struct(values.type):
        return sum(_plain_bytes(field) for field in values.flatten())
    if pa.types.is_list(values.type) or pa.types.is_large_list(values.type) or pa.types.is_map(values.type):
        return _plain_bytes(values.values)
    return int(values.nbytes)
