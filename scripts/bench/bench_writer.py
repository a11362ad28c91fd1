"""What does the one writer of a run take to decide and commit faces, and does a simple model foretell it?

    python scripts/bench/bench_writer.py --work WORK --fit 10000 --predict 20000 100000 50000:1000000

Coded faces, one per photo, in shards as an extraction leaves them, go through the commits of a run, without models. The
constants are fitted to `--fit` faces, two of each person in any order, grouped into an empty directory, and to as many
faces of so many persons who are known. They foretell each of `--predict`: so many faces of new persons likewise, or, as
FACES:REFERENCES, one face each of so many persons at random of those who are known already.

    seconds = a faces + b new persons + c faces * references * numbers of an embedding
    bytes   = d faces + (e + a picture) new persons

c is measured by itself, on faces against many references: the faces that are fitted hold too few products to tell. A
part of a then comes from the grouping, the rest of a and b from everything else in a commit. Bytes have no time of
their own, since a face and a person are written with so many each. All this is measured before each of `--predict`, and
medians count: what disturbs the machine for a moment must not become a constant. Asserts that every face went to its
person; not the times. The stores are made first and kept in WORK, where the next call finds them: a million references
take some minutes. Writes writer-<device>.json, each prediction beside what was measured.
"""

from __future__ import annotations

import argparse
import hashlib
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import duckdb
import numpy as np
import psutil
import pyarrow as pa
from bench_group import MATCHER, Grouping
from coded_faces import CodedExtractor, Shown
from coded_store import USER, copied, extracted_run, make_store, person_id, plant
from harness import argument_parser, settings_of, write_result
from writer_model import SIZE, Model

from pipeline.config import load_settings
from pipeline.evaluation.bench.harness import Timing, timed
from pipeline.extraction.images.decode import Decoder
from pipeline.people import decide
from pipeline.people.directory import Directories
from pipeline.people.shards import Enroller
from pipeline.store.local import LocalStore
from pipeline.store.records import ShardCommit
from pipeline.types import FaceBatch, FloatArray

SHARD_ROWS = 256  # as a run's
WARM_UP: Final = 4 * SHARD_ROWS
PARTS = {"files": "prepare_shard", "transaction": "commit_prepared", "follow": "settle_shard"}


@dataclass(frozen=True)
class Task:
    """Faces in any order: two of each new person, or another one each of some of the persons who are known already."""

    faces: int
    references: int = 0

    @classmethod
    def of(cls, text: str) -> Task:
        """FACES or FACES:REFERENCES. Raises ValueError."""
        task = cls(*map(int, text.split(":", 1)))
        if task.references and task.faces > task.references:
            raise ValueError("more faces than references")
        return task

    def __str__(self) -> str:
        return f"{self.faces}:{self.references}" if self.references else f"{self.faces}"

    def shown(self) -> list[Shown]:
        chance = np.random.default_rng(1)
        if self.references:
            return [Shown(person, 1) for person in chance.permutation(self.references)[: self.faces].tolist()]
        return [Shown(face // 2, face % 2) for face in chance.permutation(self.faces).tolist()]


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
    """All shards of a run, by how many bytes the store grew, and what it takes before: to read the references."""

    shards: Sequence[ShardTime]
    bytes_written: int
    load_seconds: float = 0.0
    load_rss_bytes: int = 0

    @property
    def faces(self) -> int:
        return sum(one.faces for one in self.shards)

    @property
    def new(self) -> int:
        return sum(one.new for one in self.shards)

    @property
    def products(self) -> float:
        return sum(one.products for one in self.shards)

    def timing(self) -> Timing:
        return Timing([one.total for one in self.shards])

    @classmethod
    def median(cls, writings: Sequence[Writing]) -> Writing:
        """Of several of the same run: of each shard the median."""
        shards = zip(*(one.shards for one in writings), strict=True)
        return replace(writings[0], shards=[sorted(same, key=lambda one: one.total)[len(same) // 2] for same in shards])


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


def fit(fresh: Writing, known: Writing, crop_bytes: int, s_per_multiply_add: float) -> Model:
    """The other constants: seconds by least squares over all shards; bytes of a face from where nobody is new, and of a
    person from what is left of the others."""
    shards = [*fresh.shards, *known.shards]
    faces, new = (np.array([getattr(one, name) for one in shards], float) for name in ("faces", "new"))
    products = np.array([one.products for one in shards])
    group = np.array([one.seconds["group"] for one in shards])
    rest = np.array([one.total for one in shards]) - group
    (group_per_face,) = _least_squares([faces], group - s_per_multiply_add * products)
    by_rest = _least_squares([faces, new], rest)
    per_face = known.bytes_written / known.faces
    per_person = (fresh.bytes_written - per_face * fresh.faces) / fresh.new - crop_bytes
    return Model(group_per_face, s_per_multiply_add, *by_rest, per_face, per_person)


def _least_squares(columns: Sequence[np.ndarray], values: np.ndarray) -> list[float]:
    return [float(one) for one in np.linalg.lstsq(np.stack(columns, axis=1), values, rcond=None)[0]]


def prepare(store: Path, task: Task, crop_bytes: int) -> None:
    """A store with the references, and a run whose shards are extracted."""
    with make_store(store, SIZE) as client:
        plant(client, task.references)
        extracted_run(client, "photos", task.shown(), CodedExtractor(SIZE, crop_bytes), SHARD_ROWS)


def write(task: Task, crop_bytes: int, work: Path) -> Writing:
    """Commits the run of a copy of the prepared store. Raises AssertionError where a face is wrong."""
    template = work / f"writer-{task.faces}-{task.references}-{crop_bytes}"
    with copied(template, lambda store, _: prepare(store, task, crop_bytes)) as (store, _):
        before, owners = _size(store), Owners(task.references)
        with LocalStore.open(store, command="bench") as client:
            run = client.unfinished_run("photos", client.account_id(USER))
            assert run is not None
            settings, directories = load_settings(environ={}), Directories(client)
            enroller = Enroller(client, run, Decoder(settings.decode), directories)
            process = psutil.Process()
            rss, begun = process.memory_info().rss, time.perf_counter()
            with directories.using_all(run.account_id, {"main"}):
                loaded = time.perf_counter() - begun, process.memory_info().rss - rss
            shards = []
            for shard in range(run.shards):
                manifest, extracted = client.read_manifest(run, shard), client.read_run_shard(run.run_id, shard)
                shards.append(_commit(client, enroller, shard, manifest, extracted, owners))
        assert sum(one.faces for one in shards) == task.faces, "a face is missing"
        owners.check(task.shown())
        return Writing(shards, _size(store) - before, *loaded)


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
        made = sum(person is None for change in commit.changes for person in change.before.persons.values())
        self.new += made
        return made

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


def _size(store: Path) -> int:
    """Of a store that is closed, without what is there only until a run is finished, and free blocks of the catalog."""
    files = (file for part in store.iterdir() if part.name != "runs" for file in (part, *part.rglob("*")))
    with duckdb.connect(str(store / (store / "CURRENT").read_text().strip()), read_only=True) as catalog:
        ((free,),) = catalog.execute("SELECT free_blocks * block_size FROM pragma_database_size()").fetchall()
    return sum(file.stat().st_size for file in files if file.is_file()) - int(free)


def figures_of(writing: Writing, model: Model, crop_bytes: int) -> dict[str, Any]:
    """What was measured, and beside it what the model says."""
    seconds = sum(one.total for one in writing.shards)
    predicted = model.seconds(writing.faces, writing.new, writing.products)
    parts = {part: sum(one.seconds[part] for one in writing.shards) for part in writing.shards[0].seconds}
    return {
        "faces": writing.faces,
        "references": writing.shards[0].references,
        "new_persons": writing.new,
        "multiply_adds": writing.products,
        "seconds": seconds,
        "seconds_predicted": predicted,
        "seconds_predicted_to_measured": predicted / seconds,
        "seconds_by_part": parts,
        "faces_per_second": writing.faces / seconds,
        "bytes_written": writing.bytes_written,
        "bytes_predicted": model.bytes(writing.faces, writing.new, crop_bytes),
        "load_seconds": writing.load_seconds,
        "load_rss_bytes": writing.load_rss_bytes,
    }


def main() -> None:
    args = _arguments()
    made = partial(write, crop_bytes=args.crop_bytes, work=args.work)
    made(Task(WARM_UP))
    tasks = Task(args.fit), Task(args.fit, args.fit)
    rates, fitted, predicted = [], [], {}
    for task in args.predict:
        rates.append(seconds_per_multiply_add(args.product_references))
        fitted.append([made(one) for one in tasks])
        predicted[str(task)] = made(task)
    fresh, known = map(Writing.median, zip(*fitted, strict=True))
    model = fit(fresh, known, args.crop_bytes, float(np.median(rates)))
    writings = {f"fit {tasks[0]}": fresh, f"fit {tasks[1]}": known, **predicted}
    figures = {name: figures_of(one, model, args.crop_bytes) for name, one in writings.items()}
    settings = settings_of(args) | {"predict": [str(task) for task in args.predict]}
    timings = {name: one.timing() for name, one in writings.items()}
    write_result("writer", settings, timings, {"model": asdict(model), **figures}, args)


def _arguments() -> argparse.Namespace:
    parser = argument_parser(__doc__)
    parser.add_argument("--work", type=Path, required=True, help="where the prepared stores are made, and found again")
    parser.add_argument("--fit", type=int, default=10_000, help="faces that the constants are fitted to, twice")
    parser.add_argument(
        "--predict", type=Task.of, nargs="+", default=[Task(20_000)], help="FACES or FACES:REFERENCES each"
    )
    parser.add_argument("--product-references", type=int, default=100_000, help="that c is measured against")
    parser.add_argument("--crop-bytes", type=int, default=6_000, help="of a stored picture")
    return parser.parse_args()


if __name__ == "__main__":
    main()
