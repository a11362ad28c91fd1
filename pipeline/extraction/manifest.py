"""The manifest of a run: what is to be done with each input row, decided before any image is decoded."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

EXTRACT: Final = "extract"  # decode it and find its faces
REUSE_ROW: Final = "reuse_row"  # the bytes of an earlier row of this run: its faces count again
REUSE_MEDIA: Final = "reuse_media"  # the bytes of an image in the store: its faces count again
SKIP: Final = "skip"  # nothing to extract: refused already, or the same row twice

MANIFEST_SCHEMA = pa.schema(
    [
        pa.field("row", pa.int64(), nullable=False),  # from 0
        pa.field("path", pa.string(), nullable=False),  # as shown
        pa.field("file", pa.binary(), nullable=False),  # as opened: the file system's own bytes
        pa.field("directory", pa.string(), nullable=False),
        pa.field("name", pa.string()),
        pa.field("external_id", pa.string()),
        pa.field("extra", pa.string()),  # the source's further columns: a JSON object
        pa.field("sha256", pa.string()),
        pa.field("bytes", pa.int64()),
        pa.field("action", pa.string(), nullable=False),
        pa.field("source_row", pa.int64()),  # of REUSE_ROW
        pa.field("source_media", pa.int64()),  # of REUSE_MEDIA
        pa.field("status", pa.string()),  # of SKIP
        pa.field("reason", pa.string()),
    ]
)
