"""What the crop costs in accuracy: each way of `crop_recipes` to cut the same faces, on the training people of LFW
view 1 alone.

    python scripts/bench_crops.py --faces FOLDER/lfw-view1 --cache FOLDER [--weights casia-webface] [--only WAY ...]

Every photo of the people of pairsDevTrain.txt is detected once; its face nearest the centre is cut and embedded in
every way. Detections and embeddings are kept in the cache folder, one file a way, so that several of these can run
side by side with `--only`, and the work goes on where it was stopped.

FNMR at FMR 1e-3 and 1e-4: over all pairs of these photos; a photo without a face matches nothing. Accuracy: on the
2,200 pairs, at the threshold best on the other nine tenths of the pairs. "averaged with its mirror image" is the mean
of a face's embedding and its mirror image's, of norm 1. With one way to cut, other ways to choose a photo's face are
compared as well: also those of a probability below the default 0.95, the largest, and facenet-pytorch's
`center_weighted_size`. "centred": less the mean embedding of other people (`pipeline/models/centre.py`). Asserts that
every way's vectors have norm 1, and are there for the same photos.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from bench_accuracy import pair_distances, read_protocol, rows_of
from bench_common import result, write_result
from crop_recipes import COMPARED, MIRROR, RECIPES, Recipe
from lfw_embeddings import BATCH, Portraits

from pipeline.config import Settings
from pipeline.decode import decode_image
from pipeline.detect import MtcnnDetector
from pipeline.device import resolve_device, set_threads
from pipeline.embed import Embedder, load_embedder
from pipeline.evaluation.every_pair import all_distances
from pipeline.evaluation.pair_lists import Pair
from pipeline.evaluation.rates import best_threshold, decisions_right, error_rates
from pipeline.imagebatch import ImageBatch
from pipeline.models.mtcnn import load_networks
from pipeline.models.weights import cache_folder, detector_files, resolve
from pipeline.types import DecodedImage, Detections, FloatArray, IntArray

FMRS = (1e-3, 1e-4)
FOLDS = 10
SEED = 0
STRICT = Settings().detect.min_confidence
NEAREST = "nearest the centre"
RECIPE = "box, margin 32"  # with which the ways to choose a face are compared
# How a photo's face is chosen, beside the default: which, and of which probability at least.
CHOICES = {
    "nearest the centre, any probability": (NEAREST, 0.0),
    "largest": ("largest", STRICT),
    "centre-weighted size": ("centre-weighted size", STRICT),
}


def batches(files: Sequence[Path], device: torch.device) -> Iterator[tuple[int, list[DecodedImage], ImageBatch]]:
    settings = Settings().decode
    for start in range(0, len(files), BATCH):
        images = [decode_image(file.read_bytes(), settings) for file in files[start : start + BATCH]]
        yield start, images, ImageBatch([image.pixels for image in images], device)


def save(file: Path, **arrays: FloatArray) -> None:
    partial = file.with_suffix(".partial.npz")
    np.savez(partial, **arrays)
    partial.rename(file)


def detect_all(files: Sequence[Path], file: Path, device: torch.device) -> tuple[Detections, FloatArray]:
    """All faces of every probability, `image_index` the photo's number, and where each lies: [m, 2], its box's centre
    from its photo's centre in pixels."""
    if not file.exists():
        detector = MtcnnDetector(
            load_networks(detector_files(), device.type), replace(Settings().detect, min_confidence=0.0)
        )
        parts = []
        for start, images, batch in batches(files, device):
            found = detector(batch)
            centres = torch.tensor([(image.width / 2, image.height / 2) for image in images], device=device)
            offsets = (found.boxes[:, :2] + found.boxes[:, 2:]) / 2 - centres[found.image_index]
            parts.append([found.image_index + start, found.boxes, found.landmarks, found.scores, offsets])
        arrays = (torch.cat(each).cpu().numpy() for each in zip(*parts, strict=True))
        save(file, **dict(zip(("image_index", "boxes", "landmarks", "scores", "offsets"), arrays, strict=True)))
    with np.load(file) as data:
        names = ("image_index", "boxes", "landmarks", "scores")
        return Detections(*(torch.from_numpy(data[name]) for name in names)), data["offsets"]


def choose(found: Detections, offsets: FloatArray, which: str, least: float) -> Detections:
    """At most one face a photo, of those with a probability of at least `least`."""
    size = (found.boxes[:, 2:] - found.boxes[:, :2]).prod(dim=1)
    distance = torch.from_numpy(offsets).square().sum(dim=1)
    # The last is facenet-pytorch's `center_weighted_size`.
    worth = {NEAREST: -distance, "largest": size, "centre-weighted size": size - 2 * distance}[which]
    best: dict[int, int] = {}
    for face in torch.argsort(worth, stable=True).tolist():
        if found.scores[face] >= least:
            best[int(found.image_index[face])] = face  # the last one stays
    return pick(found, torch.tensor([best[photo] for photo in sorted(best)]))


def embed_all(files: Sequence[Path], chosen: Detections, embedder: Embedder, recipe: Recipe, file: Path) -> FloatArray:
    """[n, d]; NaN where no face was found."""
    if not file.exists():
        made = np.full((len(files), embedder.embedding_size), np.nan, np.float32)
        for start, images, batch in batches(files, embedder.device):
            faces = part_of(chosen, start, start + len(images))
            if len(faces):
                crops = recipe(batch, faces)
                embedder.input_size = crops.shape[-1]  # its network takes any, and ends in a mean over the places
                made[start + faces.image_index.numpy()] = embedder(crops).cpu().numpy()
        save(file, embeddings=made)
    with np.load(file) as data:
        embeddings: FloatArray = data["embeddings"]
    faces = np.isin(np.arange(len(files)), chosen.image_index.numpy())
    assert np.abs(np.linalg.norm(embeddings[faces], axis=1) - 1).max() < 1e-4, file
    assert np.isnan(embeddings[~faces]).all(), file
    return embeddings


def embed_chosen(
    files: Sequence[Path], chosen: Detections, usual: Detections, known: FloatArray, embedder: Embedder, file: Path
) -> FloatArray:
    """`embed_all` of the faces chosen, in the way of `RECIPE`; `known` are the embeddings of the usual ones."""
    same = dict(zip(usual.image_index.tolist(), usual.boxes.tolist(), strict=True))
    faces = zip(chosen.image_index.tolist(), chosen.boxes.tolist(), strict=True)
    other = torch.tensor([row for row, (photo, box) in enumerate(faces) if same.get(photo) != box], dtype=torch.int64)
    made = embed_all(files, pick(chosen, other), embedder, RECIPES[RECIPE], file)
    there = np.isin(np.arange(len(files)), chosen.image_index.numpy())
    return np.where(there[:, None], np.where(np.isnan(made), known, made), np.float32(np.nan))


def pick(found: Detections, rows: torch.Tensor) -> Detections:
    return Detections(found.image_index[rows], found.boxes[rows], found.landmarks[rows], found.scores[rows])


def part_of(found: Detections, start: int, end: int) -> Detections:
    """The faces of the photos from `start` to `end`, their image index counted from `start`."""
    rows = ((found.image_index >= start) & (found.image_index < end)).nonzero()[:, 0]
    return replace(pick(found, rows), image_index=found.image_index[rows] - start)


def ways_of(made: dict[str, FloatArray]) -> dict[str, FloatArray]:
    """The ways to compare: the mirror images alone are none."""
    ways = {name: e for name, e in made.items() if not name.endswith(MIRROR)}
    for name in [name for name in ways if name + MIRROR in made]:
        both = made[name] + made[name + MIRROR]
        ways[f"{name}, averaged with its mirror image"] = both / np.linalg.norm(both, axis=1, keepdims=True)
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


def rates(embeddings: FloatArray, owner: IntArray) -> list[float]:
    """FNMR at `FMRS` over all pairs."""
    genuine, impostor, _ = all_distances(embeddings, owner)
    return [error_rates(genuine, impostor, fmr).fnmr for fmr in FMRS]


def centred_rates(embeddings: FloatArray, owner: IntArray) -> list[float]:
    """The mean of both halves of the people, each less the mean embedding of the other half."""
    half = np.random.default_rng(SEED).permutation(owner.max() + 1)[owner] % 2 == 0
    found = []
    for measured, fitted in ((half, ~half), (~half, half)):
        centred = embeddings[measured] - np.nanmean(embeddings[fitted], axis=0)
        found.append(rates(centred / np.linalg.norm(centred, axis=1, keepdims=True), owner[measured]))
    return [float(each) for each in np.mean(found, axis=0)]


def figures(names: list[str], ways: dict[str, FloatArray], pairs: Sequence[Pair], people: Sequence[str]) -> Any:
    table = {}
    for way, embeddings in ways.items():
        portraits = Portraits(names, {way: embeddings})
        rows, owner = rows_of(portraits, people)
        plain, centred = rates(embeddings[rows], owner), centred_rates(embeddings[rows], owner)
        table[way] = {
            "accuracy": fold_accuracy(pair_distances(portraits, embeddings, pairs), pairs),
            **{f"fnmr_at_{fmr:g}": rate for fmr, rate in zip(FMRS, plain, strict=True)},
            **{f"centred_fnmr_at_{fmr:g}": rate for fmr, rate in zip(FMRS, centred, strict=True)},
        }
        print(way, {key: round(value, 4) for key, value in table[way].items()}, flush=True)
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faces", type=Path, required=True)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--weights", default="casia-webface")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", nargs="+", choices=RECIPES, metavar="WAY", help="and write no result")
    args = parser.parse_args()
    set_threads(args.threads)
    args.cache.mkdir(parents=True, exist_ok=True)
    protocol = read_protocol(args.faces, None)
    people = protocol.people(protocol.train)
    files = [file for name in people for file in sorted((args.faces / "images" / name).glob("*.jpg"))]
    device = resolve_device(args.device)
    resolved = resolve(args.weights, None, cache_folder(None))
    embedder = load_embedder(resolved, device)
    found, offsets = detect_all(files, args.cache / "faces.npz", device)

    usual = choose(found, offsets, NEAREST, STRICT)

    def file_of(name: str) -> Path:
        return args.cache / f"{resolved.name}, {name}.npz"

    made = {}
    for name in args.only or COMPARED:
        print(name, flush=True)
        made[name] = embed_all(files, usual, embedder, RECIPES[name], file_of(name))
    for name, choice in {} if args.only else CHOICES.items():
        name = f"{RECIPE}, {name}"
        chosen = choose(found, offsets, *choice)
        made[name] = embed_chosen(files, chosen, usual, made[RECIPE], embedder, file_of(name))
    table = figures([file.stem for file in files], ways_of(made), protocol.train, people)
    settings = {"weights": args.weights, "faces": "lfw-view1, people of pairsDevTrain", "photos": len(files)}
    if not args.only:
        print(write_result(result("crops", settings, {}, {"ways": table})))


if __name__ == "__main__":
    torch.set_grad_enabled(False)
    main()
