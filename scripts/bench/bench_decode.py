"""How much does facepipe's JPEG decoding cost beside bare decoders, on one thread and on a thread per core?

    python scripts/bench/bench_decode.py --faces FOLDER --work FOLDER [--corpus a b c] [--images 256] [--device cuda]

facepipe's decoding checks the file, applies the EXIF turn and hashes the pixels; the others decode, and nothing else.
With --device cuda its decoding on that device takes its turns, too: all files of a corpus in batches of 32.

Asserts that facepipe's pixels are Pillow's, bit for bit; a device's at most 3 grey levels apart on average.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from corpora import add_corpus_arguments, measure_corpora
from harness import argument_parser, paired_ratio, settings_of, write_result
from jpeg_decoders import Decode, installed, pillow

from pipeline.config import DecodeSettings
from pipeline.evaluation.bench.harness import Timing, interleave
from pipeline.extraction.images.decode import Decoder
from pipeline.extraction.images.device_jpeg import DeviceDecoder
from pipeline.extraction.images.pixel_hash import PixelHash
from pipeline.runtime.device import resolve_device
from pipeline.runtime.threads import usable_cores
from pipeline.types import ByteArray, DeviceImage, EncodedImage

OURS, ON_DEVICE = "facepipe", "device"
BATCH = 32
MOST_LEVELS_APART = 3.0


def decoders() -> dict[str, Decode]:
    decoder, pixel_hash = Decoder(DecodeSettings()), PixelHash("0" * 32)

    def ours(data: bytes) -> ByteArray:
        pixels = decoder(data).pixels
        pixel_hash(pixels)
        return pixels

    return {OURS: ours, **installed()}


def assert_equal(files: Sequence[bytes], decode: Decode) -> None:
    """Raises AssertionError unless `decode` gives Pillow's pixels."""
    for data in files:
        assert np.array_equal(decode(data), pillow(data)), "other pixels than Pillow's"


def in_threads(pool: ThreadPoolExecutor, decode: Decode, files: Sequence[bytes]) -> Callable[[], object]:
    """Decodes all files and keeps none."""
    return lambda: [None for _ in pool.map(lambda data: decode(data).shape, files)]


def on_device(files: Sequence[bytes], device: str) -> Callable[[], list[DeviceImage]]:
    """Decodes all files on the device. Raises AssertionError where it leaves one to the CPU, or gives other pixels than
    rounding explains."""
    settings, where = DecodeSettings(), resolve_device(device)
    opened = [Decoder(settings).prepare(data) for data in files]
    images = [image for image in opened if isinstance(image, EncodedImage)]
    decode = DeviceDecoder(settings)

    def run() -> list[DeviceImage]:
        starts = range(0, len(images), BATCH)
        decoded = [image for start in starts for image in decode(images[start : start + BATCH], where)]
        return [image for image in decoded if isinstance(image, DeviceImage)]

    done = run()
    assert len(done) == len(files), f"{len(files) - len(done)} files were left to the CPU"
    for image, data in zip(done, files, strict=True):
        apart = (image.pixels.cpu().int() - torch.from_numpy(pillow(data)).int()).abs().float().mean()
        assert apart <= MOST_LEVELS_APART, f"{apart:.1f} grey levels apart"
    return run


def measure(
    files: Sequence[bytes], repeats: int, device: str | None = None
) -> tuple[dict[str, Timing], dict[str, Any]]:
    """The timings by decoder and threads, and the figures."""
    runs = decoders()
    assert_equal(files, runs[OURS])
    timings: dict[str, Timing] = {}
    figures: dict[str, Any] = {}
    for threads in sorted({1, usable_cores()}):
        with ThreadPoolExecutor(threads) as pool:
            variants = {f"{name}_{threads}": in_threads(pool, decode, files) for name, decode in runs.items()}
            timings |= interleave(variants, repeats)
        ratio = paired_ratio(timings[f"pillow_{threads}"], timings[f"{OURS}_{threads}"])
        figures[f"ratio_to_pillow_{threads}"] = ratio
    if device is not None:
        timings |= interleave({ON_DEVICE: on_device(files, device)}, repeats, device)
    rates = {f"images_per_s_{name}": len(files) / timing.median for name, timing in timings.items()}
    return timings, {**figures, **rates}


def main() -> None:
    parser = argument_parser(__doc__)
    add_corpus_arguments(parser, images=256, repeats=7, only="abc")
    arguments = parser.parse_args()
    device = None if arguments.device == "cpu" else arguments.device
    measured = measure_corpora(
        arguments, lambda files: measure([file.read_bytes() for file in files], arguments.repeats, device)
    )
    write_result("decode", settings_of(arguments), *measured, arguments)


if __name__ == "__main__":
    main()
