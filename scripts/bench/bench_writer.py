"""What does the one writer of a run take to decide and commit faces, and does a simple model foretell it?

    python scripts/bench/bench_writer.py --work WORK --fit 20000 --predict 100000
    python scripts/bench/bench_writer.py --work WORK --fit 20000 --predict 10000 --references 1000000

Coded faces, one per photo, in shards as an extraction leaves them, go through the commits of a run, without models. The
constants are fitted to the shards of `--fit` faces, two of each person in any order, grouped into an empty directory.
They foretell the time of `--predict` faces: likewise, or of persons known already where `--references` are planted.

    seconds = a faces + b new persons + c faces * references * numbers of an embedding
    bytes   = d faces + e new persons

c is measured by itself, on faces against many references: a few thousand faces hold too few products to tell. A part of
a then comes from the grouping, the rest of a and b from everything else in a commit; bytes have no time of their own,
since a face and a person are written with so many each. Asserts that every face went to its person; not
the times. Writes writer-<thousands of faces>k[-<thousands of references>k]-<device>.json, the prediction beside what
was measured.
"""

from __future__ import annotations

import argparse
import hashlib
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
from bench_group import MATCHER, Grouping
from coded_faces import CodedExtractor, Shown
from coded_store import extracted_run, make_store, person_id, plant
from harness import argument_parser, settings_of, write_result

from pipeline.config import load_settings
from pipeline.evaluation.bench.harness import Timing, timed
from pipeline.extraction.images.decode import Decoder
from pipeline.identities import decide
from pipeline.identities.directory import Directories
from pipeline.identities.shards import Enroller
from pipeline.store.local import LocalStore
from pipeline.store.records import ShardCommit
from pipeline.types import FaceBatch, FloatArray

SIZE = 512
SHARD_ROWS = 256  # as a run's
PARTS = {"files": "prepare_shard", "transaction": "commit_prepared", "follow": "settle_shard"}


@dataclass(frozen=True)
class ShardTime:
    """One shard: what went in, and seconds by part; `rest` is what stands around the parts, reading rows included."""

    faces: int
    new: int
    references: int  # before it
    seconds: dict[str, float]

    @property
    def products(self) -> float:
        """Multiply-adds. The references that the shard itself makes are few beside those before it."""
        return float(self.faces) * self.references * SIZE

    @property
    def total(self) -> float:
        return sum(self.seconds.values())


@dataclass(frozen=True)
class Writing:
    """All shards of a run, and how much the store grew by it: what was extracted goes with its commit."""

    shards: Sequence[ShardTime]
    bytes_written: int


@dataclass(frozen=True)
class Model:
    """Seconds and bytes of each face, new person and multiply-add."""

    group_s_per_face: float
    s_per_multiply_add: float
    rest_s_per_face: float
    rest_s_per_person: float
    bytes_per_face: float
    bytes_per_person: float

    def seconds(self, faces: float, new: float, products: float) -> float:
        per_face = self.group_s_per_face + self.rest_s_per_face
        return per_face * faces + self.rest_s_per_person * new + self.s_per_multiply_add * products

    def bytes(self, faces: float, new: float) -> float:
        return self.bytes_per_face * faces + self.bytes_per_person * new


def seconds_per_multiply_add(references: int, tries: int = 5) -> float:
    """What a shard's grouping takes longer against so many references than against a fifth, best of `tries`."""
    chance, index = np.random.default_rng(2), Grouping("cpu").index
    faces = FaceBatch(_strangers(chance, SHARD_ROWS), np.ones(SHARD_ROWS, np.bool_), *_origins("face", SHARD_ROWS))
    best = []
    for count in (references // 5, references):
        start = len(index)
        hashes, boxes = _origins(f"reference {start}", count - start)
        index.append(_strangers(chance, count - start), np.arange(start, count), hashes, boxes)
        seconds = [timed(partial(decide.group_faces, faces, index, MATCHER), "cpu") for _ in range(tries + 1)]
        best.append(min(seconds[1:]))
    return (best[1] - best[0]) / (SHARD_ROWS * (references - references // 5) * SIZE)


def _strangers(chance: np.random.Generator, count: int) -> FloatArray:
    made = chance.standard_normal((count, SIZE), dtype=np.float32)
    return np.asarray(made / np.linalg.norm(made, axis=1, keepdims=True), np.float32)


def _origins(name: str, count: int) -> tuple[list[tuple[str, ...]], FloatArray]:
    """Hashes of the images, each its own, and boxes."""
    boxes = np.tile(np.array([0, 0, 10, 10], np.float32), (count, 1))
    return [(hashlib.sha256(f"{name} {k}".encode()).hexdigest(),) for k in range(count)], boxes


def fit(writing: Writing, crop_bytes: int, s_per_multiply_add: float) -> Model:
    """The other constants by least squares over the shards. A new person's bytes are the picture's; all else that was
    written is each face's."""
    faces = np.array([one.faces for one in writing.shards], float)
    new = np.array([one.new for one in writing.shards], float)
    products = np.array([one.products for one in writing.shards])
    group = np.array([one.seconds["group"] for one in writing.shards])
    rest = np.array([one.total for one in writing.shards]) - group
    (group_per_face,) = _least_squares([faces], group - s_per_multiply_add * products)
    by_rest = _least_squares([faces, new], rest)
    per_face = (writing.bytes_written - crop_bytes * new.sum()) / faces.sum()
    return Model(group_per_face, s_per_multiply_add, *by_rest, float(per_face), float(crop_bytes))


def _least_squares(columns: Sequence[np.ndarray], values: np.ndarray) -> list[float]:
    return [float(one) for one in np.linalg.lstsq(np.stack(columns, axis=1), values, rcond=None)[0]]


def stream(faces: int, references: int, seed: int = 1) -> list[Shown]:
    """Two of each new person in any order; with references one each of so many known persons, another photo."""
    chance = np.random.default_rng(seed)
    if references:
        return [Shown(person, 1) for person in chance.permutation(references)[:faces].tolist()]
    return [Shown(face // 2, face % 2) for face in chance.permutation(faces).tolist()]


def write(faces: Sequence[Shown], references: int, crop_bytes: int, work: Path) -> Writing:
    """Commits `faces` into a new store beside planted references. Raises AssertionError where one is wrong."""
    with tempfile.TemporaryDirectory(dir=work) as folder, make_store(Path(folder) / "store", SIZE) as client:
        plant(client, references)
        before, shards, owners = _size(client), [], Owners(references)
        run = extracted_run(client, "photos", faces, CodedExtractor(SIZE, crop_bytes), SHARD_ROWS)
        settings, directories = load_settings(environ={}), Directories(client)
        enroller = Enroller(client, run, Decoder(settings.decode), directories, settings.decode.max_bytes)
        with directories.using_all(run.account_id, {"main"}):
            pass  # reads the references: a run does it once, whatever its shards
        for shard in range(run.shards):
            manifest, extracted = client.read_manifest(run, shard), client.read_run_shard(run.run_id, shard)
            shards.append(_commit(client, enroller, shard, manifest, extracted, owners))
        assert sum(one.faces for one in shards) == len(faces), "a face is missing"
        owners.check(faces)
        return Writing(shards, _size(client) - before)


class Owners:
    """Who each face was taken for, in the order of the shards."""

    def __init__(self, references: int) -> None:
        self.references = references
        self.person_ids: list[str] = []
        self.new = 0

    def __call__(self, commit: ShardCommit) -> int:
        """How many persons are new."""
        assert set(commit.faces["outcome"].to_pylist()) <= {"inserted", "matched"}
        self.person_ids += commit.faces["person_id"].to_pylist()
        self.new += commit.persons.num_rows
        return commit.persons.num_rows

    def check(self, faces: Sequence[Shown]) -> None:
        """Known persons are those planted, and each new one has an identity of their own."""
        found = {(face.person, owner) for face, owner in zip(faces, self.person_ids, strict=True)}
        people = {face.person for face in faces}
        assert len(found) == len(people) == len({owner for _, owner in found}), (
            "somebody is two persons, or two are one"
        )
        assert self.new == sum(person >= self.references for person in people), "another number of new persons"
        assert all(owner == person_id(person) for person, owner in found if person < self.references)


def _commit(
    client: LocalStore, enroller: Enroller, shard: int, manifest: pa.Table, extracted: pa.Table, owners: Owners
) -> ShardTime:
    seconds, commits, known = dict.fromkeys(("group", *PARTS), 0.0), [], owners.references + owners.new

    def metered(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            if name == "files":
                commits.append(arguments[0])
            begun = time.perf_counter()
            try:
                return method(*arguments, **named)
            finally:
                seconds[name] += time.perf_counter() - begun

        return call

    with ExitStack() as patched:
        patched.enter_context(patch.object(decide, "group_faces", metered("group", decide.group_faces)))
        for name, method in PARTS.items():
            patched.enter_context(patch.object(client, method, metered(name, getattr(client, method))))
        begun = time.perf_counter()
        enroller.commit(shard, manifest, extracted)
        seconds["rest"] = time.perf_counter() - begun - sum(seconds.values())
    (commit,) = commits
    return ShardTime(commit.faces.num_rows, owners(commit), known, seconds)


def _size(client: LocalStore) -> int:
    return sum(file.stat().st_size for file in client.path.rglob("*") if file.is_file())


def figures_of(writing: Writing, model: Model) -> dict[str, Any]:
    """What was measured, and beside it what the model says."""
    faces, new = sum(one.faces for one in writing.shards), sum(one.new for one in writing.shards)
    products, seconds = sum(one.products for one in writing.shards), sum(one.total for one in writing.shards)
    predicted, predicted_bytes = model.seconds(faces, new, products), model.bytes(faces, new)
    parts = {part: sum(one.seconds[part] for one in writing.shards) for part in writing.shards[0].seconds}
    return {
        "faces": faces,
        "new_persons": new,
        "multiply_adds": products,
        "seconds": seconds,
        "seconds_predicted": predicted,
        "seconds_predicted_to_measured": predicted / seconds,
        "seconds_by_part": parts,
        "faces_per_second": faces / seconds,
        "bytes_written": writing.bytes_written,
        "bytes_predicted": predicted_bytes,
    }


def main() -> None:
    args = _arguments()
    args.work.mkdir(parents=True, exist_ok=True)
    write(stream(4 * SHARD_ROWS, 0), 0, args.crop_bytes, args.work)  # the warm-up
    fitted = write(stream(args.fit, 0), 0, args.crop_bytes, args.work)
    model = fit(fitted, args.crop_bytes, seconds_per_multiply_add(args.product_references))
    predicted = write(stream(args.predict, args.references), args.references, args.crop_bytes, args.work)
    figures = {"model": asdict(model), "fit": figures_of(fitted, model), "predict": figures_of(predicted, model)}
    both = {"fit": fitted, "predict": predicted}
    timings = {name: Timing([one.total for one in writing.shards]) for name, writing in both.items()}
    beside = f"-{args.references // 1000}k" if args.references else ""
    write_result(f"writer-{args.predict // 1000}k{beside}", settings_of(args), timings, figures, args)


def _arguments() -> argparse.Namespace:
    parser = argument_parser(__doc__)
    parser.add_argument("--work", type=Path, required=True, help="where stores are made and removed")
    parser.add_argument("--fit", type=int, default=20_000, help="faces that the constants are fitted to")
    parser.add_argument("--predict", type=int, default=100_000, help="faces whose time is foretold and measured")
    parser.add_argument("--references", type=int, default=0, help="persons that are known before --predict")
    parser.add_argument("--product-references", type=int, default=100_000, help="that c is measured against")
    parser.add_argument("--crop-bytes", type=int, default=6_000, help="of a stored picture")
    args = parser.parse_args()
    if args.references and args.predict > args.references:
        parser.error("--predict must not exceed --references")
    return args


if __name__ == "__main__":
    main()
