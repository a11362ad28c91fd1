"""`facepipe bench`: a short comparison with the reference on the user's own photos, in one process.

Both sides are warmed up and then take turns. Nothing is written but the cache of weights.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from pipeline.config import Settings
from pipeline.errors import SourceEmpty
from pipeline.evaluation.bench.facepipe import FacepipeChain, comparable, embeddings_of_boxes
from pipeline.evaluation.bench.harness import Timing, interleave, turn_ratios
from pipeline.evaluation.bench.parity import CONFIDENT, SAME_IOU, Extracted, compare_faces, cosines
from pipeline.evaluation.bench.reference import image_size
from pipeline.evaluation.bench.sample import Sample, take_sample
from pipeline.evaluation.bench.sides import facepipe_side, reference_side
from pipeline.evaluation.pages.report import Report, Row, Section
from pipeline.extraction.images.files import shown
from pipeline.models.weights import cache_folder, resolve
from pipeline.runtime.device import describe, resolve_device
from pipeline.runtime.threads import set_threads
from pipeline.types import Progress

_FACEPIPE, _REFERENCE = "facepipe", "reference"


@dataclass(frozen=True)
class BenchRequest:
    """What the user asks for."""

    source: Path
    settings: Settings
    images: int = 64
    repeats: int = 3


@dataclass(frozen=True)
class SideResult:
    """The times of one side; the rates are those of the median turn."""

    seconds: list[float]  # of each turn
    images_per_s: float
    faces_per_s: float
    faces: int  # embedded


@dataclass(frozen=True)
class SameFaces:
    """How far the sides agree: the reference's faces of probability 0.95 or more, how many of them facepipe finds at
    IoU 0.9 (`found`), and how many of facepipe's faces the reference lacks (`extra`)."""

    reference_faces: int
    found: int
    extra: int
    cosine_min: float | None  # between both embeddings of each of the reference's faces; None without a face
    cosine_median: float | None


def bench(request: BenchRequest, progress: Progress) -> Report[SameFaces]:
    """Runs facepipe and the reference over a sample of the source, in turns.

    Raises InputError, also where no photo can be compared, DeviceError and ModelError.
    """
    settings = comparable(request.settings)
    file = Path(settings.model.weights_file) if settings.model.weights_file else None
    weights = resolve(settings.model.weights, file, cache_folder(settings.model.cache))
    device = resolve_device(settings.run.device)
    progress.start("sample", None)
    sample = _sample(request, settings)
    progress.start("warm-up", None)
    chain = FacepipeChain(settings)
    facepipe = facepipe_side(chain, sample.files, progress.advance)
    reference = reference_side(weights, settings, device, sample.files, progress.advance)
    for side in (facepipe, reference):
        side.warm_up()
    progress.start("bench", 2 * request.repeats * len(sample.files))
    timings = interleave({_FACEPIPE: facepipe, _REFERENCE: reference}, request.repeats, device, warmup=0)
    faces = _same_faces(chain, reference.faces, facepipe.faces)
    threads, mode = set_threads(settings.run.threads), settings.run.mode
    rows = [
        Row(
            "images",
            f"{len(sample.files)} of {shown(request.source)}",
            {"source": shown(request.source), "images": len(sample.files), "left_out": dict(sample.left_out)},
        ),
        *(Row("left out", f"{count}: {reason}") for reason, count in sorted(sample.left_out.items())),
        Row(
            "device",
            f"{describe(device)}; {chain.extractor.embedder.backend}; {weights.name}, mode {mode}",
            {
                "device": describe(device),
                "threads": threads,
                "backend": chain.extractor.embedder.backend,
                "weights": weights.name,
                "mode": mode,
            },
        ),
        _side_row(_FACEPIPE, timings[_FACEPIPE], facepipe.faces),
        _side_row(_REFERENCE, timings[_REFERENCE], reference.faces),
        _ratio_row(turn_ratios(timings[_REFERENCE], timings[_FACEPIPE])),
        _faces_row(faces),
    ]
    return Report(faces, [Section("facepipe beside facenet-pytorch", rows)])


def _sample(request: BenchRequest, settings: Settings) -> Sample:
    sample = take_sample(request.source, settings, request.images)
    if not sample.files:
        reasons = "; ".join(f"{count}: {reason}" for reason, count in sorted(sample.left_out.items()))
        raise SourceEmpty(path=shown(request.source), detail=f"none that can be compared; {reasons}")
    return sample


def _same_faces(chain: FacepipeChain, reference: Mapping[Path, Extracted], ours: Mapping[Path, Extracted]) -> SameFaces:
    parity = compare_faces(reference, ours, {file: image_size(file) for file in reference})
    confident = {file: faces.confident() for file, faces in reference.items()}
    embeddings = embeddings_of_boxes(chain, confident)
    cosine = np.concatenate([cosines(confident[file].embeddings, vectors) for file, vectors in embeddings.items()])
    least, median = (float(cosine.min()), float(np.median(cosine))) if len(cosine) else (None, None)
    return SameFaces(parity.reference_faces, parity.found, parity.extra, least, median)


def _side_row(name: str, timing: Timing, faces: Mapping[Path, Extracted]) -> Row:
    count = sum(map(len, faces.values()))
    side = SideResult(timing.seconds, len(faces) / timing.median, count / timing.median, count)
    text = f"{side.images_per_s:.1f} images/s, {side.faces_per_s:.1f} faces/s ({timing.median:.2f} s a turn)"
    return Row(name, text, {name: asdict(side)})


def _ratio_row(ratios: list[float]) -> Row:
    """The reference's time divided by facepipe's: the median over the turns."""
    ratio = statistics.median(ratios)
    text = f"{ratio:.2f} ({min(ratios):.2f} to {max(ratios):.2f} in {len(ratios)} turns)"
    return Row("ratio", text, {"ratio": ratio, "ratios": ratios})


def _faces_row(faces: SameFaces) -> Row:
    shared = f"{faces.found} of the reference's {faces.reference_faces} (p {CONFIDENT:g}, IoU {SAME_IOU:g})"
    text = f"{shared}, {faces.extra} extra"
    if faces.cosine_min is not None:
        text += f"; embeddings of the same boxes: cosine at least {faces.cosine_min:.6f}"
    return Row("faces", text, {"faces": asdict(faces)})
