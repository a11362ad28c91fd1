"""`facepipe bench`: a short comparison with the reference on the user's own photos, in one process.

Both sides are warmed up and then take turns, so that a busy machine disturbs both alike. Nothing is written but the
cache of weights.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from pipeline.config import Settings
from pipeline.errors import SourceEmpty, UsageError
from pipeline.evaluation.bench.chain import FacepipeChain, comparable, embeddings_of_boxes
from pipeline.evaluation.bench.parity import Extracted, compare_faces, cosines
from pipeline.evaluation.bench.reference import ARCHITECTURE, image_size
from pipeline.evaluation.bench.report import BenchReport, SameFaces
from pipeline.evaluation.bench.sample import Sample, take_sample
from pipeline.evaluation.bench.sides import Side, facepipe_side, reference_side
from pipeline.extraction.images.files import shown
from pipeline.models.weights import ResolvedWeights, cache_folder, resolve
from pipeline.runtime.device import describe, resolve_device, set_threads


@dataclass(frozen=True)
class BenchRequest:
    """What the user asks for."""

    source: Path
    settings: Settings
    images: int = 64
    repeats: int = 3


class Progress(Protocol):
    """Where the comparison tells how far it is."""

    def start(self, phase: str, total: int | None) -> None: ...
    def advance(self, count: int = 1) -> None: ...


def bench(request: BenchRequest, progress: Progress) -> BenchReport:
    """Runs facepipe and the reference over a sample of the source, in turns.

    Raises InputError, also where no photo can be compared, UsageError for weights that facenet-pytorch has no network
    for, DeviceError and ModelError.
    """
    settings = comparable(request.settings)
    resolved = _resolved(settings)
    device = resolve_device(settings.run.device)
    progress.start("sample", None)
    sample = _sample(request, settings)
    progress.start("warm-up", None)
    chain = FacepipeChain(settings)
    ours = facepipe_side(chain, device, sample.files)
    theirs = reference_side(resolved, settings, device, sample.files)
    _take_turns((ours, theirs), request.repeats, 2 * request.repeats * len(sample.files), progress)
    ratios = [their / our for their, our in zip(theirs.seconds, ours.seconds, strict=True)]
    return BenchReport(
        source=shown(request.source),
        images=len(sample.files),
        left_out=dict(sample.left_out),
        device=describe(device),
        threads=set_threads(settings.run.threads),
        backend=chain.extractor.embedder.backend,
        weights=resolved.name,
        mode=settings.run.mode,
        facepipe=ours.report(),
        reference=theirs.report(),
        ratio=statistics.median(ratios),
        ratios=ratios,
        faces=_same_faces(chain, theirs.found, ours.found),
    )


def _resolved(settings: Settings) -> ResolvedWeights:
    file = Path(settings.model.weights_file) if settings.model.weights_file else None
    resolved = resolve(settings.model.weights, file, cache_folder(settings.model.cache))
    if resolved.weight_set.architecture != ARCHITECTURE:
        raise UsageError(
            message=f"facenet-pytorch has no network for the weights {resolved.name}: there is nothing to compare "
            "with. Take --weights casia-webface or vggface2."
        )
    return resolved


def _sample(request: BenchRequest, settings: Settings) -> Sample:
    sample = take_sample(request.source, settings, request.images)
    if not sample.files:
        reasons = "; ".join(f"{count}: {reason}" for reason, count in sorted(sample.left_out.items()))
        raise SourceEmpty(path=shown(request.source), detail=f"none that can be compared; {reasons}")
    return sample


def _take_turns(sides: tuple[Side, ...], repeats: int, total: int, progress: Progress) -> None:
    for side in sides:
        side.warm_up()
    progress.start("bench", total)
    for _ in range(repeats):
        for side in sides:
            side.turn(progress.advance)


def _same_faces(chain: FacepipeChain, reference: Mapping[Path, Extracted], ours: Mapping[Path, Extracted]) -> SameFaces:
    parity = compare_faces(reference, ours, {file: image_size(file) for file in reference})
    sure = {file: faces.confident() for file, faces in reference.items()}
    embedded = embeddings_of_boxes(chain, sure)
    cosine = np.concatenate([cosines(sure[file].embeddings, own) for file, own in embedded.items()])
    least, median = (float(cosine.min()), float(np.median(cosine))) if len(cosine) else (None, None)
    return SameFaces(parity.reference_faces, parity.found, parity.extra, least, median)
