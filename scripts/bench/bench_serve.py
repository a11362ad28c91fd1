"""How long does `POST /people` take on a live server, without model time, over a store of many identities?

    python scripts/bench/bench_serve.py --identities 100000 --rate 50

Instead of models stands `coded_faces`, which reads from the pixels whose face it is; everything else is `facepipe
serve`: HTTP over a socket, credentials, decoding, exact search over the whole directory, object, transaction, every
fsync. Half of the requests insert a new identity with a picture of 100 KB, half recognise a planted one. The load
comes from a process of its own (`serve_load`), open-loop and on the same processors: first at a constant rate
("steady"), then at the same mean rate as a Poisson process ("bursts"), then at a constant rate while a shard of 5,000
faces, half of them known, is handed over through the server's door.

Asserts every answer, and after the server has stopped that every inserted identity is in the store, once.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from coded_faces import CodedExtractor, Shown
from coded_server import LOADED
from coded_store import copied, extracted_run, make_store, person_id, plant
from harness import argument_parser, settings_of, write_result
from serve_load import Load

from pipeline.evaluation.bench.harness import Timing
from pipeline.jobs.store import open_store
from pipeline.store.checks.check import check_store
from pipeline.store.local import LocalStore

HERE = Path(__file__).resolve().parent
SIZE = 512
NEW = 10**9  # persons from here on are not planted
PHASES = ("steady", "bursts")
SETTLED = 500  # requests after which memory is compared, and before which latencies don't count


class Server:
    """A server process with `coded` faces or the store's models; `options` are more of `facepipe serve`."""

    def __init__(self, store: Path, crop_bytes: int, *options: str, coded: bool = True) -> None:
        begun = time.monotonic()
        program = [str(HERE / "coded_server.py"), str(crop_bytes)] if coded else ["-m", "pipeline", "serve"]
        command = [sys.executable, *program, "--store", str(store)]
        command += ["--port", "0", "--person-headers", "optional", "--quiet", "--json", *options]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self._errors: list[str] = []
        self._reader = threading.Thread(target=self._read_errors, daemon=True)
        self._reader.start()
        line = self.process.stdout.readline()
        listening = time.monotonic()
        assert line, "\n".join(self._errors)
        self.url = str(json.loads(line)["url"])
        told = (float(each.removeprefix(LOADED)) for each in self._errors if each.startswith(LOADED))
        loaded = next(told, begun)
        self.start_seconds = listening - begun
        self.start_seconds_after_models = listening - loaded

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self._errors.append(line.rstrip())
            if not line.startswith(LOADED):
                sys.stderr.write(line)

    def rss_bytes(self, *, peak: bool = False) -> int:
        status, name = Path(f"/proc/{self.process.pid}/status").read_text(), "VmHWM:" if peak else "VmRSS:"
        return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith(name))

    def stop(self) -> None:
        self.process.terminate()
        assert self.process.wait(60) == 0

    def close(self) -> None:
        self.process.kill()
        self._reader.join()
        with self.process:  # closes its pipes
            pass


@contextmanager
def serving(store: Path, crop_bytes: int, *options: str, coded: bool = True) -> Iterator[Server]:
    server = Server(store, crop_bytes, *options, coded=coded)
    try:
        yield server
        server.stop()
    finally:
        server.close()


def ask(store: Path, *words: str) -> Any:
    """What a command of `facepipe` answers, which finds the server of this store."""
    command = [sys.executable, "-m", "pipeline", *words, "--store", str(store), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=HERE.parents[1])
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


class Generator:
    """The load's own process."""

    def __init__(self) -> None:
        command = [sys.executable, str(HERE / "serve_load.py")]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def begin(self, load: Load) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(asdict(load)) + "\n")
        self._process.stdin.flush()

    def answers(self, *, planted: bool = True) -> list[dict[str, Any]]:
        """Of the load that was begun; each is as it should be. `planted`: the known persons have the ids of `plant`."""
        assert self._process.stdout is not None
        answers: list[dict[str, Any]] = json.loads(self._process.stdout.readline())
        for each in answers:
            assert each["status"] in (200, 201), each
            assert each["new"] == each["insert"], each
            assert not planted or each["insert"] or each["person_id"] == person_id(each["person"]), each
        return answers

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def prepared(path: Path, args: argparse.Namespace) -> None:
    """A store of planted identities, and a run whose one shard waits to be handed over."""
    identities, shard_faces = args.identities, args.shard_faces
    with make_store(path, SIZE) as client:
        plant(client, identities)
        known = [Shown(k * (identities // shard_faces or 1) % identities, 2) for k in range(shard_faces // 2)]
        new = [Shown(2 * NEW + k) for k in range(shard_faces - len(known))]
        mixed = [face for pair in zip(known, new, strict=False) for face in pair]
        extracted_run(client, "shard", mixed, CodedExtractor(SIZE, args.shard_object_bytes), shard_faces)


def hand_over(store: Path, source: str = "shard") -> float:
    """Seconds that the door takes for the shards that wait."""
    with open_store(store, command="bench") as remote:
        run = remote.runs(source).unfinished
        assert run is not None
        assert remote.server is not None
        begun = time.monotonic()
        for shard in range(run.shards or 0):
            remote.commit_shard(run.run_id, shard, remote.identity.model)
        seconds = time.monotonic() - begun
        remote.end_run(run.run_id, {})
        return seconds


def latencies(answers: Sequence[dict[str, Any]]) -> dict[str, list[float]]:
    """Seconds by kind of request."""
    kinds = {"insert": True, "recognise": False}
    found = {kind: [a["done"] - a["due"] for a in answers if a["insert"] == value] for kind, value in kinds.items()}
    return {"all": found["insert"] + found["recognise"], **found}


def percentiles(name: str, seconds: dict[str, list[float]]) -> dict[str, float]:
    return {
        f"{name}_{kind}_p{p}_ms": float(np.percentile(values, p)) * 1000
        for kind, values in seconds.items()
        for p in (50, 99, 100)
    }


def spread(seconds: Sequence[float]) -> Timing:
    """The percentiles 0 to 100 of thousands of times."""
    return Timing(np.percentile(seconds, range(101)).tolist())


def check(store: Path, inserted: Sequence[str], identities: int, shard_faces: int) -> None:
    """Every insertion that was answered is in the store, once; nothing else is wrong with it."""
    with LocalStore.open(store, command="bench") as client:
        found = client.read("SELECT person_id::VARCHAR AS person_id FROM core.persons")["person_id"].to_pylist()
        assert len(found) == len(set(found)) == identities + len(inserted) + shard_faces // 2
        assert set(inserted) <= set(found)
        planted = "reference_faces.image_guid"  # those have no pictures
        problems = [each for each in check_store(client).problems if planted not in f"{each.where} {each.detail}"]
        assert not problems, problems[:5]


def measure(store: Path, args: argparse.Namespace) -> tuple[dict[str, Timing], dict[str, Any]]:
    figures: dict[str, Any] = {}
    seconds: dict[str, dict[str, list[float]]] = {}  # by phase and kind of request
    half = (SETTLED + args.requests) // 2
    phases = (range(SETTLED, half), range(half, args.requests))
    inserted: list[str] = []
    generator = Generator()
    with serving(store, args.object_bytes) as server:
        figures["start_seconds"] = server.start_seconds
        figures["start_seconds_after_models"] = server.start_seconds_after_models

        def load(requests: int, first_new: int, *, bursts: bool = False) -> Load:
            return Load(
                url=server.url,
                rate=args.rate,
                requests=requests,
                known=args.identities,
                first_new=first_new,
                body_bytes=args.object_bytes,
                bursts=bursts,
            )

        def take(answers: list[dict[str, Any]]) -> list[dict[str, Any]]:
            inserted.extend(each["person_id"] for each in answers if each["insert"])
            return answers

        generator.begin(load(SETTLED, NEW))
        take(generator.answers())
        figures["rss_settled_bytes"] = server.rss_bytes()
        for name, first in zip(PHASES, phases, strict=True):
            generator.begin(load(first.stop - first.start, NEW + first.start, bursts=name == "bursts"))
            answers = take(generator.answers())
            seconds[name] = latencies(answers)
            late = [each["sent"] - each["due"] for each in answers]
            figures[f"{name}_sent_late_p99_ms"] = float(np.percentile(late, 99)) * 1000
        figures["rss_bytes"] = server.rss_bytes()
        figures["rss_growth"] = figures["rss_bytes"] / figures["rss_settled_bytes"] - 1
        generator.begin(load(round(args.rate * args.hand_over_seconds), NEW + args.requests))
        time.sleep(2)
        begun = time.monotonic()
        figures["hand_over_seconds"] = hand_over(store)
        ended = time.monotonic()
        answers = take(generator.answers())
        assert answers[-1]["due"] > ended, "the load ended before the shard was in: --hand-over-seconds"
        seconds["hand_over"] = latencies([each for each in answers if each["done"] > begun and each["due"] < ended])
    generator.close()
    for name, each in seconds.items():
        figures |= percentiles(name, each)
    check(store, inserted, args.identities, args.shard_faces)
    return {name: spread(each["all"]) for name, each in seconds.items()}, figures


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--identities", type=int, default=100_000)
    parser.add_argument("--requests", type=int, default=5_000)
    parser.add_argument("--rate", type=float, default=50.0, help="requests per second")
    parser.add_argument("--object-bytes", type=int, default=100_000, help="of a stored picture, and of a body")
    parser.add_argument("--shard-faces", type=int, default=5_000)
    parser.add_argument("--shard-object-bytes", type=int, default=8_000)
    parser.add_argument("--hand-over-seconds", type=float, default=60.0, help="of load around the shard")
    parser.add_argument("--template", type=Path, help="keeps the prepared store here, or takes it from here")
    args = parser.parse_args()
    with copied(args.template, lambda store, _: prepared(store, args)) as (store, _):
        timings, figures = measure(store, args)
    write_result("serve", settings_of(args), timings, figures, args)


if __name__ == "__main__":
    main()
