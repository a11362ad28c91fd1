"""The photos to compare: evenly spaced over the source, without those that the two sides decode differently."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from pipeline.config import DetectSettings, Settings, SourceSettings
from pipeline.errors import ImageRejected
from pipeline.evaluation.bench.reference import read_image
from pipeline.extraction.detection.pyramid import pyramid
from pipeline.extraction.images.decode import Decoder
from pipeline.extraction.images.files import read_file
from pipeline.extraction.sources.scan import scan_source
from pipeline.runtime.threads import thread_count
from pipeline.types import ByteArray, ImageRef

_STRIDE = 4  # between the compared rows and columns: enough to tell two pictures apart
_SAME_GREY = 1.0  # two decoders made the same picture up to this mean difference in grey levels


@dataclass
class Sample:
    """Photos that both sides can read."""

    files: list[Path] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)  # photos by reason


def take_sample(source: Path, settings: Settings, images: int) -> Sample:
    """At most `images` photos of a folder or manifest; always the same ones for the same source.

    Raises what `scan_source` raises.
    """
    sample, chosen = Sample(), []
    for ref in _spread(source, settings.source, images):
        if ref.rejected is not None:
            sample.left_out[_refused(ref.rejected)] += 1
        elif ref.file not in chosen:  # a manifest may name a file twice
            chosen.append(ref.file)
    decoder = Decoder(settings.decode)
    with ThreadPoolExecutor(thread_count(settings.run.threads)) as pool:
        problems = pool.map(lambda file: _problem(file, decoder, settings.detect), chosen)
        for file, problem in zip(chosen, problems, strict=True):
            if problem is None:
                sample.files.append(file)
            else:
                sample.left_out[problem] += 1
    return sample


def _spread(source: Path, settings: SourceSettings, images: int) -> Iterator[ImageRef]:
    """Every n-th row. Reads the source twice, so that memory does not grow with its number of rows."""
    rows = sum(1 for _ in scan_source(source, settings))
    count = min(rows, images)
    numbers = {step * rows // count for step in range(count)}
    return (ref for number, ref in enumerate(scan_source(source, settings)) if number in numbers)


def _problem(file: Path, decoder: Decoder, detect: DetectSettings) -> str | None:
    """Why the two sides cannot be compared on the photo; None where they can."""
    try:
        pixels = decoder(read_file(file, decoder.settings.max_bytes)).pixels
    except ImageRejected as exc:
        return _refused(exc)
    try:
        reference_pixels = np.asarray(read_image(file))
    except Exception as exc:  # noqa: BLE001  Pillow's parsers raise any exception for a broken file
        return f"the reference cannot read it: {type(exc).__name__}"
    height, width, _ = pixels.shape
    if not pyramid(height, width, detect.min_face_px, detect.factor):
        return "smaller than a face of detect.min_face_px, where the reference fails"
    if pixels.shape != reference_pixels.shape or not _same_picture(pixels, reference_pixels):
        return "the reference decodes it otherwise (transparency, 16 bits)"
    return None


def _refused(problem: ImageRejected) -> str:
    return f"facepipe refuses it: {problem.status}"


def _same_picture(first: ByteArray, second: ByteArray) -> bool:
    step = slice(None, None, _STRIDE)
    difference = np.abs(first[step, step].astype(np.int16) - second[step, step])
    return float(difference.mean()) <= _SAME_GREY
