"""What several tests of extraction use: encoded pictures, and how often work waits for CUDA."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from PIL import Image

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")


def encode(image: Image.Image, turn: int | None = None, **options: Any) -> bytes:
    """`image` as a file, a JPEG unless the options of Pillow's `save` say otherwise; `turn` is its EXIF orientation."""
    if turn is not None:
        exif = Image.Exif()
        exif[0x0112] = turn
        options["exif"] = exif.tobytes()
    file = io.BytesIO()
    image.save(file, **(options if "format" in options else {"format": "JPEG", "quality": 92, **options}))
    return file.getvalue()


def count_waits(work: Callable[[], object]) -> int:
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            work()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return sum("synchroniz" in str(w.message) for w in caught)


def with_scans(progressive: bytes, count: int) -> bytes:
    """The progressive JPEG file with its last scan repeated until it has `count` scans."""
    scan, end = progressive.rindex(b"\xff\xda"), progressive.rindex(b"\xff\xd9")
    more = count - progressive.count(b"\xff\xda")
    return progressive[:end] + progressive[scan:end] * more + progressive[end:]
