"""The photos of an evaluation, decoded in batches within the settings' limits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pipeline.config import RunSettings
from pipeline.errors import ImageRejected
from pipeline.extraction.images.decode import Decoder
from pipeline.extraction.images.files import read_file
from pipeline.runtime.device import thread_count
from pipeline.types import DecodedImage


def decoded_batches(
    files: Mapping[str, Path],
    decoder: Decoder,
    limits: RunSettings,
    skip: Callable[[str, str], None],
    advance: Callable[[int], None],
) -> Iterator[list[tuple[str, DecodedImage]]]:
    """Batches of (name, image) of what can be decoded, in the order of `files` (name -> file).

    Of the others `skip(name, reason)` is called, and `advance(1)`.
    """
    batch: list[tuple[str, DecodedImage]] = []
    pixels = 0
    for name, image in _read(files, decoder, thread_count(limits.threads)):
        if isinstance(image, ImageRejected):
            skip(name, f"{image.status}: {image.reason}")
            advance(1)
            continue
        size = image.width * image.height
        if batch and (len(batch) >= limits.batch_images or pixels + size > limits.batch_pixels):
            yield batch
            batch, pixels = [], 0
        batch.append((name, image))
        pixels += size
    if batch:
        yield batch


def _read(
    files: Mapping[str, Path], decoder: Decoder, threads: int
) -> Iterator[tuple[str, DecodedImage | ImageRejected]]:
    """The photos in their order, `threads` of them decoded at a time."""

    def work(path: Path) -> DecodedImage | ImageRejected:
        try:
            return decoder(read_file(path, decoder.settings.max_bytes))
        except ImageRejected as problem:
            return problem

    items = list(files.items())
    with ThreadPoolExecutor(threads, thread_name_prefix="decode") as pool:
        for start in range(0, len(items), threads):
            part = items[start : start + threads]
            yield from zip([name for name, _ in part], pool.map(work, [path for _, path in part]), strict=True)
