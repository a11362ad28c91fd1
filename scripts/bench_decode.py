"""JPEG decoding as the extraction does it, against bare decoders: one thread, and a thread per core.

    python scripts/bench_decode.py --faces FOLDER --work FOLDER [--only a b c] [--images 64] [--repeats 7]

facepipe's decoding checks the file, applies the EXIF turn and hashes the pixels; the others decode, and nothing else.
Asserts that facepipe's pixels are Pillow's, bit by bit.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from bench_common import interleave, paired_ratio, result, write_result
from bench_corpora import add_arguments, given, wanted
from jpeg_decoders import Decode, installed, pillow

from pipeline.config import DecodeSettings
from pipeline.decode import Decoder
from pipeline.device import usable_cores

OURS = "facepipe"


def decoders() -> dict[str, Decode]:
    decoder = Decoder(DecodeSettings())
    return {OURS: lambda data: decoder(data).pixels, **installed()}


def assert_equal(files: Sequence[bytes], decode: Decode) -> None:
    """Raises AssertionError unless `decode` gives Pillow's pixels."""
    for data in files:
        assert np.array_equal(decode(data), pillow(data)), "other pixels than Pillow's"


def in_threads(pool: ThreadPoolExecutor, decode: Decode, files: Sequence[bytes]) -> Callable[[], object]:
    """Decodes all files and keeps none."""
    return lambda: [None for _ in pool.map(lambda data: decode(data).shape, files)]


def measure(files: Sequence[bytes], repeats: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """The timings by decoder and threads, and the figures."""
    runs = decoders()
    assert_equal(files, runs[OURS])
    timings: dict[str, Any] = {}
    figures: dict[str, Any] = {}
    for threads in sorted({1, usable_cores()}):
        with ThreadPoolExecutor(threads) as pool:
            timed = interleave(
                {f"{name}_{threads}": in_threads(pool, decode, files) for name, decode in runs.items()}, repeats
            )
        ours, pillows = f"{OURS}_{threads}", f"pillow_{threads}"
        figures[f"ratio_to_pillow_{threads}"] = paired_ratio(timed, pillows, ours)
        figures |= {f"images_per_s_{name}": len(files) / timing["median"] for name, timing in timed.items()}
        timings |= timed
    return timings, figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser, images=256, only="abc")
    parser.add_argument("--repeats", type=int, default=7)
    arguments = parser.parse_args()
    timings: dict[str, Any] = {}
    figures: dict[str, Any] = {}
    for name, files in wanted(arguments):
        taken, figures[name] = measure([file.read_bytes() for file in files], arguments.repeats)
        timings |= {f"{name}_{variant}": timing for variant, timing in taken.items()}
        print(name, json.dumps(figures[name], indent=1), flush=True)
    print(write_result(result("decode", given(arguments), timings, figures), arguments.results))


if __name__ == "__main__":
    main()
