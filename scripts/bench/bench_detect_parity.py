"""Does our detector find what `facenet_pytorch.MTCNN` finds, and does it batch as it should?

    python scripts/bench/bench_detect_parity.py --faces FOLDER [--photos 300] [--device cpu]

FOLDER holds lfw-view1/ and groups-with-boxes/; the two portraits of the matplotlib and scikit-image wheels come
with them. Asserts: at least 99 % of the reference's faces of probability 0.95 found at IoU 0.9, at most 1 % of ours
where it has nothing, landmarks within 1 % of the eyes' distance (median), the same boxes within half a pixel in
shuffled batches of mixed sizes as alone, and calls of the networks that do not grow with the number of images.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from bench_common import result, write_result
from detection_parity import largest_shift, our_faces, reference_faces

from pipeline.config import DecodeSettings, DetectSettings
from pipeline.evaluation.bench.parity import Faces, Parity, compare
from pipeline.evaluation.bench.reference import make_reference
from pipeline.extraction.detection.cascade import CROPS_PER_CALL, DetectorCounts, MtcnnDetector
from pipeline.extraction.detection.networks import load_networks
from pipeline.extraction.images.batch import ImageBatch
from pipeline.extraction.images.decode import decode_image
from pipeline.models.weights import detector_files
from pipeline.types import ByteArray

BATCH = 24
Cost: TypeAlias = dict[str, Any]  # DetectorCounts of one batch
WANT_FOUND, WANT_EXTRA, WANT_LANDMARKS, WANT_SHIFT_PX = 0.99, 0.01, 0.01, 0.5


def wheel_portraits() -> list[Path]:
    """Grace Hopper and Eileen Collins, public domain."""
    return [
        _package_folder("matplotlib") / "mpl-data/sample_data/grace_hopper.jpg",
        _package_folder("skimage") / "data/astronaut.png",
    ]


def _package_folder(name: str) -> Path:
    spec = find_spec(name)
    if spec is None or spec.origin is None:
        raise SystemExit(f'{name} is not installed: pip install "facepipe[demo]"')
    return Path(spec.origin).parent


def photo_files(faces: Path, photos: int) -> dict[str, list[Path]]:
    """The photos by source; of LFW every k-th in sorted order."""
    lfw = sorted((faces / "lfw-view1" / "images").glob("*/*.jpg"))
    groups = sorted((faces / "groups-with-boxes").glob("*.jpg"))
    if len(lfw) < photos or not groups:
        raise SystemExit(f"{faces} does not hold lfw-view1/images with {photos} photos and groups-with-boxes")
    return {"lfw": lfw[:: len(lfw) // photos][:photos], "groups": groups, "wheels": wheel_portraits()}


def read(files: Sequence[Path]) -> list[ByteArray]:
    return [decode_image(file.read_bytes(), DecodeSettings()).pixels for file in files]


def detect_in_batches(detector: MtcnnDetector, images: Sequence[ByteArray]) -> tuple[list[Faces], list[Cost]]:
    """The faces of all images, and what each batch cost."""
    found: list[Faces] = []
    costs: list[Cost] = []
    for start in range(0, len(images), BATCH):
        part = images[start : start + BATCH]
        detector.counts = DetectorCounts()
        found += our_faces(detector, part)
        costs.append(asdict(detector.counts))
    return found, costs


def assert_calls(costs: Sequence[Cost], device: torch.device) -> None:
    """R- and O-Net run at most once per full sub-batch of crops, and once more."""
    for cost in costs:
        for net in ("rnet", "onet"):
            assert cost[net]["calls"] <= cost[net]["inputs"] // CROPS_PER_CALL[device.type] + 1, cost


def pnet_calls_by_images(detector: MtcnnDetector) -> dict[str, int]:
    """P-Net's calls for more and more small images that fit into the canvases of one call."""
    rng = np.random.default_rng(0)
    images = [rng.integers(0, 256, (120, 120, 3), dtype=np.uint8) for _ in range(16)]
    calls = {}
    for count in (1, 2, 4, 8, 16):
        before = detector.counts.pnet.calls
        detector(ImageBatch(images[:count], detector.networks.device))
        calls[str(count)] = detector.counts.pnet.calls - before
    assert len(set(calls.values())) == 1, calls
    return calls


def largest_batch_shift(detector: MtcnnDetector, images: Sequence[ByteArray], seed: int = 0) -> float:
    """The largest difference in pixels between boxes found alone and in shuffled batches."""
    order = np.random.default_rng(seed).permutation(len(images))
    together, _ = detect_in_batches(detector, [images[i] for i in order])
    alone = [our_faces(detector, [images[i]])[0] for i in order]
    return max(largest_shift(a, b) for a, b in zip(alone, together, strict=True))


def figures_of(parity: Parity) -> dict[str, Any]:
    return {
        "images": parity.images,
        "reference_faces": parity.reference_faces,
        "our_faces": parity.our_faces,
        "missed": parity.reference_faces - parity.found,
        "extra": parity.extra,
        "found_share": parity.found_share,
        "extra_share": parity.extra_share,
        "landmark_error_median": parity.landmark_median,
    }


def merged(parities: Sequence[Parity]) -> Parity:
    total = Parity()
    for one in parities:
        for name, value in vars(one).items():
            setattr(total, name, getattr(total, name) + value)
    return total


def main() -> None:
    arguments = _arguments()
    settings = DetectSettings(min_confidence=DetectSettings().onet_threshold)
    detector = MtcnnDetector(load_networks(detector_files(), arguments.device), settings)
    reference = make_reference(settings, arguments.device)
    by_source: dict[str, Parity] = {}
    costs: list[Cost] = []
    images: dict[str, list[ByteArray]] = {}
    for source, files in photo_files(arguments.faces, arguments.photos).items():
        images[source] = read(files)
        ours, cost = detect_in_batches(detector, images[source])
        by_source[source] = compare([reference_faces(reference, pixels) for pixels in images[source]], ours)
        costs += cost
    mixed = [*images["groups"], *images["wheels"], *images["lfw"][: arguments.mixed]]
    shift = largest_batch_shift(detector, mixed)
    total = merged(list(by_source.values()))
    figures = {name: figures_of(parity) for name, parity in {**by_source, "all": total}.items()} | {
        "largest_batch_shift_px": shift if math.isfinite(shift) else None,
        "mixed_batch_images": len(mixed),
        "calls_per_batch": costs,
        "pnet_calls_by_images": pnet_calls_by_images(detector),
    }
    print(write_result(result("detect_parity", vars_of(arguments), {}, figures, arguments.device)))
    for name, parity in {**by_source, "all": total}.items():
        print(name, figures_of(parity))
    print(f"largest difference between batch and single: {shift:.4f} px over {len(mixed)} images")
    assert total.found_share >= WANT_FOUND, total.found_share
    assert total.extra_share <= WANT_EXTRA, total.extra_share
    assert total.landmark_median <= WANT_LANDMARKS, total.landmark_median
    assert shift <= WANT_SHIFT_PX, shift
    assert_calls(costs, detector.networks.device)


def vars_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """The arguments, without where the photos lie on this machine."""
    return {key: value for key, value in vars(arguments).items() if not isinstance(value, Path)}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faces", type=Path, required=True, help="the folder of photos")
    parser.add_argument("--photos", type=int, default=300, help="how many of LFW")
    parser.add_argument("--mixed", type=int, default=60, help="how many of these in the batches of mixed sizes")
    parser.add_argument("--device", default="cpu")
    return parser.parse_args()


if __name__ == "__main__":
    main()
