"""Does the memory of `facepipe run` grow over the same photos again and again in one process?

    python scripts/bench/bench_memory.py --faces FOLDER --work FOLDER [--images 1000] [--repeats 10] [--device cpu]

Each repeat is one whole run, as a nightly one would be: scan, extraction, grouping and commits, into a store of its
own, which is then deleted. The models are loaded once, as one run over ten times as many photos would load them. The
photos are corpus d (see corpora), a mix of sizes with group photos, and four of 12 MP (c) and one of 100 MP for
every 1,000, but at least one of each; they are made in the folder of --work, once.

Asserts that every repeat read the same photos and found the same faces, and that the resident memory after the last
repeat is at most 3 % above that after the second (--max-growth): the first fills caches and compiles. The peak is the
largest of samples taken every 20 ms while a repeat runs.
"""

from __future__ import annotations

import argparse
import csv
import gc
import os
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from corpora import VERSION, Sources, make_corpus, read_sources, scene
from harness import argument_parser, settings_for, settings_of, write_result

import pipeline.run.stages
from pipeline.config import Settings
from pipeline.evaluation.bench.harness import Timing
from pipeline.extraction.extractor import BatchExtractor
from pipeline.jobs.run_report import RunReport
from pipeline.run.run import RunRequest, run
from pipeline.runtime.allocator import configure_allocator

MIXED, LARGE = "d", "c"
LARGE_SHARE, HUGE_SHARE = 0.004, 0.001
HUGE = (11_540, 8_660)  # 99.9 MP: the largest picture that the default settings take is one of 100
SAMPLED_EVERY_S = 0.02
FIRST_COUNTED = 1  # the second repeat: what the first leaves is caches, compiled code, arenas


@dataclass
class Meter:
    """Resident memory of this process, in bytes."""

    peak: int = 0
    _process: psutil.Process = field(default_factory=psutil.Process)

    def now(self) -> int:
        return int(self._process.memory_info().rss)

    @contextmanager
    def sampling(self) -> Iterator[None]:
        """Keeps in `peak` the most that was seen in the block."""
        self.peak, done = self.now(), threading.Event()
        thread = threading.Thread(target=self._sample, args=(done,), name="memory", daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def _sample(self, done: threading.Event) -> None:
        while not done.wait(SAMPLED_EVERY_S):
            self.peak = max(self.peak, self.now())


@dataclass(frozen=True)
class Repeat:
    """One run, and the memory that it took and left."""

    seconds: float
    peak_bytes: int
    left_bytes: int
    vram_bytes: int  # that torch has reserved of a CUDA device
    read: dict[str, int]  # images by status
    faces: int
    persons: int


def photos(sources: Sources, work: Path, images: int) -> list[Path]:
    """The files of one repeat: the large ones lie among the others, spread evenly."""
    mixed = make_corpus(MIXED, sources, work, images)
    large = [*make_corpus(LARGE, sources, work, max(1, round(LARGE_SHARE * images))), *huge(sources, work, images)]
    step = max(1, len(mixed) // len(large))
    for place, file in enumerate(large):
        mixed.insert(place * (step + 1) + step // 2, file)
    return mixed


def huge(sources: Sources, work: Path, images: int, seed: int = 7) -> list[Path]:
    """Pictures of 100 MP made of real photos, in `work`: those that lie there, if the same were asked for."""
    made = []
    for number in range(max(1, round(HUGE_SHARE * images))):
        kinds = f"{len(sources.portraits)}-{len(sources.groups)}"
        file = work / f"huge-v{VERSION}-{seed}-{kinds}-{number}.jpg"
        if not file.exists():
            unfinished = file.with_suffix(f".unfinished-{os.getpid()}")
            scene(np.random.default_rng([seed, number]), sources, HUGE).save(unfinished, "JPEG", quality=88)
            unfinished.rename(file)
        made.append(file)
    return made


def write_manifest(files: Sequence[Path], path: Path) -> Path:
    with path.open("w", newline="", encoding="utf-8") as out:
        csv.writer(out).writerows([["path"], *([str(file.absolute())] for file in files)])
    return path


def one_run(manifest: Path, settings: Settings) -> RunReport:
    """All photos into a store of their own."""
    with tempfile.TemporaryDirectory() as scratch:
        return run(RunRequest(manifest, Path(scratch) / "store", settings))


@contextmanager
def models_loaded_once() -> Iterator[None]:
    """All runs in the block share the first one's models."""
    load, loaded = pipeline.run.stages.load_extractor, list[BatchExtractor]()

    def load_once(*arguments: Any) -> BatchExtractor:
        if not loaded:
            loaded.append(load(*arguments))
        return loaded[0]

    pipeline.run.stages.load_extractor = load_once
    try:
        yield
    finally:
        pipeline.run.stages.load_extractor = load


def measure(files: Sequence[Path], settings: Settings, repeats: int) -> list[Repeat]:
    """The same run `repeats` times. Raises AssertionError where one read or found anything else than the first."""
    meter, done = Meter(), list[Repeat]()
    with tempfile.TemporaryDirectory() as scratch, models_loaded_once():
        manifest = write_manifest(files, Path(scratch) / "photos.csv")
        for number in range(repeats):
            with meter.sampling():
                begun = time.perf_counter()
                report = one_run(manifest, settings)
                seconds = time.perf_counter() - begun
            gc.collect()  # when Python happens to look for unused cycles is no matter of the run
            vram = torch.cuda.memory_reserved() if torch.cuda.is_initialized() else 0
            done.append(Repeat(seconds, meter.peak, meter.now(), vram, report.statuses, report.faces, report.persons))
            print(f"{number + 1:3} {done[-1]}", flush=True)
            assert_equal(done[0], done[-1], len(files))
    return done


def assert_equal(first: Repeat, other: Repeat, images: int) -> None:
    assert sum(other.read.values()) == images, other.read
    assert not other.read.keys() - {"ok", "no_face", "duplicate"}, other.read
    for name in ("read", "faces", "persons"):
        assert getattr(other, name) == getattr(first, name), (name, first, other)


def figures_of(done: Sequence[Repeat]) -> dict[str, Any]:
    left = [repeat.left_bytes for repeat in done]
    peaks = [repeat.peak_bytes for repeat in done]
    return {
        "images": sum(done[0].read.values()),
        "statuses": done[0].read,
        "faces": done[0].faces,
        "persons": done[0].persons,
        "rss_mib": [round(value / 2**20, 1) for value in left],
        "peak_rss_mib": [round(value / 2**20, 1) for value in peaks],
        "vram_reserved_mib": [round(repeat.vram_bytes / 2**20, 1) for repeat in done],
        "rss_growth": left[-1] / left[FIRST_COUNTED] - 1,
        "peak_rss_growth": peaks[-1] / peaks[FIRST_COUNTED] - 1,
    }


def assert_flat(figures: Mapping[str, Any], most: float) -> None:
    assert figures["rss_growth"] <= most, f"resident memory grew by {figures['rss_growth']:.1%}"


def main() -> None:
    arguments = _arguments()
    configure_allocator()  # as the command line does
    files = photos(read_sources(arguments.faces), arguments.work, arguments.images)
    done = measure(files, settings_for(arguments.device, arguments.weights), arguments.repeats)
    figures = figures_of(done)
    timings = {"run": Timing([repeat.seconds for repeat in done])}
    write_result("memory", settings_of(arguments), timings, figures, arguments)
    assert_flat(figures, arguments.max_growth)


def _arguments() -> argparse.Namespace:
    parser = argument_parser(__doc__)
    parser.add_argument("--faces", type=Path, required=True, help="the folder of photos")
    parser.add_argument("--work", type=Path, required=True, help="where the corpora are made, and found again")
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=10, help="at least 3")
    parser.add_argument("--weights", default="casia-webface")
    parser.add_argument("--max-growth", type=float, default=0.03, help="of what the second repeat left; fail above it")
    arguments = parser.parse_args()
    if arguments.repeats < FIRST_COUNTED + 2:
        parser.error(f"--repeats must be at least {FIRST_COUNTED + 2}")
    return arguments


if __name__ == "__main__":
    main()
