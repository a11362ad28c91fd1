"""What every benchmark of this folder shares: its arguments, and the JSON document of its result.

Variants take turns by `pipeline.evaluation.bench.harness`. A result says what it was measured on, holds every single
time, and is one JSON document under scripts/bench/results/, which the tables of the documents are made of. A benchmark
asserts that its output is right: a fast wrong answer is no result.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

import torch

from pipeline.config import ENV_CACHE, Settings, load_settings
from pipeline.evaluation.bench.harness import Timing, turn_ratios

SCHEMA: Final = 1
ENV_COMMIT: Final = "BENCH_COMMIT"  # of a checkout that travelled without its history
RESULTS: Final = Path(__file__).resolve().parent / "results"
PACKAGES: Final = (
    *("facepipe", "torch", "torchvision", "numpy", "pillow", "duckdb", "pyarrow"),
    *("facenet-pytorch", "numba", "openvino", "simplejpeg", "faiss-cpu", "playwright"),
)
_VARIABLES: Final = ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def argument_parser(doc: str | None) -> argparse.ArgumentParser:
    """A parser with the arguments that all benchmarks have; `doc` is the script's docstring."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the JSON goes")
    return parser


def settings_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """The arguments as a result's settings, without the paths of this machine."""
    return {name: value for name, value in vars(arguments).items() if not isinstance(value, Path)}


def settings_for(device: str, weights: str, config: Path | None = None, **flags: object) -> Settings:
    """facepipe's defaults, or those of a file, on the device; then `flags` (`run__mode` is the key run.mode). Of the
    environment only the cache of weights counts."""
    cache = {name: value for name, value in os.environ.items() if name == ENV_CACHE}
    keys = {"run.device": device, "model.weights": weights}
    return load_settings(config, cache, keys | {name.replace("__", "."): value for name, value in flags.items()})


def write_result(
    benchmark: str,
    settings: Mapping[str, Any],
    timings: Mapping[str, Timing],
    figures: Mapping[str, Any],
    arguments: argparse.Namespace,
) -> Path:
    """Writes `<benchmark>-<cpu or cuda>.json` into `arguments.results` and prints the figures.

    Raises ValueError for what is not finite.
    """
    document = {
        "schema": SCHEMA,
        "benchmark": benchmark,
        "settings": dict(settings),
        "machine": machine(arguments.device),
        "timings": {name: _timing(one.seconds) for name, one in timings.items()},
        "figures": dict(figures),
    }
    arguments.results.mkdir(parents=True, exist_ok=True)
    path = Path(arguments.results) / f"{benchmark}-{arguments.device.split(':')[0]}.json"
    path.write_text(json.dumps(document, indent=1, sort_keys=True, allow_nan=False) + "\n", "utf-8")
    print(json.dumps(figures, indent=1), path, sep="\n", flush=True)
    return path


def _timing(seconds: Sequence[float]) -> dict[str, Any]:
    """The turns of one variant, their median and their spread."""
    return {"seconds": list(seconds), "median": statistics.median(seconds), "min": min(seconds), "max": max(seconds)}


def machine(device: str = "cpu") -> dict[str, Any]:
    """What the figures were measured on."""
    on_cuda = device.startswith("cuda")
    return {
        "commit": _git("rev-parse", "HEAD") or os.environ.get(ENV_COMMIT),
        "dirty": None if (status := _git("status", "--porcelain")) is None else bool(status),
        "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "system": platform.platform(),
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in PACKAGES},
        "threads": {"torch": torch.get_num_threads(), **{name: os.environ.get(name) for name in _VARIABLES}},
        "device": f"{device} ({torch.cuda.get_device_name(device)})" if on_cuda else device,
    }


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", *arguments], cwd=RESULTS.parent, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def paired_ratio(first: Timing, second: Timing) -> float:
    """The median of `turn_ratios`: how many times longer the first took than the second."""
    return float(statistics.median(turn_ratios(first, second)))
