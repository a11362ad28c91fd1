"""Are facepipe's detector and crops as accurate as facenet-pytorch's, with the same weights? On LFW, view 1.

    python scripts/bench/bench_accuracy.py --faces FOLDER/lfw-view1 [--weights casia-webface] [--device cuda]

FOLDER/lfw-view1 holds images/, pairsDevTrain.txt and pairsDevTest.txt. The reference is
`facenet_pytorch.MTCNN(keep_all=True)` with facepipe's thresholds, and its own crops; both take margins of 14 and 32
pixels, and neither subtracts the weights' centre. (What `facepipe run` stores is centred: `bench_stores`.)

Asserts that facepipe is not worse on the test pairs, by McNemar's exact test (p > 0.05).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from harness import argument_parser, write_result
from lfw import Portraits, Protocol, accuracy, all_pairs, read_protocol

from pipeline.config import Settings, load_settings
from pipeline.evaluation.bench.parity import Extracted
from pipeline.evaluation.bench.reference import ReferenceChain, equal_sized, image_size
from pipeline.evaluation.photos.portraits import extract_portraits
from pipeline.evaluation.statistics import mcnemar_exact
from pipeline.extraction.images.decode import Decoder
from pipeline.jobs.models import load_extractor
from pipeline.jobs.store_identity import make_identity
from pipeline.models.weights import ResolvedWeights, cache_folder, resolve
from pipeline.types import FloatArray

MARGINS = (14, 32)
OURS, REFERENCE = "ours", "reference"
SIGNIFICANT = 0.05
LIST_IMAGES, LIST_PIXELS = 32, 2_000_000


def our_portraits(files: Sequence[Path], settings: Settings) -> Portraits:
    extractor = load_extractor(settings, make_identity(settings), Path())
    portraits = extract_portraits(extractor, Decoder(settings.decode), {file.stem: file for file in files})
    assert not portraits.skipped, portraits.skipped
    return Portraits(list(portraits.paths), portraits.embeddings)


def reference_portraits(files: Sequence[Path], settings: Settings, weights: ResolvedWeights) -> Portraits:
    chain = ReferenceChain(weights, settings.detect, settings.align.margin_px, settings.run.device)
    lists = equal_sized(files, LIST_IMAGES, LIST_PIXELS)
    chain.prepare(lists)
    faces = chain(range(len(lists)))
    size = weights.weight_set.embedding_size
    return Portraits([file.stem for file in files], np.stack([_central(faces[file], file, size) for file in files]))


def _central(faces: Extracted, file: Path, size: int) -> FloatArray:
    """[size] of the face nearest the photo's centre; NaN without a face."""
    if not len(faces):
        return np.full(size, np.nan, np.float32)
    offsets = faces.boxes[:, :2] + faces.boxes[:, 2:] - np.array(image_size(file))
    return np.asarray(faces.embeddings[(offsets**2).sum(axis=1).argmin()])


def compare(portraits: dict[str, Portraits], protocol: Protocol) -> dict[str, Any]:
    """The figures of both sides at each margin ("ours-14", ...), and McNemar's test between them."""
    figures: dict[str, Any] = {"photos_without_face": {key: one.without_face for key, one in portraits.items()}}
    for margin in MARGINS:
        right = {}
        for side in (OURS, REFERENCE):
            key = f"{side}-{margin}"
            listed, right[side] = accuracy(portraits[key], protocol)
            figures[key] = {**listed, **all_pairs(portraits[key], protocol)}
        only_ours, only_reference, p = mcnemar_exact(right[OURS], right[REFERENCE])
        figures[f"mcnemar-{margin}"] = {"only_ours_right": only_ours, "only_reference_right": only_reference, "p": p}
    return figures


def check(figures: dict[str, Any]) -> None:
    """Raises AssertionError where facepipe is worse than the reference."""
    for margin in MARGINS:
        test = figures[f"mcnemar-{margin}"]
        worse = test["only_reference_right"] > test["only_ours_right"]
        assert not (worse and test["p"] <= SIGNIFICANT), f"worse than the reference at margin {margin}: {test}"


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--faces", type=Path, required=True, help="the folder lfw-view1")
    parser.add_argument("--weights", default="casia-webface", help="of both sides")
    parser.add_argument("--pairs", type=int, help="only the first so many genuine and impostor pairs of each list")
    arguments = parser.parse_args()
    weights = resolve(arguments.weights, None, cache_folder(None))
    protocol = read_protocol(arguments.faces, arguments.pairs)
    files, portraits = protocol.files(arguments.faces / "images"), dict[str, Portraits]()
    for margin in MARGINS:
        flags = {"run.device": arguments.device, "model.weights": arguments.weights, "align.margin_px": margin}
        settings = load_settings(flags={**flags, "embed.centre": False})
        portraits[f"{OURS}-{margin}"] = our_portraits(files, settings)
        portraits[f"{REFERENCE}-{margin}"] = reference_portraits(files, settings, weights)
    figures = {"photos": len(files), **compare(portraits, protocol)}
    about = {"weights": weights.name, "weights_sha256": weights.sha256, "margins": MARGINS, "pairs": arguments.pairs}
    write_result("accuracy", {**about, "detect": asdict(settings.detect)}, {}, figures, arguments)
    check(figures)


if __name__ == "__main__":
    main()
