"""What does the one writer of a run take to decide and commit faces, by part?

    python scripts/bench/bench_writer.py --work WORK --tasks 20000 100000 50000:1000000

Coded faces, one per photo, in shards as an extraction leaves them, go through a run's commits, without models. Each of
`--tasks` is FACES, two of each new person in any order in an empty directory; or FACES:REFERENCES, one face each of
so many persons at random of those who are known already. Asserts that every face went to its person; not the times. The
stores are made first and kept in WORK, where the next call finds them: a million references take some minutes. Writes
writer-<device>.json.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import duckdb
import numpy as np
import psutil
import pyarrow as pa
from coded_faces import CodedExtractor, Shown
from coded_store import USER, copied, extracted_run, make_store, person_id, plant
from harness import argument_parser, settings_of, write_result

from pipeline.config import load_settings
from pipeline.evaluation.bench.harness import Timing
from pipeline.extraction.images.decode import Decoder
from pipeline.people import decide
from pipeline.people.directory import Directories
from pipeline.people.shards import Enrolment
from pipeline.store.local import LocalStore
from pipeline.store.records import ShardCommit

SHARD_ROWS = 256  # as a run's
WARM_UP: Final = 4 * SHARD_ROWS
SIZE: Final = 512  # numbers of an embedding
PARTS = {"files": "prepare_shard", "transaction": "commit_prepared", "follow": "finish_shard"}


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

    def timing(self) -> Timing:
        return Timing([one.total for one in self.shards])


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
            enrolment = Enrolment(client, run, Decoder(settings.decode), directories)
            process = psutil.Process()
            rss, begun = process.memory_info().rss, time.perf_counter()
            with directories.using_all(run.account_id, {"main"}):
                loaded = time.perf_counter() - begun, process.memory_info().rss - rss
            shards = []
            for shard in range(run.shards):
                manifest, extracted = client.read_manifest(run, shard), client.read_run_shard(run.run_id, shard)
                shards.append(_commit(client, enrolment, shard, manifest, extracted, owners))
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
    client: LocalStore, enrolment: Enrolment, shard: int, manifest: pa.Table, extracted: pa.Table, owners: Owners
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
        enrolment.commit(shard, manifest, extracted)
        seconds["rest"] = time.perf_counter() - begun - sum(seconds.values())
    (commit,) = commits
    return ShardTime(commit.faces.num_rows, owners(commit), known, seconds)


def _size(store: Path) -> int:
    """Of a store that is closed, without what is there only until a run is finished, and free blocks of the catalog."""
    files = (file for part in store.iterdir() if part.name != "runs" for file in (part, *part.rglob("*")))
    with duckdb.connect(str(store / (store / "CURRENT").read_text().strip()), read_only=True) as catalog:
        ((free,),) = catalog.execute("SELECT free_blocks * block_size FROM pragma_database_size()").fetchall()
    return sum(file.stat().st_size for file in files if file.is_file()) - int(free)


def figures_of(writing: Writing) -> dict[str, Any]:
    seconds = sum(one.total for one in writing.shards)
    return {
        "faces": writing.faces,
        "references": writing.shards[0].references,
        "new_persons": writing.new,
        "seconds": seconds,
        "seconds_by_part": {
            part: sum(one.seconds[part] for one in writing.shards) for part in writing.shards[0].seconds
        },
        "faces_per_second": writing.faces / seconds,
        "bytes_written": writing.bytes_written,
        "load_seconds": writing.load_seconds,
        "load_rss_bytes": writing.load_rss_bytes,
    }


def main() -> None:
    args = _arguments()
    write(Task(WARM_UP), args.crop_bytes, args.work)
    writings = {str(task): write(task, args.crop_bytes, args.work) for task in args.tasks}
    figures = {name: figures_of(one) for name, one in writings.items()}
    timings = {name: one.timing() for name, one in writings.items()}
    write_result("writer", settings_of(args) | {"tasks": [*writings]}, timings, figures, args)


def _arguments() -> argparse.Namespace:
    parser = argument_parser(__doc__)
    parser.add_argument("--work", type=Path, required=True, help="where the prepared stores are made, and found again")
    parser.add_argument(
        "--tasks", type=Task.of, nargs="+", default=[Task(20_000)], help="FACES or FACES:REFERENCES each"
    )
    parser.add_argument("--crop-bytes", type=int, default=6_000, help="of a stored picture")
    return parser.parse_args()


if __name__ == "__main__":
    main()
