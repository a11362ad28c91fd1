"""Does the detector find what facenet-pytorch's MTCNN finds, how much sooner, and how much of what there is to find?

    python scripts/bench/bench_detect.py --faces FOLDER --work FOLDER [--question speed parity boxes] [--device cuda]

FOLDER of --faces holds lfw-view1/images and groups-with-boxes. Three questions, each with a result of its own:

detect         speed from pixels to boxes, both sides on the same lists of images of one size, a thread per core
detect_parity  the same faces on photos of LFW and group photos; the same boxes in shuffled batches of mixed sizes
detection      recall and precision on the annotated group photos, of faces of 40 px and more, and of all

Asserts the same faces as the reference (`comparison.assert_same_faces`), boxes within half a pixel in any batch, and
that photos one by one give as many faces as the evaluation counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from comparison import (
    assert_same_faces,
    largest_shift,
    our_faces,
    parity_figures,
    reference_faces,
)
from corpora import add_corpus_arguments, load_pictures, measure_corpora, read_sources
from facenet_pytorch import MTCNN
from harness import argument_parser, paired_ratio, settings_for, settings_of, write_result
from PIL import Image

from pipeline.config import DecodeSettings, RunSettings, Settings
from pipeline.evaluation.annotations import read_boxes
from pipeline.evaluation.bench.facepipe import comparable
from pipeline.evaluation.bench.harness import Timing, interleave
from pipeline.evaluation.bench.parity import Faces, Parity, compare
from pipeline.evaluation.bench.reference import LIST_IMAGES, LIST_PIXELS, equal_sized, faces_of, make_reference
from pipeline.evaluation.detection import report_detection
from pipeline.extraction.detection.cascade import MtcnnDetector
from pipeline.extraction.images.decode import decode_image
from pipeline.jobs.models import load_detector
from pipeline.models.weights import cache_folder
from pipeline.runtime.device import resolve_device
from pipeline.types import ByteArray, SilentProgress

OURS, REFERENCE = "facepipe", "reference"
QUESTIONS = ("speed", "parity", "boxes")
BATCH = 24
MOST_SHIFT_PX = 0.5


def make_detectors(device: str) -> tuple[MtcnnDetector, MTCNN]:
    settings = comparable(settings_for(device, "casia-webface")).detect
    networks = load_detector(resolve_device(device), cache_folder(None))
    return MtcnnDetector(networks, settings), make_reference(settings, device)


def detect_reference(reference: MTCNN, lists: Sequence[Sequence[Image.Image]]) -> list[Faces]:
    """The faces of all images, in the order of the lists."""
    faces: list[Faces] = []
    for images in lists:
        boxes, scores, landmarks = reference.detect(list(images), landmarks=True)
        faces += [faces_of(*one) for one in zip(boxes, landmarks, scores, strict=True)]
    return faces


def speed(files: Sequence[Path], device: str, repeats: int) -> tuple[dict[str, Timing], dict[str, Any]]:
    """The timings of both sides, and the figures."""
    detector, reference = make_detectors(device)
    most = min(LIST_IMAGES, RunSettings().batch_images)
    pictures = [load_pictures(part) for part in equal_sized(files, most, LIST_PIXELS)]
    pixels = [[np.array(picture) for picture in part] for part in pictures]

    def detect_ours() -> list[Faces]:
        return [faces for images in pixels for faces in our_faces(detector, images)]

    parity = compare(detect_reference(reference, pictures), detect_ours())
    assert_same_faces(parity)
    sides = {OURS: detect_ours, REFERENCE: lambda: detect_reference(reference, pictures)}
    timings = interleave(sides, repeats, device, warmup=0)  # the comparison was the warm-up
    rates = {f"images_per_s_{name}": parity.images / timing.median for name, timing in timings.items()}
    return timings, {**parity_figures(parity), "ratio": paired_ratio(timings[REFERENCE], timings[OURS]), **rates}


def parity(faces: Path, photos: int, device: str) -> dict[str, Any]:
    """Both sides on every k-th photo of LFW and on all group photos. Raises AssertionError where they differ."""
    detector, reference = make_detectors(device)
    sources = read_sources(faces)
    files = {"lfw": sources.portraits[:: max(1, len(sources.portraits) // photos)][:photos], "groups": sources.groups}
    images = {name: [_pixels(file) for file in part] for name, part in files.items()}
    parities = {name: _compared(detector, reference, part) for name, part in images.items()}
    total = compare([], [])
    for one in parities.values():
        for name, value in vars(one).items():
            setattr(total, name, getattr(total, name) + value)
    shift = largest_batch_shift(detector, [*images["groups"], *images["lfw"][:60]])
    assert_same_faces(total)
    assert shift <= MOST_SHIFT_PX, shift
    figures = {name: parity_figures(one) for name, one in {**parities, "all": total}.items()}
    return {**figures, "largest_batch_shift_px": shift}


def _pixels(file: Path) -> ByteArray:
    return decode_image(file.read_bytes(), DecodeSettings()).pixels


def _compared(detector: MtcnnDetector, reference: MTCNN, images: Sequence[ByteArray]) -> Parity:
    return compare([reference_faces(reference, pixels) for pixels in images], _in_batches(detector, images))


def _in_batches(detector: MtcnnDetector, images: Sequence[ByteArray]) -> list[Faces]:
    starts = range(0, len(images), BATCH)
    return [faces for start in starts for faces in our_faces(detector, images[start : start + BATCH])]


def largest_batch_shift(detector: MtcnnDetector, images: Sequence[ByteArray], seed: int = 0) -> float:
    """The largest difference in pixels between boxes found alone and in shuffled batches."""
    order = np.random.default_rng(seed).permutation(len(images))
    together = _in_batches(detector, [images[i] for i in order])
    alone = [our_faces(detector, [images[i]])[0] for i in order]
    return max(largest_shift(a, b) for a, b in zip(alone, together, strict=True))


def annotated(folder: Path) -> dict[str, Any]:
    """Recall and precision on the photos of `folder` with boxes as imglab writes them."""
    figures = {f"from_{least}_px": _measured(folder, least) for least in (40, 0)}
    every = figures["from_0_px"]
    detector = MtcnnDetector(load_detector("cpu", cache_folder(None)), Settings().detect)
    files = [image.file for image in read_boxes([folder], None)]
    one_by_one = sum(len(our_faces(detector, [_pixels(file)])[0].boxes) for file in files)
    counted = every["found"] + every["false_alarms"] + every["detections_to_ignore"]
    assert counted == one_by_one, f"photos one by one have {one_by_one} faces, the evaluation counted {counted}"
    return figures


def _measured(folder: Path, least_px: float) -> dict[str, Any]:
    report = report_detection([folder], Settings(), SilentProgress(), min_px=least_px)
    assert not report.as_dict()["skipped"], report.as_dict()
    names = ("images", "faces", "found", "false_alarms", "recall", "precision", "average_precision")
    figures = {name: getattr(report.result, name) for name in names}
    return {**figures, "detections_to_ignore": report.result.ignored_detections}


def main() -> None:
    parser = argument_parser(__doc__)
    add_corpus_arguments(parser, images=128, repeats=5)
    parser.add_argument("--question", nargs="+", choices=QUESTIONS, default=QUESTIONS)
    parser.add_argument("--photos", type=int, default=300, help="of LFW, for the parity")
    arguments = parser.parse_args()
    if "speed" in arguments.question:
        measured = measure_corpora(arguments, lambda files: speed(files, arguments.device, arguments.repeats))
        write_result("detect", settings_of(arguments), *measured, arguments)
    if "parity" in arguments.question:
        figures = parity(arguments.faces, arguments.photos, arguments.device)
        write_result("detect_parity", {"photos": arguments.photos}, {}, figures, arguments)
    if "boxes" in arguments.question:
        figures = annotated(arguments.faces / "groups-with-boxes")
        write_result("detection", {"photos": "groups-with-boxes"}, {}, figures, arguments)


if __name__ == "__main__":
    main()
