"""Decodes the photos of an experiment in batches, within the settings' limits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pipeline.config import RunSettings
from pipeline.errors import ImageRejected
from pipeline.extraction.images.decode import Decoder
from pipeline.extraction.images.files import read_file
from pipeline.runtime.threads import thread_count
from pipeline.types import DecodedImage


def decoded_batches(
    files: Mapping[str, Path],
    decoder: Decoder,
    limits: RunSettings,
    skip: Callable[[str, str], None],
    advance: Callable[[int], None],
) -> Iterator[list[tuple[str, DecodedImage]]]:
    """Batches of (path, image) in the order of `files` (path -> file).

    Calls `skip(path, reason)` and `advance(1)` for a photo that cannot be decoded.
    """
    batch: list[tuple[str, DecodedImage]] = []
    pixels = 0
    for path, image in _read(files, decoder, thread_count(limits.threads)):
        if isinstance(image, ImageRejected):
            skip(path, f"{image.status}: {image.reason}")
            advance(1)
            continue
        size = image.width * image.height
        if batch and (len(batch) >= limits.batch_images or pixels + size > limits.batch_pixels):
            yield batch
            batch, pixels = [], 0
        batch.append((path, image))
        pixels += size
    if batch:
        yield batch


def _read(
    files: Mapping[str, Path], decoder: Decoder, threads: int
) -> Iterator[tuple[str, DecodedImage | ImageRejected]]:
    """The photos in order, `threads` of them decoded at a time."""

    def decode(file: Path) -> DecodedImage | ImageRejected:
        try:
            return decoder(read_file(file, decoder.settings.max_bytes))
        except ImageRejected as problem:
            return problem

    paths = list(files)
    with ThreadPoolExecutor(threads, thread_name_prefix="decode") as pool:
        for start in range(0, len(paths), threads):
            part = paths[start : start + threads]
            yield from zip(part, pool.map(decode, [files[path] for path in part]), strict=True)
