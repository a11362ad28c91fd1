"""What the crop costs in accuracy: each way of `crop_recipes` to cut the same faces, on the training people of LFW
view 1 alone.

    python scripts/bench_crops.py --faces FOLDER/lfw-view1 --cache FOLDER [--weights casia-webface]

Every photo of the people of pairsDevTrain.txt is detected once; its face nearest the centre is cut and embedded in
every way. The embeddings are kept in the cache folder, part by part, so that the work goes on where it was stopped.

FNMR at FMR 1e-3 and 1e-4: over all pairs of these photos; a photo without a face matches nothing. Accuracy: on the
2,200 pairs, at the threshold best on the other nine tenths of the people's pairs. `+mirror` is the mean of a face's
embedding and its mirror image's, of norm 1. Asserts that two ways give the same faces, and that every way's vectors
have norm 1. Which photos have no face with a probability of 0.95 is told beside it.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from bench_accuracy import read_protocol, rows_of
from bench_common import result, write_result
from crop_recipes import FLIPPED, RECIPES
from lfw_embeddings import BATCH, Portraits, _nearest_centre

from pipeline.config import Settings
from pipeline.decode import decode_image
from pipeline.detect import MtcnnDetector
from pipeline.device import resolve_device, set_threads
from pipeline.embed import Embedder, load_embedder
from pipeline.evaluation.every_pair import all_distances
from pipeline.evaluation.pair_lists import Pair
from pipeline.evaluation.rates import best_threshold, decisions_right, error_rates, squared_distances
from pipeline.imagebatch import ImageBatch
from pipeline.models.mtcnn import load_networks
from pipeline.models.weights import cache_folder, detector_files, resolve
from pipeline.types import FloatArray

FMRS = (1e-3, 1e-4)
FOLDS = 10
STRICT = 0.95  # the least probability of a face that facenet-pytorch's users often ask for


def embed_part(
    files: Sequence[Path], detector: MtcnnDetector, embedder: Embedder, settings: Settings
) -> dict[str, FloatArray]:
    """By recipe [n, d]; NaN where no face was found. `scores` [n] are the detector's."""
    images = [decode_image(file.read_bytes(), settings.decode) for file in files]
    batch = ImageBatch([image.pixels for image in images], embedder.device)
    found = _nearest_centre(detector(batch), images)
    rows = found.image_index.cpu().numpy()
    made = {"scores": np.full(len(files), np.nan, np.float32)}
    made["scores"][rows] = found.scores.cpu().numpy()
    for name, recipe in RECIPES.items():
        made[name] = np.full((len(files), embedder.embedding_size), np.nan, np.float32)
        if len(rows):
            made[name][rows] = embedder(recipe(batch, found)).cpu().numpy()
    return made


def embed_all(files: Sequence[Path], args: argparse.Namespace) -> dict[str, FloatArray]:
    settings, device = Settings(), resolve_device(args.device)
    resolved = resolve(args.weights, None, cache_folder(None))
    embedder = load_embedder(resolved, device)
    detector = MtcnnDetector(load_networks(detector_files(), args.device), settings.detect)
    args.cache.mkdir(parents=True, exist_ok=True)
    parts = []
    for start in range(0, len(files), BATCH):
        file = args.cache / f"{resolved.name}-{start:06d}.npz"
        if not file.exists():
            made = embed_part(files[start : start + BATCH], detector, embedder, settings)
            partial = file.with_suffix(".partial.npz")
            np.savez(partial, **made)
            partial.rename(file)
            print(f"{min(start + BATCH, len(files))} of {len(files)} photos", flush=True)
        with np.load(file) as data:
            parts.append({name: data[name] for name in data.files})
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def with_means(found: dict[str, FloatArray]) -> dict[str, FloatArray]:
    """The ways to compare: the mirror images alone are none."""
    ways = {name: e for name, e in found.items() if name in RECIPES and not name.endswith("-mirror")}
    for name in FLIPPED:
        both = found[name] + found[f"{name}-mirror"]
        ways[f"{name}+mirror"] = both / np.linalg.norm(both, axis=1, keepdims=True)
    return ways


def fold_accuracy(distances: FloatArray, pairs: Sequence[Pair]) -> float:
    """Each fold at the threshold that is best on the others."""
    genuine = np.array([pair.genuine for pair in pairs])
    fold = np.arange(len(pairs)) % FOLDS
    right = [
        decisions_right(
            distances[fold == k], genuine[fold == k], best_threshold(distances[fold != k], genuine[fold != k])
        )
        for k in range(FOLDS)
    ]
    return float(np.concatenate(right).mean())


def figures(names: list[str], ways: dict[str, FloatArray], pairs: Sequence[Pair], people: Sequence[str]) -> Any:
    table = {}
    for way, embeddings in ways.items():
        portraits = Portraits(names, {way: embeddings}, np.empty((0, 3), np.float32))
        row = portraits.row
        sides = zip(*((pair.first, pair.second) for pair in pairs), strict=True)
        first, second = ([row[f"{name}_{number:04d}"] for name, number in side] for side in sides)
        rows, owner = rows_of(portraits, people)
        genuine, impostor, _ = all_distances(embeddings[rows], owner)
        table[way] = {
            "accuracy": fold_accuracy(squared_distances(embeddings[first], embeddings[second]), pairs),
            **{f"fnmr_at_{fmr:g}": error_rates(genuine, impostor, fmr).fnmr for fmr in FMRS},
            "genuine_pairs": len(genuine),
            "impostor_pairs": len(impostor),
        }
        print(way, {key: round(value, 5) for key, value in table[way].items()}, flush=True)
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faces", type=Path, required=True)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--weights", default="casia-webface")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    set_threads(args.threads)
    protocol = read_protocol(args.faces, None)
    people = protocol.people(protocol.train)
    files = [file for name in people for file in sorted((args.faces / "images" / name).glob("*.jpg"))]
    found = embed_all(files, args)
    faces = ~np.isnan(found["scores"])
    for name in RECIPES:
        norms = np.linalg.norm(found[name][faces], axis=1)
        assert np.abs(norms - 1).max() < 1e-4, name
        assert np.isnan(found[name][~faces]).all(), name
    table = figures([file.stem for file in files], with_means(found), protocol.train, people)
    about = {
        "photos": len(files),
        "photos_without_face": int((~faces).sum()),
        f"photos_without_face_of_{STRICT}": int((~(found["scores"] >= STRICT)).sum()),
    }
    settings = {"weights": args.weights, "faces": "lfw-view1, people of pairsDevTrain", **about}
    print(write_result(result("crops", settings, {}, {"ways": table})))


if __name__ == "__main__":
    torch.set_grad_enabled(False)
    main()
