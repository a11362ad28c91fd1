"""What does grouping cost beside bare matrix products, and beside plain groupings with other libraries?

    python scripts/bench/bench_group.py --faces 100000 --sightings 2 --repeats 3
    python scripts/bench/bench_group.py --faces 1000000 --sightings 20 --repeats 1 --baselines

A stream of random faces comes in shards, as a run hands them over. All variants take their turn at each shard; a
variant's time is the sum over the shards. A shard is made from the seed when it is due and then forgotten, so what
grows is the index: `rss_growth_bytes` says by how much, the baselines' included.

`products` multiplies each shard with the references that the grouping compares it with, into one buffer that nobody
reads: the rest of the ratio is what deciding costs. `numpy`, `torch` and `faiss` group as one would with these
libraries (see plain_grouping), by float32 products. Each takes as long again: `--baselines` without names leaves them
out.

Asserts the planted identities of all faces, for all variants; and that the first 2,000 faces of another stream are
decided and scored as a plain loop over exact scores does it. Writes group-<thousands of faces>k-<device>.json.
"""

from __future__ import annotations

import argparse
import resource
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import psutil
import torch
from harness import argument_parser, paired_ratio, settings_of, write_result
from plain_grouping import LIBRARIES, PlainGrouping, installed

from pipeline.evaluation.bench.harness import Timing, timed
from pipeline.matching.calibration import Calibration
from pipeline.matching.group import group_faces
from pipeline.matching.match import Matcher
from pipeline.matching.products import HostVectors
from pipeline.matching.references import ReferenceIndex
from pipeline.matching.score import dot_at
from pipeline.types import BoolArray, Decisions, FaceBatch, FloatArray, IntArray

SIZE = 512
NOISE = 0.5  # of a vector's own length: two sightings have a dot of about 0.8, strangers of 0
MATCHER = Matcher(Calibration(1.281), 0.54)  # matches from a dot of 0.58 on
OURS, PRODUCTS = "facepipe", "products"
SHARD_FACES = 512  # about two of each of the 256 photos in a run's shard
MAX_SHARD_FACES = 1024  # what `group_faces` takes as one block
NAIVE = 2000
Group = Callable[[FaceBatch], IntArray | None]  # one shard -> the identity of each face, numbered as they come


@dataclass(frozen=True)
class Stream:
    """Faces that are made when they are due; `identities` [n] says whose they are."""

    identities: IntArray
    shard_faces: int
    seed: int

    def shards(self) -> Iterator[tuple[IntArray, FaceBatch]]:
        """(the identity of each face, the faces)."""
        for start in range(0, len(self.identities), self.shard_faces):
            who = self.identities[start : start + self.shard_faces]
            yield who, self._faces(start, who)

    def _faces(self, start: int, who: IntArray) -> FaceBatch:
        noise = np.random.default_rng([self.seed, start]).standard_normal((len(who), SIZE), dtype=np.float32)
        vectors = np.stack([self._centre(identity) for identity in who.tolist()]) + np.float32(NOISE) * noise
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        hashes = [(f"{face:064x}", f"{face + len(self.identities):064x}") for face in range(start, start + len(who))]
        boxes = np.tile(np.array([0, 0, 10, 10], dtype=np.float32), (len(who), 1))
        return FaceBatch(vectors, np.ones(len(who), dtype=np.bool_), hashes, boxes)

    def _centre(self, identity: int) -> FloatArray:
        # A generator with a key of its own is made in a tenth of the time of one with a seed.
        key = np.array([self.seed, identity], dtype=np.uint64)
        return np.random.Generator(np.random.Philox(key=key)).standard_normal(SIZE, dtype=np.float32)


def make_stream(faces: int, sightings: int, shard_faces: int = SHARD_FACES, seed: int = 1) -> Stream:
    """`faces` faces, `sightings` of each identity, in any order."""
    return Stream(np.random.default_rng(seed).permutation(faces) // sightings, shard_faces, seed)


class Grouping:
    """What a run does with each shard: decides its faces, and adds the new identities to the index."""

    def __init__(self, device: str) -> None:
        self.index = ReferenceIndex(SIZE, device)
        self.last: Decisions | None = None

    def __call__(self, faces: FaceBatch) -> IntArray:
        self.last = group_faces(faces, self.index, MATCHER)
        new = np.flatnonzero(self.last.inserted)
        hashes = [faces.image_hashes[face] for face in new.tolist()]
        self.index.append(faces.embeddings[new], self.last.position[new], hashes, faces.boxes[new])
        return self.last.position


class BareProducts:
    """The products of a shard with all references, in chunks as `match` makes them."""

    def __init__(self, index: ReferenceIndex) -> None:
        self._index = index
        self._elements = 2**21 if index.device == "cpu" else 2**25
        self._buffer = torch.empty(max(self._elements, 2048 * MAX_SHARD_FACES), device=index.device)

    def __call__(self, faces: FaceBatch) -> None:
        queries = torch.from_numpy(faces.embeddings).to(self._index.device)
        vectors = self._index.view().vectors
        on_host = isinstance(vectors, HostVectors)
        rows = torch.from_numpy(vectors.rows.checked(0, len(vectors.rows))) if on_host else vectors.rows
        for references in rows.split(max(2048, self._elements // len(queries))):
            out = self._buffer[: len(queries) * len(references)].view(len(queries), len(references))
            torch.mm(queries, references.T, out=out)


class Truth:
    """Checks the decisions of one pass against the planted identities."""

    def __init__(self, identities: int) -> None:
        self._place = np.full(identities, -1, dtype=np.int64)  # of each identity in the index; -1: not yet
        self.count = 0

    def check(self, who: IntArray, decisions: Decisions) -> None:
        """A face is inserted if and only if it is the first of its identity; later ones go where that went."""
        first = self._first(who)
        assert np.array_equal(decisions.inserted, first)
        self._place[who[first]] = self.count + np.arange(first.sum())
        self.count += int(first.sum())
        assert np.array_equal(decisions.position, self._place[who])
        assert np.all(decisions.score >= 1.0)

    def _first(self, who: IntArray) -> BoolArray:
        first = np.zeros(len(who), dtype=np.bool_)
        first[np.unique(who, return_index=True)[1]] = True
        first &= self._place[who] < 0
        return first


def assert_naive(stream: Stream, device: str) -> None:
    """Raises AssertionError unless a plain loop over exact scores decides and scores the faces alike."""
    group, references = Grouping(device), np.empty((0, SIZE), dtype=np.float32)
    for _, faces in stream.shards():
        group(faces)
        assert group.last is not None
        for face, vector in enumerate(faces.embeddings):
            decided = group.last.position[face], group.last.inserted[face], group.last.score[face]
            distances = MATCHER.distances(np.broadcast_to(vector, references.shape), references)
            best = int(MATCHER.scores(distances).argmax()) if len(references) else 0
            score = float(MATCHER.scores(distances)[best]) if len(references) else 0.0
            if score >= 1.0:
                assert decided == (best, False, score)
            else:
                assert decided == (len(references), True, MATCHER.scores(np.zeros(1))[0])
                references = np.concatenate([references, vector[None]])


def variants(baselines: Sequence[str], grouping: Grouping) -> dict[str, Group]:
    """What is timed. The products come before the grouping, so that both see the same references."""
    made: dict[str, Group] = {PRODUCTS: BareProducts(grouping.index), OURS: grouping}
    for name in baselines:
        plain = PlainGrouping(LIBRARIES[name](SIZE), dot_at(MATCHER.threshold, MATCHER.calibration))
        made[name] = lambda faces, plain=plain: plain(faces.embeddings)
    return made


@dataclass(frozen=True)
class Pass:
    """Seconds of each variant over the stream, and how much memory grew."""

    seconds: Mapping[str, float]
    identities: int
    rss_growth_bytes: int


def one_pass(stream: Stream, baselines: Sequence[str], device: str) -> Pass:
    """Groups the stream with all variants. Raises AssertionError where one is wrong."""
    grouping, truth = Grouping(device), Truth(int(stream.identities.max()) + 1)
    groups = variants(baselines, grouping)
    seconds, process = dict.fromkeys(groups, 0.0), psutil.Process()
    before = process.memory_info().rss
    for who, faces in stream.shards():
        answers = {name: _timed(group, faces, device) for name, group in groups.items()}
        for name, (taken, _) in answers.items():
            seconds[name] += taken
        assert grouping.last is not None
        truth.check(who, grouping.last)
        for name in baselines:
            assert np.array_equal(answers[name][1], grouping.last.position), name
    return Pass(seconds, truth.count, process.memory_info().rss - before)


def _timed(group: Group, faces: FaceBatch, device: str) -> tuple[float, IntArray | None]:
    made: list[IntArray | None] = []
    return timed(lambda: made.append(group(faces)), device), made[0]


def figures_of(passes: Sequence[Pass], timings: Mapping[str, Timing], faces: int) -> dict[str, Any]:
    growth = passes[0].rss_growth_bytes  # later passes reuse what the first one freed
    return {
        "faces": faces,
        "identities": passes[0].identities,
        **{f"faces_per_second_{name}": faces / one.median for name, one in timings.items() if name != PRODUCTS},
        **{f"ratio_to_{name}": paired_ratio(timings[OURS], one) for name, one in timings.items() if name != OURS},
        "missing_baselines": [name for name in LIBRARIES if name not in timings],
        "rss_growth_bytes": growth,
        "rss_growth_bytes_per_identity": growth / passes[0].identities,
        "vector_bytes_per_identity": 4 * SIZE,
        "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


def main() -> None:
    args = _arguments()
    baselines = [name for name in args.baselines if installed(name)]
    assert_naive(make_stream(min(NAIVE, args.faces), 2), args.device)  # also the warm-up
    stream = make_stream(args.faces, args.sightings, args.shard_faces)
    passes = []
    for _ in range(args.repeats):
        passes.append(one_pass(stream, baselines, args.device))
        print(passes[-1], flush=True)
    timings = {name: Timing([one.seconds[name] for one in passes]) for name in passes[0].seconds}
    figures = figures_of(passes, timings, args.faces)
    write_result(f"group-{args.faces // 1000}k", settings_of(args), timings, figures, args)


def _arguments() -> argparse.Namespace:
    parser = argument_parser(__doc__)
    parser.add_argument("--faces", type=int, default=100_000)
    parser.add_argument("--sightings", type=int, default=2, help="of each identity")
    parser.add_argument("--shard-faces", type=int, default=SHARD_FACES, help=f"at most {MAX_SHARD_FACES}")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--baselines", nargs="*", choices=list(LIBRARIES), default=list(LIBRARIES))
    args = parser.parse_args()
    if not 1 <= args.shard_faces <= MAX_SHARD_FACES:
        parser.error(f"--shard-faces must be in [1, {MAX_SHARD_FACES}]")
    return args


if __name__ == "__main__":
    main()
