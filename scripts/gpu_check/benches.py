"""The steps that call benchmarks which exist already, on the device: facepipe's own, and those of scripts/bench."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from itertools import cycle, islice
from typing import Any, Final

from corpora import CORPORA, distinct

from gpu_check.findings import Findings
from gpu_check.options import CUDA_CONFIG, ROOT, WEIGHTS, Options
from gpu_check.photos import corpus, faces, images
from pipeline.config import EXACT, FAST

WANTED_RATIO: Final = 20  # of the reference's time from files to embeddings, and `run`'s to a committed store
_RUN_PHOTOS, _QUICK_RUN_PHOTOS = {"a": 12288, "b": 2048}, {"a": 8}
_MEMORY_IMAGES, _MEMORY_REPEATS = 160, 5


def run(options: Options, found: Findings) -> None:
    """The command `facepipe run` from its start to its end, with the settings for a GPU, in both modes; then the same
    command again, and `check`."""
    headlines = []
    for name, count in (_QUICK_RUN_PHOTOS if options.quick else _RUN_PHOTOS).items():
        source = options.work / f"run-{name}"
        source.mkdir(exist_ok=True)
        distinct(list(islice(cycle(corpus(options, name)), count)), source)
        for mode in (EXACT, FAST) if options.cuda else (EXACT,):
            with found.part(f"{name} {mode}"):
                words = ["--source", str(source), "--config", str(CUDA_CONFIG), "--mode", mode]
                figures = call("bench_run", options, *words)["run"]
                found.put(f"{name} {mode}", figures)
                headlines.append(f"{name} {mode} {figures['images_per_second']:.0f} images/s")
    found.headline = "; ".join(headlines)


def memory(options: Options, found: Findings) -> None:
    """Does the memory of the process and of the device grow over the same photos again and again?"""
    count, repeats = (8, 3) if options.quick else (_MEMORY_IMAGES, _MEMORY_REPEATS)
    growth = 1.0 if options.quick else 0.03
    words = ["--images", str(count), "--repeats", str(repeats), "--max-growth", str(growth)]
    figures = call("bench_memory", options, *corpora_words(options), *words)["memory"]
    found.put("memory", figures)
    vram = figures["vram_reserved_mib"]
    found.expect(vram[-1] <= (1 + growth) * vram[1], f"memory that torch reserved on the device grows: {vram} MiB")
    found.headline = f"{figures['rss_growth']:+.1%} after {repeats} runs; on the device {vram[1]} -> {vram[-1]} MiB"


def bench_extract(options: Options, found: Findings) -> None:
    """facepipe's `run`, and its extraction in both modes, beside the reference, each in processes of its own, the
    faster layout of the reference. Is `run` so many times as fast as is wanted?"""
    quick = options.quick or not options.cuda
    few = ["--images", "8", "--repeats", "1", "--turn-seconds", "0"]
    counts = few if quick else ["--images", str(images(options)), "--repeats", "2"]
    headlines, ratios = [], []
    for name in "a" if quick else CORPORA:
        with found.part(name):
            words = [*corpora_words(options), *counts, "--weights", WEIGHTS, "--corpus", name]
            figures = call("bench_extract", options, *words)[f"extract-{WEIGHTS}"][name]
            found.put(name, figures)
            ratio = {key.partition("_1x")[0]: value for key, value in figures.items() if key.startswith("ratio")}
            ratios.append(ratio["ratio_run"])
            headlines.append(
                f"{name} {ratio['ratio_run']:.1f} (extraction {ratio['ratio']:.1f}, fast {ratio['ratio_fast']:.1f})"
            )
    if ratios:
        reached = "at least" if min(ratios) >= WANTED_RATIO else "not"
        found.headline = f"run is {reached} {WANTED_RATIO} times the reference: {'; '.join(headlines)}"


def corpora_words(options: Options) -> Iterator[str]:
    yield from ("--faces", str(faces(options)), "--work", str(options.work / "bench"))


def call(name: str, options: Options, *words: str) -> dict[str, dict[str, Any]]:
    """The figures of the results of the benchmark `name`, by result. Raises RuntimeError with its last line where it
    fails, as it does for a wrong answer."""
    results = options.work / f"results-{name}"
    for old in results.glob("*.json"):
        old.unlink()
    script = ROOT / "scripts" / "bench" / f"{name}.py"
    command = [sys.executable, str(script), *words, "--device", options.device, "--results", str(results)]
    done = subprocess.run(command, text=True, stderr=subprocess.PIPE, check=False)
    print(done.stderr, file=sys.stderr, flush=True)
    if done.returncode:
        raise RuntimeError(f"{name} ended with {done.returncode}: {done.stderr.strip().splitlines()[-1:]}")
    documents = [json.loads(file.read_text("utf-8")) for file in results.glob("*.json")]
    return {document["benchmark"]: document["figures"] for document in documents}
