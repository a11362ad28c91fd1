"""What every benchmark of this folder does, so that their figures can be compared and repeated.

Variants are warmed up, then run in turns (A B A B ...), so that a busy machine disturbs all of them alike; the
device is synchronised inside the timed region; median and spread are kept, and every single time. The result,
with what it was measured on, is one JSON document under scripts/bench/results/, checked against a small schema. A
benchmark asserts that its output is right: a fast wrong answer is no result.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

SCHEMA = 1
RESULTS = Path(__file__).resolve().parent / "results"
PACKAGES = (
    "facepipe",
    "torch",
    "torchvision",
    "numpy",
    "pillow",
    "duckdb",
    "pyarrow",
    "facenet-pytorch",
    "numba",
    "onnxruntime",
    "simplejpeg",
    "faiss-cpu",
)

# What a result document holds; a nested mapping is a nested object.
_SHAPE: dict[str, Any] = {
    "schema": int,
    "benchmark": str,
    "settings": dict,
    "machine": {
        "commit": (str, type(None)),
        "dirty": (bool, type(None)),
        "time": str,
        "system": str,
        "cpu": str,
        "cores": int,
        "python": str,
        "packages": dict,
        "threads": dict,
        "device": str,
    },
    "timings": dict,
    "figures": dict,
}
_TIMING_SHAPE: dict[str, Any] = {"seconds": list, "median": float, "min": float, "max": float}


def synchronize(device: str) -> None:
    """Waits until the device has done what it was given."""
    if device.startswith("cuda"):
        import torch

        torch.cuda.synchronize(device)


def timed(run: Callable[[], object], device: str) -> float:
    """Seconds of one call, from an idle device to an idle device."""
    synchronize(device)
    start = time.perf_counter()
    run()
    synchronize(device)
    return time.perf_counter() - start


def interleave(
    variants: Mapping[str, Callable[[], object]], repeats: int, device: str = "cpu", warmup: int = 1
) -> dict[str, dict[str, Any]]:
    """Runs all variants `warmup` times untimed, then in turns `repeats` times; returns their timings by name."""
    if repeats < 1:
        raise ValueError(f"repeats must be at least 1, not {repeats}")
    for _ in range(warmup):
        for run in variants.values():
            run()
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(repeats):
        for name, run in variants.items():
            seconds[name].append(timed(run, device))
    return {name: timing(values) for name, values in seconds.items()}


def timing(seconds: list[float]) -> dict[str, Any]:
    """Median and spread of repeated times."""
    return {"seconds": seconds, "median": float(statistics.median(seconds)), "min": min(seconds), "max": max(seconds)}


def paired_ratio(timings: Mapping[str, Mapping[str, Any]], a: str, b: str) -> float:
    """The median over the turns of a's time by b's: what a busy minute disturbs least."""
    pairs = zip(timings[a]["seconds"], timings[b]["seconds"], strict=True)
    return float(statistics.median(x / y for x, y in pairs))


def machine(device: str = "cpu") -> dict[str, Any]:
    """What the figures were measured on."""
    return {
        "commit": _git("rev-parse", "HEAD"),
        "dirty": None if (status := _git("status", "--porcelain")) is None else bool(status),
        "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "system": platform.platform(),
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in PACKAGES},
        "threads": _threads(),
        "device": _device_name(device),
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


def _threads() -> dict[str, int | str | None]:
    import torch

    names = ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    return {"torch": torch.get_num_threads(), **{name: os.environ.get(name) for name in names}}


def _device_name(device: str) -> str:
    if not device.startswith("cuda"):
        return device
    import torch

    return f"{device} ({torch.cuda.get_device_name(device)})"


def result(
    benchmark: str,
    settings: Mapping[str, Any],
    timings: Mapping[str, Any],
    figures: Mapping[str, Any],
    device: str = "cpu",
) -> dict[str, Any]:
    """A result document. Raises ValueError where it does not fit the schema."""
    document = {
        "schema": SCHEMA,
        "benchmark": benchmark,
        "settings": dict(settings),
        "machine": machine(device),
        "timings": dict(timings),
        "figures": dict(figures),
    }
    check_result(document)
    return document


def check_result(document: Mapping[str, Any]) -> None:
    """Raises ValueError that names the first place where `document` does not fit the schema."""
    _check(document, _SHAPE, "result")
    if document["schema"] != SCHEMA:
        raise ValueError(f"result.schema is {document['schema']}, this code knows {SCHEMA}")
    for name, one in document["timings"].items():
        _check(one, _TIMING_SHAPE, f"result.timings.{name}")
        if not one["seconds"]:
            raise ValueError(f"result.timings.{name}.seconds is empty")


def _check(value: object, shape: Mapping[str, Any], where: str) -> None:
    if not isinstance(value, dict):
        raise ValueError(f"{where} is {type(value).__name__}, not an object")
    if value.keys() != shape.keys():
        raise ValueError(f"{where} has keys {sorted(value)}, not {sorted(shape)}")
    for key, expected in shape.items():
        if isinstance(expected, dict):
            _check(value[key], expected, f"{where}.{key}")
        elif not isinstance(value[key], expected) or (isinstance(value[key], bool) and expected is int):
            raise ValueError(f"{where}.{key} is {type(value[key]).__name__}")


def write_result(document: Mapping[str, Any], folder: Path = RESULTS) -> Path:
    """Writes `<benchmark>-<device>.json` (the newest run replaces the last); returns its path."""
    check_result(document)
    folder.mkdir(parents=True, exist_ok=True)
    device = str(document["machine"]["device"]).split(":")[0].split(" ")[0]
    path = folder / f"{document['benchmark']}-{device}.json"
    path.write_text(json.dumps(document, indent=1, sort_keys=True, allow_nan=False) + "\n", "utf-8")
    return path
