"""`facepipe bench`: a short comparison with the reference on the user's own photos, in one process.

Only the cache of weights is written.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.config import DetectSettings, Settings, SourceSettings
from pipeline.errors import ImageRejected, SourceEmpty
from pipeline.evaluation.bench.facepipe import FacepipeChain, comparable, embeddings_of_boxes
from pipeline.evaluation.bench.harness import Timing, interleave, turn_ratios
from pipeline.evaluation.bench.parity import CONFIDENT, SAME_IOU, Extracted, compare_faces, cosines
from pipeline.evaluation.bench.reference import (
    LIST_IMAGES,
    LIST_PIXELS,
    ReferenceChain,
    equal_sized,
    image_size,
    read_image,
)
from pipeline.evaluation.report import Report, Row, Section
from pipeline.extraction.detection.pyramid import pyramid
from pipeline.extraction.images.decode import Decoder
from pipeline.extraction.images.files import read_file
from pipeline.extraction.sources.scan import scan_source
from pipeline.jobs.store_identity import weights_file
from pipeline.models.weights import cache_folder, resolve
from pipeline.runtime.buckets import is_address
from pipeline.runtime.device import describe, resolve_device
from pipeline.runtime.threads import thread_count, using_threads
from pipeline.texts import path_text
from pipeline.types import ByteArray, ImageRef, Progress

_FACEPIPE, _REFERENCE = "facepipe", "reference"
_WARM_UP_IMAGES = 8
_STRIDE = 4  # between compared rows and columns: enough to distinguish two pictures
_SAME_GREY = 1.0  # mean difference in grey levels up to which decoded pictures count as equal


@dataclass(frozen=True)
class SameFaces:
    """The reference's faces of probability 0.95 or more, those of them that facepipe finds at IoU 0.9 (`found`), and
    facepipe's faces that the reference lacks (`extra`)."""

    reference_faces: int
    found: int
    extra: int
    cosine_min: float | None  # of both embeddings of each reference face; None without a face
    cosine_median: float | None


def bench(
    source: Path, settings: Settings, progress: Progress, images: int = 64, repeats: int = 3
) -> Report[SameFaces]:
    """Runs facepipe and the reference in turns over a sample of `images` photos.

    Raises InputError, also if no photo can be compared, DeviceError and ModelError.
    """
    settings = comparable(settings)
    weights = resolve(settings.model.weights, weights_file(settings), cache_folder(settings.model.cache))
    device = resolve_device(settings.run.device)
    progress.start("sample", None)
    files, left_out = take_sample(source, settings, images)
    if not files:
        reasons = "; ".join(f"{count}: {reason}" for reason, count in sorted(left_out.items()))
        raise SourceEmpty(path=path_text(source), detail=f"none that can be compared; {reasons}")
    progress.start("warm-up", None)
    chain = FacepipeChain(settings)
    rows = settings.run.shard_rows
    shards = [files[start : start + rows] for start in range(0, len(files), rows)]
    reference_chain = ReferenceChain(weights, settings.detect, settings.align.margin_px, str(device))
    lists = equal_sized(files, LIST_IMAGES, LIST_PIXELS)
    threads = partial(using_threads, settings.run.threads)
    facepipe = Side(chain, shards, progress.advance)
    reference = Side(reference_chain, lists, progress.advance, threads)
    for side in (facepipe, reference):
        side.warm_up()
    progress.start("bench", 2 * repeats * len(files))
    timings = interleave({_FACEPIPE: facepipe, _REFERENCE: reference}, repeats, device, warmup=0)
    same = _same_faces(chain, reference.faces, facepipe.faces)
    ratios = turn_ratios(timings[_REFERENCE], timings[_FACEPIPE])
    figures = {
        "source": path_text(source),
        "images": len(files),
        "left_out": dict(left_out),
        "device": describe(device),
        "threads": thread_count(settings.run.threads),
        "backend": chain.extractor.embedder.backend,
        "weights": weights.name,
        "mode": settings.run.mode,
        _FACEPIPE: _speed(timings[_FACEPIPE], facepipe.faces),
        _REFERENCE: _speed(timings[_REFERENCE], reference.faces),
        "ratio": statistics.median(ratios),
        "ratios": ratios,
        "faces": asdict(same),
    }
    return Report(same, figures, [Section("facepipe beside facenet-pytorch", list(_rows(figures, timings, same)))])


def _same_faces(chain: FacepipeChain, reference: Mapping[Path, Extracted], ours: Mapping[Path, Extracted]) -> SameFaces:
    parity = compare_faces(reference, ours, {file: image_size(file) for file in reference})
    confident = {file: faces.confident() for file, faces in reference.items()}
    embeddings = embeddings_of_boxes(chain, confident)
    cosine = np.concatenate([cosines(confident[file].embeddings, vectors) for file, vectors in embeddings.items()])
    least, median = (float(cosine.min()), float(np.median(cosine))) if len(cosine) else (None, None)
    return SameFaces(parity.reference_faces, parity.found, parity.extra, least, median)


def _speed(timing: Timing, faces: Mapping[Path, Extracted]) -> dict[str, Any]:
    """The seconds of one side's turns, and the rates of the median turn."""
    count = sum(map(len, faces.values()))
    return {
        "seconds": timing.seconds,
        "images_per_s": len(faces) / timing.median,
        "faces_per_s": count / timing.median,
        "faces": count,  # embedded
    }


def _rows(figures: Mapping[str, Any], timings: Mapping[str, Timing], same: SameFaces) -> Iterator[Row]:
    yield Row("images", f"{figures['images']} of {figures['source']}")
    for reason, count in sorted(figures["left_out"].items()):
        yield Row("left out", f"{count}: {reason}")
    yield Row("device", "{device}; {backend}; {weights}, mode {mode}".format_map(figures))
    for name, timing in timings.items():
        rates = "{images_per_s:.1f} images/s, {faces_per_s:.1f} faces/s".format_map(figures[name])
        yield Row(name, f"{rates} ({timing.median:.2f} s a turn)")
    ratios = figures["ratios"]
    spread = f"{min(ratios):.2f} to {max(ratios):.2f} in {len(ratios)} turns"
    yield Row("ratio", f"{figures['ratio']:.2f} ({spread})")  # the reference's time divided by facepipe's
    shared = f"{same.found} of the reference's {same.reference_faces} (p {CONFIDENT:g}, IoU {SAME_IOU:g})"
    text = f"{shared}, {same.extra} extra"
    if same.cosine_min is not None:
        text += f"; embeddings of the same boxes: cosine at least {same.cosine_min:.6f}"
    yield Row("faces", text)


@dataclass
class Side:
    """A chain and its lists of photos. A call is one turn over all photos, within `context`; `advance(n)` reports n as
    done."""

    chain: FacepipeChain | ReferenceChain
    lists: Sequence[Sequence[Path]]
    advance: Callable[[int], None]
    context: Callable[[], AbstractContextManager[None]] = nullcontext
    faces: Mapping[Path, Extracted] = field(default_factory=dict)  # of the last turn

    def warm_up(self) -> None:
        """Runs once over a few photos, from as many lists as possible, and prepares the lists of the turns."""
        lists = self.lists[:_WARM_UP_IMAGES]
        images = -(-_WARM_UP_IMAGES // len(lists))
        self.chain.prepare([files[:images] for files in lists])
        with self.context():
            self.chain(range(len(lists)))
        self.chain.prepare(self.lists)

    def __call__(self) -> None:
        """Runs one turn. Call `warm_up` before."""
        with self.context():
            self.faces = self.chain(self._numbers())

    def _numbers(self) -> Iterator[int]:
        for number, files in enumerate(self.lists):
            yield number
            self.advance(len(files))


def take_sample(source: Path, settings: Settings, images: int) -> tuple[list[Path], Counter[str]]:
    """Samples at most `images` photos of a folder or manifest, deterministically. Returns those that both sides can
    read, and the number of the others by reason.

    Raises what `scan_source` raises.
    """
    files, chosen, left_out = list[Path](), list[Path](), Counter[str]()
    for ref in _spread(source, settings.source, images):
        if ref.rejected is not None:
            left_out[_refused(ref.rejected)] += 1
        elif is_address(ref.file):
            left_out["an object in a bucket"] += 1
        elif Path(ref.file) not in chosen:  # a manifest may name a file twice
            chosen.append(Path(ref.file))
    decoder = Decoder(settings.decode)
    with ThreadPoolExecutor(thread_count(settings.run.threads)) as pool:
        problems = pool.map(lambda file: _problem(file, decoder, settings.detect), chosen)
        for file, problem in zip(chosen, problems, strict=True):
            if problem is None:
                files.append(file)
            else:
                left_out[problem] += 1
    return files, left_out


def _spread(source: Path, settings: SourceSettings, images: int) -> Iterator[ImageRef]:
    """Every n-th row. Reads the source twice, so that memory does not grow with its rows."""
    rows = sum(1 for _ in scan_source(source, settings))
    count = min(rows, images)
    numbers = {step * rows // count for step in range(count)}
    return (ref for number, ref in enumerate(scan_source(source, settings)) if number in numbers)


def _problem(file: Path, decoder: Decoder, detect: DetectSettings) -> str | None:
    """Why the sides cannot be compared on the photo, or None."""
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
