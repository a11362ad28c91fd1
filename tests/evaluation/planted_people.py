"""People whose photos have planted embeddings: near to each other, and far from everybody else's."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from pipeline.evaluation.pair_lists import Pair, PairList
from pipeline.evaluation.portraits import Portraits

SIZE = 64


def unit_rows(vectors: np.ndarray) -> np.ndarray:
    rows: np.ndarray = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    return rows


def plant(people: int, photos: int, spread: float, seed: int = 1) -> tuple[Portraits, dict[str, str]]:
    """`photos` of each of `people`, the larger `spread` the less alike; and who is on which."""
    rng = np.random.default_rng(seed)
    centres = np.repeat(rng.standard_normal((people, SIZE)), photos, axis=0)
    vectors = unit_rows(centres + spread * rng.standard_normal(centres.shape))
    paths = [f"/p{person:03d}/{photo}.jpg" for person in range(people) for photo in range(photos)]
    names = {path: path.split("/")[1] for path in paths}
    return Portraits(paths, vectors, {}), names


def without_face(portraits: Portraits, path: str) -> Portraits:
    vectors = portraits.embeddings.copy()
    vectors[portraits.row[path]] = np.nan
    return Portraits(portraits.paths, vectors, portraits.skipped)


def listed(pairs: Sequence[Pair], names: dict[str, str]) -> PairList:
    """`names` empty: a list that names nobody, as CSV does."""
    photos = {path for pair in pairs for path in (pair.first, pair.second)}
    known = {path: names[path] for path in photos} if names else {}
    return PairList(Path("pairs.txt"), pairs, {p: Path(p) for p in photos}, known)


def simple_pairs(names: dict[str, str], folds: int = 1) -> list[Pair]:
    """Of every person the first two photos, and the first one with the next person's second."""
    people = sorted(set(names.values()))
    made = []
    for number, (person, other) in enumerate(zip(people, people[1:] + people[:1], strict=True)):
        fold = number % folds
        made.append(Pair(f"/{person}/0.jpg", f"/{person}/1.jpg", True, fold))
        made.append(Pair(f"/{person}/0.jpg", f"/{other}/1.jpg", False, fold))
    return made
