"""Grouping of random faces, each identity seen twice, against the same growing sequence of bare matrix products.

    python scripts/bench_group.py --faces 100000 --repeats 5 --device cpu

The bare products know in advance how many identities there are at each block, have their references lie ready in
one matrix, and look at no result: what is left of the ratio is what deciding costs. Asserts the planted identities
for all faces, and for the first 2,000 the decisions of a plain loop over exact scores.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import numpy as np
import torch
from bench_common import interleave, paired_ratio, result, write_result

from pipeline.group import group_faces
from pipeline.match import Calibration, Matcher, ReferenceIndex
from pipeline.types import Decisions, FaceBatch, IntArray

SIZE = 512
NOISE = 0.1  # of each vector's own length: two sightings are at about 0.14 of raw distance, strangers at 1.41
CALIBRATION = Calibration(1.281)
THRESHOLD = 0.54


@dataclass(frozen=True)
class Task:
    faces: FaceBatch
    truth: IntArray  # [n] the planted identity


def make_task(count: int, seed: int) -> Task:
    """`count` faces of count / 2 identities, shuffled, with image hashes as a real batch has."""
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((count // 2, SIZE), dtype=np.float32)
    vectors = np.repeat(centres, 2, axis=0) + NOISE * rng.standard_normal((count, SIZE), dtype=np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    order = rng.permutation(count)
    hashes = [(f"{i:064x}", f"{i + count:064x}") for i in range(count)]
    boxes = np.tile(np.array([0, 0, 10, 10], dtype=np.float32), (count, 1))
    return Task(FaceBatch(vectors[order], np.ones(count, dtype=np.bool_), hashes, boxes), order // 2)


def assert_truth(task: Task, decisions: Decisions) -> None:
    """Two faces have one position iff they have one planted identity, and the first of them was inserted."""
    pairs = set(zip(decisions.position.tolist(), task.truth.tolist(), strict=True))
    assert len(pairs) == len({p for p, _ in pairs}) == len({t for _, t in pairs}) == len(task.faces) // 2
    first = np.unique(task.truth, return_index=True)[1]
    assert np.array_equal(np.flatnonzero(decisions.inserted), np.sort(first))
    assert np.all(decisions.score >= 1.0)


def assert_naive(task: Task, decisions: Decisions, count: int) -> None:
    """The first `count` faces are decided as a plain loop over exact scores decides them."""
    matcher = Matcher(CALIBRATION, THRESHOLD)
    known: list[int] = []
    for face in range(min(count, len(task.faces))):
        queries = np.broadcast_to(task.faces.embeddings[face], (len(known), SIZE))
        scores = matcher.scores(matcher.distances(queries, task.faces.embeddings[known]))
        best = int(scores.argmax()) if known else -1
        if known and scores[best] >= 1.0:
            assert (decisions.position[face], decisions.score[face]) == (best, scores[best])
        else:
            assert decisions.inserted[face]
            assert decisions.position[face] == len(known)
            known.append(face)


class BareProducts:
    """The same products as the grouping makes of blocks and earlier identities, into one buffer, unread."""

    def __init__(self, task: Task, decisions: Decisions, block: int, chunk: int, device: str) -> None:
        self._queries = torch.from_numpy(task.faces.embeddings).to(device)
        self._references = torch.from_numpy(task.faces.embeddings[decisions.inserted]).to(device)
        self._before = np.concatenate([[0], np.cumsum(decisions.inserted)])
        self._buffer = torch.empty(block * chunk, dtype=torch.float32, device=device)
        self._block, self._chunk = block, chunk

    def __call__(self) -> None:
        for start in range(0, len(self._queries), self._block):
            queries = self._queries[start : start + self._block]
            known = int(self._before[start])
            for offset in range(0, known, self._chunk):
                references = self._references[offset : min(offset + self._chunk, known)]
                out = self._buffer[: len(queries) * len(references)].view(len(queries), len(references))
                torch.mm(queries, references.T, out=out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faces", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--block", type=int, default=1024)
    parser.add_argument("--max-ratio", type=float, default=None, help="fail above it")
    args = parser.parse_args()
    task, matcher = make_task(args.faces, seed=1), Matcher(CALIBRATION, THRESHOLD)
    index = ReferenceIndex(SIZE, args.device)

    def group() -> Decisions:
        return group_faces(task.faces, index, matcher, args.block)

    decisions = group()  # also the warm-up
    assert_truth(task, decisions)
    assert_naive(task, decisions, 2_000)
    chunk = 2048 if args.device == "cpu" else 2**25 // args.block  # as `match` chooses them
    bare = BareProducts(task, decisions, args.block, chunk, args.device)
    bare()
    timings = interleave({"group": group, "products": bare}, args.repeats, args.device, warmup=0)
    figures = {
        "faces": args.faces,
        "identities": int(decisions.inserted.sum()),
        "faces_per_second": args.faces / timings["group"]["median"],
        "ratio": paired_ratio(timings, "group", "products"),
        "ratio_of_medians": timings["group"]["median"] / timings["products"]["median"],
    }
    document = result("group", vars(args), timings, figures, args.device)
    print(write_result(document))
    for name, value in figures.items():
        print(f"{name:20} {value:,.3f}")
    assert args.max_ratio is None or figures["ratio"] <= args.max_ratio, figures["ratio"]


if __name__ == "__main__":
    main()
