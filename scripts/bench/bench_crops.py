"""What the crop costs in accuracy: each way of `crop_recipes` to cut the same faces, on the training people of LFW
view 1 alone.

    python scripts/bench/bench_crops.py --faces FOLDER/lfw-view1 --cache FOLDER [--weights WEIGHTS] [--only WAY ...]

Every photo of the people of pairsDevTrain.txt is detected once; its face nearest the centre is cut and embedded in
every way. Detections and embeddings are kept in the cache folder, one file a way, so that several of these can run
side by side with `--only`, and the work goes on where it was stopped.

FNMR at FMR 1e-3 and 1e-4: over all pairs of each half of the people, the mean of both halves; "centred": each half less
the mean embedding of the other (`pipeline/models/centre.py`). A photo without a face matches nothing. Accuracy: on the
2,200 pairs, at the threshold best on the other nine tenths of the pairs. "averaged with its mirror image" is the mean
of a face's embedding and its mirror image's, of norm 1. With one way to cut, other ways to choose a photo's face are
compared as well: also those of a probability below the default 0.95, the largest, and facenet-pytorch's
`center_weighted_size`. Asserts that every way's vectors have norm 1, and are there for the same photos.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from bench_accuracy import pair_distances, read_protocol, rows_of
from bench_common import result, write_result
from crop_recipes import COMPARED, MIRROR, RECIPES, Recipe
from lfw_embeddings import BATCH, Portraits, pick

from pipeline.config import Settings
from pipeline.evaluation.pairs.distances import all_distances
from pipeline.evaluation.pairs.lists import Pair
from pipeline.evaluation.statistics.rates import error_rates, folded_accuracy
from pipeline.extraction.detection.cascade import MtcnnDetector
from pipeline.extraction.detection.networks import load_networks
from pipeline.extraction.embed import Embedder, load_embedder
from pipeline.extraction.images.batch import ImageBatch
from pipeline.extraction.images.decode import decode_image
from pipeline.models.registry import BOX
from pipeline.models.weights import cache_folder, detector_files, resolve
from pipeline.runtime.device import set_threads
from pipeline.types import DecodedImage, Detections, FloatArray, IntArray

FMRS = (1e-3, 1e-4)
FOLDS = 10
SEED = 0
STRICT = Settings().detect.min_confidence
NEAREST = "nearest the centre"
RECIPE = "box, margin 32"  # with which the ways to choose a face are compared
# How a photo's face is chosen, beside the default: which, and of which probability at least (O-Net's is 0.7).
CHOICES = {
    "nearest the centre, of probability 0.7 and more": (NEAREST, 0.0),
    "largest": ("largest", STRICT),
    "centre-weighted size": ("centre-weighted size", STRICT),
}


def batches(files: Sequence[Path]) -> Iterator[tuple[int, list[DecodedImage], ImageBatch]]:
    settings = Settings().decode
    for start in range(0, len(files), BATCH):
        images = [decode_image(file.read_bytes(), settings) for file in files[start : start + BATCH]]
        yield start, images, ImageBatch([image.pixels for image in images])


@dataclass(frozen=True)
class Cache:
    """Arrays in files of a folder; `key` is what they were made of. Ends the program where that is something else."""

    folder: Path
    key: str

    def load(self, name: str) -> dict[str, FloatArray] | None:
        file = self.folder / f"{name}.npz"
        if not file.exists():
            return None
        with np.load(file, allow_pickle=False) as data:
            if str(data["key"]) != self.key:
                raise SystemExit(f"{file} was made of other photos, weights or settings: remove it.")
            return {each: data[each] for each in data.files if each != "key"}

    def save(self, name: str, **arrays: FloatArray) -> dict[str, FloatArray]:
        partial = self.folder / f"{name}.partial.npz"
        np.savez(partial, key=self.key, **arrays)
        partial.rename(self.folder / f"{name}.npz")
        return arrays


def detect_all(files: Sequence[Path], cache: Cache) -> tuple[Detections, FloatArray]:
    """All faces of every probability, `image_index` the photo's number, and where each lies: [m, 2], its box's centre
    from its photo's centre in pixels."""
    names = ("image_index", "boxes", "landmarks", "scores", "offsets")
    known = cache.load("faces")
    if known is None:
        settings = replace(Settings().detect, min_confidence=0.0)
        detector = MtcnnDetector(load_networks(detector_files(), "cpu"), settings)
        parts = []
        for start, images, batch in batches(files):
            found = detector(batch)
            centres = torch.tensor([(image.width / 2, image.height / 2) for image in images])
            offsets = (found.boxes[:, :2] + found.boxes[:, 2:]) / 2 - centres[found.image_index]
            parts.append([found.image_index + start, found.boxes, found.landmarks, found.scores, offsets])
        arrays = (torch.cat(each).numpy() for each in zip(*parts, strict=True))
        known = cache.save("faces", **dict(zip(names, arrays, strict=True)))
    return Detections(*(torch.from_numpy(known[name]) for name in names[:-1])), known["offsets"]


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


@dataclass(frozen=True)
class Photos:
    """The photos, what embeds their faces, and where that is kept."""

    files: Sequence[Path]
    embedder: Embedder
    cache: Cache

    def embed(self, name: str, chosen: Detections, recipe: Recipe) -> FloatArray:
        """[n, d] of at most one face a photo; NaN where there is none."""
        known = self.cache.load(name)
        if known is None:
            known = self.cache.save(name, embeddings=self._embed(chosen, recipe))
        embeddings = known["embeddings"]
        faces = np.isin(np.arange(len(self.files)), chosen.image_index.numpy())
        assert np.abs(np.linalg.norm(embeddings[faces], axis=1) - 1).max(initial=0) < 1e-4, name
        assert np.isnan(embeddings[~faces]).all(), name
        return embeddings

    def _embed(self, chosen: Detections, recipe: Recipe) -> FloatArray:
        made = np.full((len(self.files), self.embedder.embedding_size), np.nan, np.float32)
        for start, images, batch in batches(self.files):
            faces = part_of(chosen, start, start + len(images))
            if len(faces):
                crops = recipe(batch, faces)
                self.embedder.input_size = crops.shape[-1]  # its network takes any, and ends in a mean over the places
                made[start + faces.image_index.numpy()] = self.embedder(crops).cpu().numpy()
        return made

    def embed_others(self, name: str, chosen: Detections, usual: Detections, known: FloatArray) -> FloatArray:
        """`embed` in the way of `RECIPE`, where `known` are the embeddings of the faces that are usually chosen."""
        same = dict(zip(usual.image_index.tolist(), usual.boxes.tolist(), strict=True))
        faces = enumerate(zip(chosen.image_index.tolist(), chosen.boxes.tolist(), strict=True))
        other = torch.tensor([row for row, (photo, box) in faces if same.get(photo) != box], dtype=torch.int64)
        made = self.embed(name, pick(chosen, other), RECIPES[RECIPE])
        there = np.isin(np.arange(len(self.files)), chosen.image_index.numpy())
        return np.where(there[:, None], np.where(np.isnan(made), known, made), np.float32(np.nan))


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


def rates(embeddings: FloatArray, owner: IntArray, *, centred: bool) -> list[float]:
    """FNMR at `FMRS` over all pairs of a half of the people, the mean of both halves; `centred`: each half less the
    mean embedding of the other."""
    half = np.random.default_rng(SEED).permutation(owner.max() + 1)[owner] % 2 == 0
    found = []
    for measured, fitted in ((half, ~half), (~half, half)):
        left = embeddings[measured] - (np.nanmean(embeddings[fitted], axis=0) if centred else 0)
        left /= np.linalg.norm(left, axis=1, keepdims=True)
        genuine, impostor, _ = all_distances(left.astype(np.float32), owner[measured])
        found.append([error_rates(genuine, impostor, fmr).fnmr for fmr in FMRS])
    return [float(each) for each in np.mean(found, axis=0)]


def figures(names: list[str], ways: dict[str, FloatArray], pairs: Sequence[Pair], people: Sequence[str]) -> Any:
    genuine, fold = np.array([pair.genuine for pair in pairs]), np.arange(len(pairs)) % FOLDS
    table = {}
    for way, embeddings in ways.items():
        portraits = Portraits(names, {way: embeddings})
        rows, owner = rows_of(portraits, people)
        distances = pair_distances(portraits, embeddings, pairs)
        table[way] = {"accuracy": float(folded_accuracy(distances, genuine, fold).right.mean())}
        for kind, centred in (("", False), ("centred_", True)):
            found = rates(embeddings[rows], owner, centred=centred)
            table[way] |= {f"{kind}fnmr_at_{fmr:g}": rate for fmr, rate in zip(FMRS, found, strict=True)}
        print(way, {key: round(value, 4) for key, value in table[way].items()}, flush=True)
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faces", type=Path, required=True)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--weights", default="casia-webface")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", nargs="+", choices=RECIPES, metavar="WAY", help="and write no result")
    args = parser.parse_args()
    set_threads(args.threads)
    args.cache.mkdir(parents=True, exist_ok=True)
    protocol = read_protocol(args.faces, None)
    people = protocol.people(protocol.train)
    files = [file for name in people for file in sorted((args.faces / "images" / name).glob("*.jpg"))]
    resolved = resolve(args.weights, None, cache_folder(None))
    if resolved.weight_set.preprocessing.alignment != BOX:
        raise SystemExit(f"{resolved.name} takes no box crops.")
    made_of = [resolved.sha256, Settings().output_settings(), [file.stem for file in files]]
    cache = Cache(args.cache, json.dumps(made_of))
    found, offsets = detect_all(files, cache)
    photos = Photos(files, load_embedder(resolved, torch.device("cpu")), cache)
    usual = choose(found, offsets, NEAREST, STRICT)
    made = {}
    for name in args.only or COMPARED:
        print(name, flush=True)
        made[name] = photos.embed(name, usual, RECIPES[name])
    for name, choice in {} if args.only else CHOICES.items():
        way = f"{RECIPE}, {name}"
        made[way] = photos.embed_others(way, choose(found, offsets, *choice), usual, made[RECIPE])
    table = figures([file.stem for file in files], ways_of(made), protocol.train, people)
    facts = {"weights": args.weights, "faces": "lfw-view1, people of pairsDevTrain", "photos": len(files)}
    if not args.only:
        print(write_result(result("crops", facts, {}, {"ways": table})))


if __name__ == "__main__":
    torch.set_grad_enabled(False)
    main()
