"""How fast is facepipe's engine with each setting that a user can choose, and with more or fewer batches at once?"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import torch

from gpu_check.findings import Findings
from gpu_check.options import CUDA_CONFIG, Options
from gpu_check.photos import CORPORA, corpus
from pipeline.config import FAST, Settings
from pipeline.errors import BadValue
from pipeline.evaluation.bench.facepipe import FacepipeChain
from pipeline.evaluation.bench.harness import timed
from pipeline.extraction.images.device_jpeg import load_nvimgcodec
from pipeline.runtime import device as device_module
from pipeline.runtime.device import driver_uuid, resolve_device
from pipeline.runtime.device_meter import DeviceMeter
from pipeline.runtime.stage_times import StageTimes

_TURN_S: Final = 2.0  # so that what a turn costs once does not count
_TURNS: Final = 2
_MOST_IMAGES: Final = 8192
_BATCHES_AT_ONCE: Final = (1, 3, 6)


def bench(options: Options, found: Findings) -> None:
    headlines = []
    for name in "a" if options.quick else CORPORA:
        rates = {}
        for label, settings in variants(options).items():
            with found.part(f"{name} {label}"):
                figures = measured(settings, corpus(options, name), options)
                found.put(f"{name} {label}", figures)
                rates[label] = figures["images_per_s"]
        headlines.append(f"{name} {', '.join(f'{label} {rate:.0f}' for label, rate in rates.items())}")
        if options.cuda and name != "c":
            for number in _BATCHES_AT_ONCE:
                with found.part(f"{name}, {number} batches at once"), batches_at_once(number):
                    figures = measured(variants(options)["fast"], corpus(options, name), options)
                    found.put(f"{name} fast, {number} batches at once", figures)
    found.headline = f"images/s: {'; '.join(headlines)}"


def variants(options: Options) -> Mapping[str, Settings]:
    """`defaults` apart, all have the batches of configs/cuda.yaml."""
    made = {"defaults": options.settings(), "cuda.yaml": options.settings(CUDA_CONFIG)}
    if options.cuda:  # on a CPU without OpenVINO both modes are one
        made["fast"] = options.settings(CUDA_CONFIG, run__mode=FAST)
        made["TF32"] = options.settings(CUDA_CONFIG, run__mode=FAST, run__tf32="true")
        with suppress(BadValue):  # it is not installed
            load_nvimgcodec()
            made["JPEG"] = options.settings(CUDA_CONFIG, run__mode=FAST, run__jpeg="device")
    return made


@contextmanager
def batches_at_once(number: int) -> Iterator[None]:
    before = device_module.CUDA_BATCHES
    device_module.CUDA_BATCHES = number  # type: ignore[misc]
    try:
        yield
    finally:
        device_module.CUDA_BATCHES = before  # type: ignore[misc]


def measured(settings: Settings, files: list[Path], options: Options) -> dict[str, Any]:
    """The faster of the turns, after two short ones that warm up; raises AssertionError where turns find other
    faces."""
    device = resolve_device(options.device)
    times = StageTimes()
    chain = FacepipeChain(settings, times)
    chain.prepare(_shards(files, settings))
    chain([0])
    short_s = timed(lambda: chain(range(len(_shards(files, settings)))), device)
    rounds = 1 if options.quick else min(max(1, round(_TURN_S / short_s)), _MOST_IMAGES // len(files))
    shards = _shards(files * rounds, settings)
    chain.prepare(shards)
    times.stages.clear()
    if options.cuda:
        torch.cuda.reset_peak_memory_stats(device)
    turns = [_turn(chain, len(shards), device) for _ in range(1 if options.quick else _TURNS)]
    assert len({turn["faces"] for turn in turns}) == 1, turns
    images = len(files) * rounds
    best = min(turns, key=lambda turn: turn["seconds"])
    stages = {name: round(1e6 * s.seconds / images / len(turns)) for name, s in times.stages.items()}
    return {
        "images": images,
        "images_per_s": round(images / best["seconds"], 1),
        **best,
        "first_images_per_s": round(len(files) / short_s, 1),
        "stage_us_per_image": stages,
        "images_waiting": round(times.images_waiting.mean, 1),
        "batches_waiting": round(times.batches_waiting.mean, 2),
        "workers_idle_s": {name: round(s, 2) for name, s in times.idle_for.items()},
        "vram_reserved_mib": round(torch.cuda.max_memory_reserved(device) / 2**20) if options.cuda else None,
    }


def _shards(files: list[Path], settings: Settings) -> list[list[Path]]:
    rows = settings.run.shard_rows
    return [files[start : start + rows] for start in range(0, len(files), rows)]


def _turn(chain: FacepipeChain, shards: int, device: str) -> dict[str, Any]:
    faces = 0

    def extract() -> None:
        nonlocal faces
        faces = sum(map(len, chain(range(shards)).values()))

    with DeviceMeter(driver_uuid(device)) as meter:
        cpu_s = time.process_time()
        seconds = timed(extract, device)
        cpu_s = time.process_time() - cpu_s
    cores = round(cpu_s / seconds, 2)
    return {"seconds": round(seconds, 3), "faces": faces, "cores_busy": cores, "device_busy": meter.busy_share}
