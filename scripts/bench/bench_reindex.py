"""How long do requests wait while the store of their server gets another model?

    python scripts/bench/bench_reindex.py --identities 5000 --rate 30
    python scripts/bench/bench_reindex.py --photos FOLDER --rate 2 --build-seconds 300

The load is that of `serve_load`, in these phases: nothing else happens; a build; both models embed; a swap; the new
model answers; a rollback and a second swap. The server is that of `bench_serve`, without models: the store has two
faces of each identity, half of the requests insert somebody, and a build reads the photos and commits the vectors of a
second coded model. With `--photos` it is `facepipe serve` over a store of these photos by casia-webface, the build is
by sface, and all requests recognise the faces of a photo.

Asserts every answer: none fails, each names one model, that of its time, and each coded person is recognised as before;
and after the server has stopped that everybody is in the store, with vectors of both models, and `check` finds nothing.
Writes reindex-<device>.json, with `--photos` reindex-real-<device>.json.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
from bench_serve import HERE, NEW, Generator, Server, ask, hand_over, serving, spread
from coded_faces import CodedExtractor, Shown, coded_identity
from coded_store import PASSWORD, USER, extracted_run, make_store
from harness import argument_parser, settings_of, write_result
from serve_load import Load

from pipeline.evaluation.bench.harness import Timing
from pipeline.jobs.reindex import Reindex
from pipeline.jobs.store import open_store
from pipeline.store.checks.check import check_store
from pipeline.store.local import LocalStore
from pipeline.types import SilentProgress

SIZE, OTHER_SIZE = 512, 128
_CROP_BYTES, _SHARD_ROWS = 8_000, 512
_LEAD_S = 2.0  # of load before what a phase does, and after it
_NO_PICTURES = 10**9  # px, that a stored picture would need: coded ones can't be decoded
_OTHER = {"weights": "other", "weights_sha256": "1" * 64}


class Builder(CodedExtractor):
    """As a build wants it."""

    device = "cpu"
    embedder = SimpleNamespace(input_size=_NO_PICTURES)

    def table(self, faces: Sequence[Shown]) -> pa.Table:
        return super().table(faces).drop_columns(["crop"])


def build_coded(store: Path) -> None:
    """As `facepipe reindex`, by the other coded model."""
    builder = Builder(OTHER_SIZE, _CROP_BYTES)
    loading = patch("pipeline.jobs.reindex.load_extractor", lambda *_: builder)
    with loading, open_store(store, command="reindex") as opened:
        build = Reindex(opened, replace(coded_identity(OTHER_SIZE), **_OTHER), SilentProgress(), Event())
        build.estimate()
        build.build()


def prepared(folder: Path, args: argparse.Namespace) -> Path:
    store = folder / "store"
    if args.photos:
        ask(store, "run", str(args.photos), "--weights", "casia-webface")
        words = ["account", "create", USER, "--password-stdin", "--store", str(store)]
        subprocess.run([sys.executable, "-m", "pipeline", *words], input=PASSWORD, text=True, check=True)
        return store
    with make_store(store, SIZE) as client:
        faces = [Shown(k // 2, k % 2) for k in range(2 * args.identities)]
        extracted_run(client, "photos", faces, CodedExtractor(SIZE, _CROP_BYTES), _SHARD_ROWS, folder=folder / "photos")
    return store


class Phases:
    """The load, phase by phase."""

    def __init__(self, server: Server, args: argparse.Namespace) -> None:
        self._server, self._args = server, args
        self._generator = Generator()
        self._first_new = NEW
        self._known: dict[int, str] = {}  # person -> its id
        self.inserted: list[str] = []
        self.timings: dict[str, Timing] = {}
        self.figures: dict[str, Any] = {}

    def live(self, name: str, seconds: float, models: Sequence[str], *words: str) -> None:
        """Load for so long, and a command in it ("build", or the words of one). `models`: that may answer."""
        args, requests = self._args, round(self._args.rate * seconds)
        photos = sorted(map(str, Path(args.photos).rglob("*.jpg")))[:200] if args.photos else []
        self._generator.begin(
            Load(
                url=self._server.url,
                rate=args.rate,
                requests=requests,
                known=args.identities,
                first_new=self._first_new,
                photos=photos,
            )
        )
        self._first_new += requests
        time.sleep(_LEAD_S)
        begun = time.monotonic()
        if words:
            self._server_command(*words)
            self.figures[f"{name}_seconds"] = time.monotonic() - begun
        ended = time.monotonic()
        answers = self._generator.answers(planted=False)
        assert not words or answers[-1]["due"] > ended, f"the load ended before the {name}: give it more seconds"
        self._check(answers, models)
        waits = [each["done"] - each["due"] for each in answers]
        self.timings[name] = spread(waits)
        for p in (50, 99, 100):
            self.figures[f"{name}_wait_p{p}_ms"] = float(np.percentile(waits, p)) * 1000
        self.figures[f"{name}_requests"] = requests

    def _server_command(self, *words: str) -> None:
        store = self._args.store
        if words == ("build",) and not self._args.photos:
            command = [sys.executable, str(HERE / "bench_reindex.py"), "--build", str(store)]
            subprocess.run(command, check=True, cwd=HERE)
        elif words == ("build",):
            ask(store, "reindex", "--weights", "sface")
        else:
            for word in words:
                ask(store, "reindex", word)

    def _check(self, answers: Sequence[dict[str, Any]], models: Sequence[str]) -> None:
        """Statuses are checked by `Generator`."""
        order = []
        for each in answers:
            assert len(set(each["providers"])) <= 1, each
            order += [provider.partition("/")[2] for provider in each["providers"][:1]]
            if each["insert"]:
                self.inserted.append(each["person_id"])
            elif not self._args.photos:
                assert each["person_id"] == self._known.setdefault(each["person"], each["person_id"]), each
        assert set(order) == set(models), (set(order), models)

    def close(self) -> None:
        self._generator.close()


def check(store: Path, args: argparse.Namespace, inserted: Sequence[str]) -> dict[str, Any]:
    with LocalStore.open(store, command="bench") as client:
        found = client.read("SELECT person_id::VARCHAR AS person_id FROM core.persons")["person_id"].to_pylist()
        assert set(inserted) <= set(found)
        assert args.photos or len(found) == args.identities + len(inserted), (len(found), len(inserted))
        assert check_store(client).problems == []
        summary = client.generation_summary()
        assert summary["left"] == 0
        return {name: summary[name] for name in ("faces", "vectors", "bytes")} | {"persons": len(found)}


def measure(store: Path, args: argparse.Namespace) -> tuple[dict[str, Timing], dict[str, Any]]:
    first, second = ("casia-webface", "sface") if args.photos else ("none", "other")
    with serving(store, _CROP_BYTES, coded=not args.photos) as server:
        if not args.photos:
            hand_over(store, "photos")
        phases = Phases(server, args)
        phases.live("alone", args.seconds, [first])
        phases.live("build", args.build_seconds, [first], "build")
        phases.live("both models", args.seconds, [first])
        phases.live("swap", args.seconds, [first, second], "swap")
        phases.live("after the swap", args.seconds, [second])
        phases.live("rollback and swap", args.seconds, [first, second], "rollback", "swap")
        phases.close()
    figures = {**phases.figures, "failed": 0, "mixed": 0, **check(store, args, phases.inserted)}
    return phases.timings, {**figures, "load_average_after": os.getloadavg()[0]}


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--identities", type=int, default=5_000, help="coded ones, of two photos each")
    parser.add_argument("--photos", type=Path, help="a folder: real models")
    parser.add_argument("--rate", type=float, default=30.0, help="requests per second")
    parser.add_argument("--seconds", type=float, default=30.0, help="of load in each phase but the build")
    parser.add_argument("--build-seconds", type=float, default=90.0, help="of load around the build")
    parser.add_argument("--build", type=Path, metavar="STORE", help="only builds the other index of this store")
    args = parser.parse_args()
    if args.build:
        build_coded(args.build)
        return
    with tempfile.TemporaryDirectory() as folder:
        args.store = prepared(Path(folder), args)
        timings, figures = measure(args.store, args)
    write_result("reindex-real" if args.photos else "reindex", settings_of(args), timings, figures, args)


if __name__ == "__main__":
    main()
