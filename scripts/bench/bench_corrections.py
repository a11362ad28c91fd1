"""How long do corrections keep a server's requests waiting, in a store of many identities?

    python scripts/bench/bench_corrections.py --identities 100000 --regrouped 10000 --rate 50

The server is that of `bench_serve`, over a real port, without models. Four fifths of the load go to a directory of
`--identities` planted persons: insertions, recognitions and reads of records. The rest goes to another directory, whose
`--regrouped` faces (two of each person, with photos on disk) a run brought. Meanwhile the commands of a user correct
both, each as a process of its own that finds the server: `facepipe people name`, `merge`, `move`, `undo`, `forget`, and
a `facepipe regroup` that makes a new person of each second face, and its undo.

What a command keeps others waiting is the longest time from when a request was due to its answer, of those that were
open while it ran. Asserts every answer; and after the server has stopped that every insertion and correction is in,
nobody else is gone, and `check` finds nothing.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from bench_serve import NEW, Generator, Server, ask, hand_over, serving, spread
from coded_faces import CodedExtractor, Shown
from coded_store import copied, extracted_run, make_store, person_id, plant
from harness import argument_parser, settings_of, write_result
from serve_load import Load

from pipeline.evaluation.bench.harness import Timing
from pipeline.store.checks.check import check_store
from pipeline.store.local import LocalStore

SIZE = 512
MAIN, SECOND = "main", "second"
STRICT = "0.01"  # a threshold between no two photos of one person
_SHARD_ROWS = 5_000
_CORRECTED = 100  # of the planted persons: the last, which no request is about
_LEAD_S = 2.0  # of load before a command, and after it


def prepared(path: Path, photos: Path, args: argparse.Namespace) -> None:
    """A store of planted persons, and a run of two photos of each of other persons, which waits to be handed over."""
    with make_store(path, SIZE) as client:
        plant(client, args.identities, MAIN)
        faces = [Shown(k % (args.regrouped // 2), k // (args.regrouped // 2)) for k in range(args.regrouped)]
        extracted_run(client, "photos", faces, CodedExtractor(SIZE, args.crop_bytes), _SHARD_ROWS, SECOND, photos)


class Loads:
    """The load on both directories."""

    def __init__(self, server: Server, args: argparse.Namespace) -> None:
        self._url, self._args = server.url, args
        self._main, self._second = Generator(), Generator()
        self._next_new = NEW
        self.inserted: list[str] = []
        self.answers: list[dict[str, Any]] = []
        self.late: list[float] = []

    def _load(self, directory: str, rate: float, seconds: float, known: int) -> Load:
        first, requests = self._next_new, round(rate * seconds)
        self._next_new += requests
        return Load(
            url=self._url,
            rate=rate,
            requests=requests,
            known=known,
            first_new=first,
            body_bytes=self._args.object_bytes,
            directory=directory,
            reads=directory == MAIN,
        )

    @contextmanager
    def during(self, seconds: float) -> Iterator[None]:
        """Load for so long, in which the block must end. Afterwards `answers` are those of this time."""
        args = self._args
        self._main.begin(self._load(MAIN, args.rate * 0.8, seconds, args.identities - _CORRECTED))
        self._second.begin(self._load(SECOND, args.rate * 0.2, seconds, args.regrouped // 2))
        time.sleep(_LEAD_S)
        yield
        ended = time.monotonic()
        main, second = self._main.answers(), self._second.answers(planted=False)
        assert min(main[-1]["due"], second[-1]["due"]) > ended, "the load ended before the command: --seconds"
        self.answers = main + second
        self.inserted += [each["person_id"] for each in self.answers if each["insert"]]
        self.late += [each["sent"] - each["due"] for each in self.answers]

    def close(self) -> None:
        self._main.close()
        self._second.close()


class Commands:
    """The commands of a user, and what they must have done in the end."""

    def __init__(self, store: Path, identities: int) -> None:
        self._store = store
        self._persons = map(person_id, range(identities - _CORRECTED, identities))
        self.gone: set[str] = set()
        self.made: set[str] = set()
        self.names: dict[str, str] = {}
        self.parents: dict[str, str] = {}  # person -> the one it is merged with
        self.owners: dict[int, str] = {}  # face -> person
        self.moved: dict[int, dict[str, Any]] = {}  # by the last regroup

    def ask(self, *words: str) -> Any:
        return ask(self._store, *words)

    def name(self) -> None:
        who = next(self._persons)
        self.names[who] = f"Name {len(self.names)}"
        self.ask("people", "name", who, self.names[who], "--directory", MAIN)

    def merge(self) -> None:
        one, other = next(self._persons), next(self._persons)
        self.ask("people", "merge", one, other, "--directory", MAIN)
        self.parents[other] = one

    def undo_merge(self) -> None:
        """The last one."""
        assert self.ask("people", "undo", "--directory", MAIN)["kind"] == "merge"
        self.parents.popitem()

    def move(self) -> None:
        """The only face of a planted person, who then goes, to another."""
        who, to = next(self._persons), next(self._persons)
        (face,) = self.ask("people", "photos", who, "--directory", MAIN)["faces"]
        answer = self.ask("people", "move", str(face["face_id"]), to, "--directory", MAIN)
        assert answer["gone"] == [who], answer
        self.gone.add(who)
        self.owners[face["face_id"]] = to

    def forget(self) -> None:
        who = next(self._persons)
        assert self.ask("people", "forget", who, "--yes", "--directory", MAIN)["gone"] == [who]
        self.gone.add(who)

    def regroup(self) -> None:
        answer = self.ask("regroup", "--threshold", STRICT, "--yes", "--directory", SECOND)
        self.made = set(answer["regrouping"]["new"])
        self.moved = {move["face_id"]: move for move in answer["regrouping"]["moves"]}
        assert answer["gone"] == [], answer["gone"][:5]

    def undo_regroup(self) -> None:
        answer = self.ask("people", "undo", "--directory", SECOND)
        assert set(answer["gone"]) == self.made
        assert len(answer["faces"]) == len(self.moved)
        self.made = set()


def measure(store: Path, args: argparse.Namespace) -> tuple[dict[str, Timing], dict[str, Any]]:
    figures: dict[str, Any] = {"load_average_before": os.getloadavg()[0]}
    timings: dict[str, Timing] = {}
    with serving(store, args.object_bytes) as server:
        commands, loads = Commands(store, args.identities), Loads(server, args)
        hand_over(store, "photos")
        steps: list[tuple[Callable[[], None], int, float]] = [
            *((step, args.repeats, args.seconds) for step in (commands.name, commands.merge, commands.undo_merge)),
            *((step, args.repeats, args.seconds) for step in (commands.move, commands.forget)),
            (commands.regroup, 1, args.regroup_seconds),
            (commands.undo_regroup, 1, args.regroup_seconds),
            (commands.regroup, 1, args.regroup_seconds),
        ]
        with loads.during(args.seconds):
            begun = time.monotonic()
            time.sleep(args.seconds - 2 * _LEAD_S)
            ended = time.monotonic()
        timings["no command"] = spread(waits(loads.answers, [(begun, ended)]))
        for step, repeats, seconds in steps:
            name = step.__name__
            spans = []
            with loads.during(seconds):
                for _ in range(repeats):
                    begun = time.monotonic()
                    step()
                    spans.append((begun, time.monotonic()))
            timings[name] = spread(waits(loads.answers, spans))
            figures[f"{name}_seconds"] = float(np.median([ended - begun for begun, ended in spans]))
        loads.close()
    for name, timing in timings.items():
        p50, p99, longest = (timing.seconds[p] * 1000 for p in (50, 99, 100))
        figures |= {f"{name}_wait_p50_ms": p50, f"{name}_wait_p99_ms": p99, f"{name}_wait_longest_ms": longest}
    figures |= {"requests": len(loads.late), "failed_requests": 0}  # `Generator.answers` asserts each
    figures["sent_late_p99_ms"] = float(np.percentile(loads.late, 99)) * 1000
    figures["moved_by_regroup"] = len(commands.moved)
    figures["load_average_after"] = os.getloadavg()[0]
    check(store, args, commands, loads.inserted)
    return timings, figures


def waits(answers: Sequence[dict[str, Any]], spans: Sequence[tuple[float, float]]) -> list[float]:
    """Seconds of each request that was open in one of these times."""
    return [
        each["done"] - each["due"]
        for each in answers
        if any(each["done"] > begun and each["due"] < ended for begun, ended in spans)
    ]


def check(store: Path, args: argparse.Namespace, commands: Commands, inserted: Sequence[str]) -> None:
    """All that was answered is in the store, and nothing else is another."""
    with LocalStore.open(store, command="bench") as client:
        account = client.account_id("ann")
        rows = [row for name in (MAIN, SECOND) for row in client.people(account, name).to_pylist()]
        found = {row["person_id"]: row for row in rows}
        planted = {person_id(person) for person in range(args.identities)}
        assert planted - found.keys() == commands.gone
        assert set(inserted) <= found.keys()
        assert commands.made <= found.keys()
        assert len(commands.made) == len(commands.moved) == args.regrouped // 2
        assert len(found) == args.identities - len(commands.gone) + len(inserted) + args.regrouped
        assert {who: found[who]["name"] for who in commands.names} == commands.names
        roots = {row["person_id"]: row["root_person_id"] for row in rows if row["root_person_id"] != row["person_id"]}
        assert roots == commands.parents
        faces = commands.owners | {face: move["after"] for face, move in commands.moved.items()}
        own = client.read("SELECT face_id, person_id::VARCHAR AS person_id FROM core.faces").to_pylist()
        assert faces.items() <= {row["face_id"]: row["person_id"] for row in own}.items()
        without_picture = "reference_faces.image_guid"  # the planted persons
        problems = [p for p in check_store(client).problems if without_picture not in f"{p.where} {p.detail}"]
        assert not problems, problems[:5]


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--identities", type=int, default=100_000)
    parser.add_argument("--regrouped", type=int, default=10_000, help="faces of the directory that is grouped anew")
    parser.add_argument("--rate", type=float, default=50.0, help="requests per second")
    parser.add_argument("--repeats", type=int, default=3, help="of each correction")
    parser.add_argument("--seconds", type=float, default=20.0, help="of load around the corrections of one kind")
    parser.add_argument("--regroup-seconds", type=float, default=60.0, help="of load around a regroup")
    parser.add_argument("--object-bytes", type=int, default=100_000, help="of a stored picture, and of a body")
    parser.add_argument("--crop-bytes", type=int, default=8_000, help="of a picture that the run stores")
    parser.add_argument("--template", type=Path, help="keeps the prepared store here, or takes it from here")
    args = parser.parse_args()
    with copied(args.template, lambda store, photos: prepared(store, photos, args)) as (store, _):
        timings, figures = measure(store, args)
    write_result("corrections", settings_of(args), timings, figures, args)


if __name__ == "__main__":
    main()
