"""The device against the CPU, with Triton's kernels and without: the same faces, embeddings and identities?

    TRITON_INTERPRET=1 python scripts/gpu_check --device cpu --faces FOLDER --photos 300 --work FOLDER --step parity

compares the compiled loops, torch, and the kernels by Triton's interpreter, on a CPU; one core takes 20 minutes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from comparison import (
    LEAST_COSINE,
    assert_same_faces,
    cosine_figures,
    largest_shift,
    matched_cosines,
    parity_figures,
)
from corpora import read_sources

from gpu_check.device_work import interpret_triton, leave_triton, take_cuda_branches
from gpu_check.findings import Findings
from gpu_check.options import Options
from gpu_check.photos import corpus, faces
from pipeline.config import EXACT, FAST, TORCH, Settings
from pipeline.evaluation.bench.facepipe import FacepipeChain
from pipeline.evaluation.bench.parity import SAME_IOU, Extracted, compare_faces
from pipeline.evaluation.bench.reference import image_size
from pipeline.evaluation.clustering import Contingency
from pipeline.evaluation.detection import overlaps
from pipeline.jobs.store_identity import make_identity
from pipeline.matching.calibration import Calibration
from pipeline.matching.group import group_faces
from pipeline.matching.match import Matcher
from pipeline.matching.references import ReferenceIndex
from pipeline.runtime.device import resolve_device
from pipeline.types import FaceBatch, IntArray

_GROUPS, _QUICK_GROUPS = 24, 2
_LEAST_F = {EXACT: 0.99, FAST: 0.97}  # single close decisions may fall otherwise, and more follow from each
Faces = Mapping[Path, Extracted]


def parity(options: Options, found: Findings) -> None:
    sources = read_sources(faces(options))
    if options.photos is None:
        groups = sources.groups[: _QUICK_GROUPS if options.quick else _GROUPS]
        files = [*corpus(options, "a"), *corpus(options, "b"), *groups]
    else:
        files = [*sources.portraits[: options.photos]]
    expected = extract(options.settings(run__device="cpu"), files)
    headlines = []
    for name, flags in ways(options):
        with found.part(name):
            settings = options.settings(run__backend=TORCH, **flags)
            figures = compared(expected, extract(settings, files), settings, name, found)
            found.put(name, figures)
            least, f = figures["cosine_own_box_min"], figures["pairwise_f"]
            headlines.append(f"{name}: {figures['missed']} missed, cosine at least {least:.6f}, pairwise F {f:.4f}")
    found.headline = "; ".join(headlines)


def ways(options: Options) -> Iterator[tuple[str, dict[str, Any]]]:
    """The name and the flags of each way to find faces on the device, which this process takes until the next one."""
    if options.cuda:
        yield from ((mode, {"run__mode": mode}) for mode in (EXACT, FAST))
        leave_triton()
        yield "exact without Triton", {"run__mode": EXACT}
        return
    take_cuda_branches()
    yield EXACT, {"run__mode": EXACT}
    if os.environ.get("TRITON_INTERPRET") == "1":
        interpret_triton()
        yield "exact by Triton's interpreter", {"run__mode": EXACT, "run__threads": 1}  # it is not made for two


def extract(settings: Settings, files: Sequence[Path]) -> dict[Path, Extracted]:
    chain = FacepipeChain(settings)
    chain.prepare([files])
    return chain([0])


def compared(expected: Faces, actual: Faces, settings: Settings, name: str, found: Findings) -> dict[str, Any]:
    """The figures of the device's faces beside the CPU's; what is too far apart becomes a problem."""
    counts = compare_faces(expected, actual, {file: image_size(file) for file in expected})
    with found.part(f"{name}, faces"):
        assert_same_faces(counts)
    cosine = matched_cosines(expected, actual)
    least = float(cosine.min(initial=1.0))
    found.expect(least >= LEAST_COSINE, f"{name}: a cosine of {least:.5f} between two embeddings of one face")
    on_cpu = replace(settings, run=replace(settings.run, device="cpu"))
    one, two = same_faces(expected, actual, identities(expected, on_cpu), identities(actual, settings))
    agreement = Contingency.of(one, two).pairwise().f
    f = 1.0 if np.isnan(agreement) else agreement  # no two faces are in one identity
    found.expect(f >= _LEAST_F[settings.run.mode], f"{name}: identities agree with a pairwise F of {f:.4f} only")
    return {
        **parity_figures(counts),
        **cosine_figures({"own_box": cosine}),
        "largest_box_shift_px": max(largest_shift(expected[file], actual[file]) for file in expected),
        "identities": {"cpu": len(set(one)), name: len(set(two))},
        "pairwise_f": f,
    }


def identities(extracted: Faces, settings: Settings) -> dict[Path, IntArray]:
    """The identity of each face of each file, as a run without a gate would decide it."""
    kept = {file: one for file, one in extracted.items() if len(one)}
    vectors = np.concatenate([one.embeddings for one in kept.values()])
    boxes = np.concatenate([one.boxes for one in kept.values()])
    hashes = [(f"{number} {face}",) for number, one in enumerate(kept.values()) for face in range(len(one))]
    batch = FaceBatch(vectors, np.ones(len(vectors), np.bool_), hashes, boxes)
    matcher = Matcher(Calibration.from_dict(make_identity(settings).calibration), settings.match.threshold)
    index = ReferenceIndex(vectors.shape[1], resolve_device(settings.run.device))
    positions = group_faces(batch, index, matcher).position
    ends = np.cumsum([len(one) for one in kept.values()])
    return dict(zip(kept, np.split(positions, ends[:-1]), strict=True))


def same_faces(
    expected: Faces, actual: Faces, one: Mapping[Path, IntArray], two: Mapping[Path, IntArray]
) -> tuple[IntArray, IntArray]:
    """The identities `one` and `two` of the faces that both have, [n] each, numbered from 0 without gaps."""
    pairs = [
        (one[file][face], two[file][int(row.argmax())])
        for file in one.keys() & two.keys()
        for face, row in enumerate(overlaps(expected[file].boxes, actual[file].boxes))
        if row.max(initial=0) >= SAME_IOU
    ]
    first, second = (np.unique(column, return_inverse=True)[1] for column in zip(*pairs, strict=True))
    return first, second
