"""The steps that call benchmarks which exist already, on the device: facepipe's own, and those of scripts/bench."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpu_check.findings import Findings
from gpu_check.options import CUDA_CONFIG, ROOT, WEIGHTS, Options
from gpu_check.photos import CORPORA, bench_work, corpus, faces, images
from pipeline.config import EXACT, FAST
from pipeline.evaluation.bench.bench import BenchRequest, bench
from pipeline.types import SilentProgress

_SAMPLE, _RUN_PHOTOS = {"a": 128, "b": 32, "c": 8}, {"a": 2048, "b": 512}
_QUICK_SAMPLE, _QUICK_RUN_PHOTOS = {"a": 8}, {"a": 8}
_MEMORY_IMAGES, _MEMORY_REPEATS = 160, 5


def reference(options: Options, found: Findings) -> None:
    """facenet-pytorch's loop on the same device beside facepipe's defaults, as `facepipe bench` has them."""
    headlines = []
    for name, count in (_QUICK_SAMPLE if options.quick else _SAMPLE).items():
        with found.part(name):
            folder = corpus(options, name)[0].parent
            request = BenchRequest(folder, options.settings(), count, 1 if options.quick else 3)
            figures = bench(request, SilentProgress()).as_dict()
            found.put(name, {**figures, "source": folder.name})
            same = figures["faces"]
            every = same["found"] >= 0.99 * same["reference_faces"] and same["extra"] <= 0.01 * same["reference_faces"]
            found.expect(every, f"{name}: other faces than the reference's: {same}")
            rate = figures["reference"]["images_per_s"]
            headlines.append(f"{name} {rate:.1f} images/s, facepipe {figures['ratio']:.2f} times as fast")
    found.headline = "; ".join(headlines)


def run(options: Options, found: Findings) -> None:
    """`facepipe run` from files to a committed store, with the settings for a GPU, in both modes."""
    rates = {} if options.quick else reference_rates(options)
    headlines = []
    for name, count in (_QUICK_RUN_PHOTOS if options.quick else _RUN_PHOTOS).items():
        source = distinct(corpus(options, name), count, options.work / f"run-{name}")
        for mode in (EXACT, FAST) if options.cuda else (EXACT,):
            with found.part(f"{name} {mode}"):
                words = ["--source", str(source), "--config", str(CUDA_CONFIG), "--mode", mode]
                figures = call("bench_run", options, *words)["run"]
                found.put(f"{name} {mode}", figures)
                rate = figures["images_per_second"]
                times = f", {rate / rates[name]:.1f} times the reference's" if name in rates else ""
                headlines.append(f"{name} {mode} {rate:.0f} images/s{times}")
    found.headline = "; ".join(headlines)


def reference_rates(options: Options) -> dict[str, float]:
    """Images per second of the reference by corpus, where that step has run."""
    report = json.loads(options.report.read_text("utf-8")) if options.report.exists() else {"steps": {}}
    figures = report["steps"].get("reference", {}).get("figures", {})
    return {name: figures[name]["reference"]["images_per_s"] for name in CORPORA if name in figures}


def distinct(files: list[Path], count: int, folder: Path) -> Path:
    """A folder of `count` photos that are no duplicates of each other by their bytes, though their pixels repeat."""
    folder.mkdir(exist_ok=True)
    for number in range(count):
        (folder / f"{number:05d}.jpg").write_bytes(files[number % len(files)].read_bytes() + b"%d" % number)
    return folder


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
    """facepipe in both modes beside the reference, each in processes of its own, the faster layout of each."""
    corpora = "a" if options.quick else CORPORA
    counts = ["--images", str(images(options)), "--repeats", "1" if options.quick else "2", "--corpus", *corpora]
    words = [*corpora_words(options), *counts, "--weights", WEIGHTS]
    figures = call("bench_extract", options, *words)[f"extract-{WEIGHTS}"]
    found.put("extract", figures)
    found.headline = "; ".join(
        f"{name} {_ratios(of_corpus)} times the reference" for name, of_corpus in figures.items()
    )


def _ratios(figures: dict[str, Any]) -> str:
    fast = next(value for name, value in figures.items() if name.startswith("ratio_fast"))
    return f"{figures['ratio']:.2f} (fast: {fast:.2f})"


def corpora_words(options: Options) -> Iterator[str]:
    yield from ("--faces", str(faces(options)), "--work", str(bench_work(options)))


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
