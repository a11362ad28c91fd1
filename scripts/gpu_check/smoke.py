"""One batch through the extractor, in both modes: does it run, what does it cost, where does it wait, what does it
launch?"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch

from gpu_check.device_work import launches, take_cuda_branches, triton_kernels, waits
from gpu_check.findings import Findings
from gpu_check.options import Options
from gpu_check.photos import decoded
from pipeline.config import EXACT, FAST, TORCH
from pipeline.evaluation.bench.harness import timed
from pipeline.extraction.extractor import BatchExtractor
from pipeline.jobs.models import load_extractor
from pipeline.jobs.store_identity import make_identity
from pipeline.runtime.device import synchronize
from pipeline.runtime.stage_times import StageTimes
from pipeline.types import DecodedImage

_BATCHES, _QUICK_BATCHES = {"a": 86, "b": 86, "c": 7}, {"a": 4, "b": 1}
_REPEATS = 3


def smoke(options: Options, found: Findings) -> None:
    if not options.cuda:
        take_cuda_branches()
    batches = _QUICK_BATCHES if options.quick else _BATCHES
    images = {name: decoded(options, name, count) for name, count in batches.items()}
    headlines = []
    for mode in (EXACT, FAST) if options.cuda else (EXACT,):  # on a CPU without OpenVINO they are one
        with found.part(mode):
            settings = options.settings(run__mode=mode, run__backend=TORCH)
            extractor = load_extractor(settings, make_identity(settings), Path())
            kernels = triton_kernels(extractor.device)
            found.put("Triton kernels", kernels)
            found.expect(not options.cuda or all(kernels.values()), f"the device does without Triton: {kernels}")
            for name, batch in images.items():
                with found.part(f"{mode} {name}"):
                    headlines.append(f"{mode} {name} {one_batch(extractor, batch, f'{mode} {name}', found)}")
    found.headline = "; ".join(headlines)
    if not options.cuda:
        found.headline += " (waits and launches are counted on CUDA only)"


def one_batch(extractor: BatchExtractor, images: Sequence[DecodedImage], key: str, found: Findings) -> str:
    """Puts what the batch costs into `found`; returns it in a few words."""
    device, count = extractor.device, len(images)
    faces = 0

    def extract() -> None:
        nonlocal faces
        faces = sum(map(len, extractor.extract(images)))

    first_s, *later_s = [timed(extract, device) for _ in range(1 + _REPEATS)]
    times = StageTimes(partial(synchronize, device))
    extractor.extract(images, times)
    ms = round(min(later_s) / count * 1e3, 3)
    stages = {name: round(stage.seconds / count * 1e6) for name, stage in times.stages.items()}
    figures = {"images": count, "faces": faces, "first_s": first_s, "ms_per_image": ms, "stage_us_per_image": stages}
    found.put(key, figures)
    found.expect(faces > 0, f"{key}: no face in {count} images")
    if device == "cpu":
        return f"{ms} ms an image"
    found.put(f"{key}: VRAM, MiB", round(torch.cuda.max_memory_allocated(device) / 2**20))
    waited, launched = waits(extract), launches(extract, count)
    found.put(f"{key}: waits", dict(waited.most_common()))
    found.put(f"{key}: launches", launched)
    return f"{ms} ms, {launched['launches_per_image']} launches an image, {waited.total()} waits a batch"
