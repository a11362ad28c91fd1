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

_OURS, _REFERENCE = "facepipe", "reference"


@dataclass(frozen=True)
class BenchRequest:
    """What the user asks for."""

    source: Path
    settings: Settings
    images: int = 64
    repeats: int = 3


@dataclass(frozen=True)
class SideResult:
    """How one side did; the rates are those of the median turn."""

    seconds: list[float]  # of each turn
    images_per_s: float
    faces_per_s: float
    faces: int  # that were embedded


@dataclass(frozen=True)
class SameFaces:
    """How far the sides agree: of the reference's faces of probability 0.95, those that facepipe has at IoU 0.9, and
    of facepipe's those where the reference has none."""

    reference_faces: int
    found: int
    extra: int
    cosine_min: float | None  # of both embeddings of the reference's faces; None without a face
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
    ours = facepipe_side(chain, sample.files, progress.advance)
    theirs = reference_side(weights, settings, device, sample.files, progress.advance)
    for side in (ours, theirs):
        side.warm_up()
    progress.start("bench", 2 * request.repeats * len(sample.files))
    timings = interleave({_OURS: ours, _REFERENCE: theirs}, request.repeats, device, warmup=0)
    faces = _same_faces(chain, theirs.faces, ours.faces)
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
        _side_row(_OURS, timings[_OURS], ours.faces),
        _side_row(_REFERENCE, timings[_REFERENCE], theirs.faces),
        _ratio_row(turn_ratios(timings[_REFERENCE], timings[_OURS])),
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
    sure = {file: faces.confident() for file, faces in reference.items()}
    embedded = embeddings_of_boxes(chain, sure)
    cosine = np.concatenate([cosines(sure[file].embeddings, own) for file, own in embedded.items()])
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
    found = f"{faces.found} of the reference's {faces.reference_faces} (p {CONFIDENT:g}, IoU {SAME_IOU:g})"
    text = f"{found}, {faces.extra} extra"
    if faces.cosine_min is not None:
        text += f"; embeddings of the same boxes: cosine at least {faces.cosine_min:.6f}"
    return Row("faces", text, {"faces": asdict(faces)})
