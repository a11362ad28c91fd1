"""Face detection alone, from pixels to boxes, against facenet-pytorch's MTCNN on images of one size in one list.

    python scripts/bench/bench_detect.py --faces FOLDER --work FOLDER [--only a b c d] [--images 32] [--device cpu]

Both run in this process, with a thread per core. Asserts the same faces as bench_extract does.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from bench_common import interleave, paired_ratio, result, write_result
from bench_corpora import add_arguments, given, load_pictures, wanted
from detection_parity import our_faces
from extraction_parity import assert_same_faces
from facenet_pytorch import MTCNN
from facepipe_chain import benchmark_settings
from PIL import Image

from pipeline.config import RunSettings
from pipeline.evaluation.bench.parity import Faces, compare
from pipeline.evaluation.bench.reference import LIST_IMAGES, LIST_PIXELS, equal_sized, faces_of, make_reference
from pipeline.extraction.detection.cascade import MtcnnDetector
from pipeline.extraction.detection.networks import load_networks
from pipeline.models.weights import detector_files
from pipeline.runtime.device import resolve_device
from pipeline.types import ByteArray

OURS, REFERENCE = "facepipe", "reference"


def make_detectors(device: str) -> tuple[MtcnnDetector, MTCNN]:
    settings = benchmark_settings(device, 0, "casia-webface", 0)
    resolved = resolve_device(device)
    return MtcnnDetector(load_networks(detector_files(), resolved), settings.detect), make_reference(
        settings.detect, device
    )


def detect_ours(detector: MtcnnDetector, lists: Sequence[Sequence[ByteArray]]) -> list[Faces]:
    return [faces for images in lists for faces in our_faces(detector, images)]


def detect_reference(reference: MTCNN, lists: Sequence[Sequence[Image.Image]]) -> list[Faces]:
    """The faces of all images, in the order of the lists."""
    found: list[Faces] = []
    for images in lists:
        boxes, scores, landmarks = reference.detect(list(images), landmarks=True)
        found += [faces_of(*one) for one in zip(boxes, landmarks, scores, strict=True)]
    return found


def measure(files: Sequence[Path], device: str, repeats: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """The timings of both, and the figures; both get the same lists."""
    detector, reference = make_detectors(device)
    most = min(LIST_IMAGES, RunSettings().batch_images)
    pictures = [load_pictures(part) for part in equal_sized(files, most, LIST_PIXELS)]
    pixels = [[np.array(picture) for picture in part] for part in pictures]
    parity = compare(detect_reference(reference, pictures), detect_ours(detector, pixels))
    assert_same_faces(parity)
    timings = interleave(
        {
            OURS: lambda: detect_ours(detector, pixels),
            REFERENCE: lambda: detect_reference(reference, pictures),
        },
        repeats,
        device,
        warmup=0,  # the comparison was one
    )
    figures = {
        "images": parity.images,
        "reference_faces": parity.reference_faces,
        "missed": parity.reference_faces - parity.found,
        "extra": parity.extra,
        "ratio": paired_ratio(timings, REFERENCE, OURS),
        **{f"images_per_s_{name}": parity.images / timing["median"] for name, timing in timings.items()},
    }
    return timings, figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser, images=128)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    timings: dict[str, Any] = {}
    figures: dict[str, Any] = {}
    for name, files in wanted(arguments):
        taken, figures[name] = measure(files, arguments.device, arguments.repeats)
        timings |= {f"{name}_{variant}": timing for variant, timing in taken.items()}
        print(name, json.dumps(figures[name], indent=1), flush=True)
    print(write_result(result("detect", given(arguments), timings, figures, arguments.device), arguments.results))


if __name__ == "__main__":
    main()
