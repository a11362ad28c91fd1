"""Tries the device on one photo: compares its faces and embeddings with plain torch on the CPU, and measures its
speed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import torch

from pipeline.config import AUTO, EXACT, TORCH, RunSettings, Settings
from pipeline.errors import FacepipeError, UsageError
from pipeline.extraction.extractor import BatchExtractor
from pipeline.extraction.images.decode import Decoder
from pipeline.jobs.models import load_extractor
from pipeline.jobs.store_identity import make_identity
from pipeline.runtime.device import describe, device_errors, is_cuda, resolve_device
from pipeline.runtime.optional_kernels import outcomes
from pipeline.texts import install_extra
from pipeline.tools.doctor import FAIL, OK, WARN, Finding
from pipeline.tools.sample_photos import portrait
from pipeline.types import DecodedImage, FloatArray, boxes_of

MOST_SHIFT_PX: Final = 0.5  # of a box's side, in a photo of 512 x 600
LEAST_COSINE: Final = 0.999
_MUCH_MEMORY: Final = 8 * 10**9  # bytes; an estimate for the batches of configs/cuda.yaml
_LOOP_S: Final = 2.0
_LOOP_IMAGES: Final = {"cpu": 4, "cuda": 64}  # per batch
_OTHER = "The device computes wrongly: do not use it. Try another driver or another torch, or use --device cpu."
_BROKEN = "See nvidia-smi and the system's log; --device cpu does without the GPU."


def try_device(settings: Settings) -> list[Finding]:
    """Tries the settings' device in the mode `exact`, on a public-domain photo, for some seconds."""
    findings: list[Finding] = []
    try:
        with device_errors():
            for finding in _tried(settings):
                findings.append(finding)  # those before an error stay
    except UsageError as exc:  # the photo's package is missing
        findings.append(Finding("trial", WARN, str(exc), install_extra("demo")))
    except FacepipeError as exc:
        findings.append(Finding("trial", FAIL, str(exc), _BROKEN))
    return findings


def _tried(settings: Settings) -> Iterator[Finding]:
    run = replace(settings.run, mode=EXACT, precision=AUTO, tf32=False, jpeg=RunSettings().jpeg)
    device = resolve_device(run.device)
    if is_cuda(device):
        yield _driver(device)
        yield _memory(device)
    photo = Decoder(settings.decode)(portrait())
    expected = _extractor(settings, replace(run, device="cpu", backend=TORCH)).extract([photo])[0]
    extractor = _extractor(settings, run)
    faces = extractor.extract([photo])[0]
    yield _boxes(expected, faces)
    yield _embeddings(expected, faces, extractor.embedder.backend)
    yield from _kernels(device)
    yield _rate(extractor, photo)


def _extractor(settings: Settings, run: RunSettings) -> BatchExtractor:
    chosen = replace(settings, run=run)
    return load_extractor(chosen, make_identity(chosen), Path())


def _driver(device: str) -> Finding:
    """`resolve_device` already checked that there is code for the device."""
    major, minor = torch.cuda.get_device_capability(device)
    made = f"torch {torch.__version__} for CUDA {torch.version.cuda} ({', '.join(torch.cuda.get_arch_list())})"
    return Finding("driver", OK, f"{made} runs on compute capability {major}.{minor}")


def _memory(device: str) -> Finding:
    free, total = torch.cuda.mem_get_info(device)
    detail = f"{free / 1e9:.1f} of {total / 1e9:.1f} GB are free"
    if free >= _MUCH_MEMORY:
        return Finding("memory", OK, detail)
    cure = "End what else uses the GPU, or take smaller batches at once: --set run.batch_pixels=24000000"
    return Finding("memory", WARN, f"{detail}: batches that do not fit are halved", cure)


def _boxes(expected: pa.Table, faces: pa.Table) -> Finding:
    if len(expected) != len(faces):
        return Finding("faces", FAIL, f"{len(faces)} instead of the {len(expected)} that the CPU finds", _OTHER)
    shift = float(np.abs(boxes_of(expected) - boxes_of(faces)).max(initial=0))
    detail = f"{len(faces)} as on the CPU, boxes {shift:.4f} px apart (at most {MOST_SHIFT_PX})"
    return Finding("faces", OK, detail) if shift <= MOST_SHIFT_PX else Finding("faces", FAIL, detail, _OTHER)


def _embeddings(expected: pa.Table, faces: pa.Table, backend: str) -> Finding:
    pairs = zip(_vectors(expected), _vectors(faces), strict=False)  # differing faces are already a finding
    cosine = min((float(one @ two) for one, two in pairs), default=0.0)
    detail = f"in {backend}: cosine to plain torch's on the CPU {cosine:.6f} (at least {LEAST_COSINE})"
    level = OK if cosine >= LEAST_COSINE else FAIL
    return Finding("embeddings", level, detail, None if level == OK else _OTHER)


def _vectors(faces: pa.Table) -> list[FloatArray]:
    return [np.asarray(row, dtype=np.float32) for row in faces["embedding"].to_pylist()]


def _kernels(device: str) -> Iterator[Finding]:
    """Reports the Triton kernels that the photo used."""
    for name, problem in sorted(outcomes(torch.device(device)).items()):
        if problem is None:
            yield Finding("triton", OK, f"{name}: Triton's kernels give what torch gives, and are used")
        else:
            detail = f"{name}: torch instead, which is right and slower ({problem})"
            yield Finding("triton", WARN, detail, _cure(problem))


def _cure(problem: str) -> str:
    if problem.startswith(("ImportError", "ModuleNotFoundError")):
        return "pip install triton"
    return (
        "Triton builds a part on this machine: it needs a C compiler, Python's headers (python3-dev) and a folder"
        " that it may write to (TRITON_CACHE_DIR)"
    )


def _rate(extractor: BatchExtractor, photo: DecodedImage) -> Finding:
    batch = [photo] * _LOOP_IMAGES["cuda" if is_cuda(extractor.device) else "cpu"]
    extractor.extract(batch)
    begun, done = time.perf_counter(), 0
    while (seconds := time.perf_counter() - begun) < _LOOP_S:
        done += len(extractor.extract(batch))
    detail = f"{done / seconds:.1f} images/s of {photo.width} x {photo.height} on {describe(extractor.device)}"
    return Finding("rate", OK, f"{detail}, one batch after another, without reading and decoding")
