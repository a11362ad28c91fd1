"""How much CPU time does `facepipe run` spend on one image apart from the networks, and how much under Python's lock?

    python scripts/bench/bench_host.py --faces FOLDER --work FOLDER [--corpus a b c] [--images 256] [--repeats 5]

Each corpus is one shard, as large as a run makes it of such photos, in a new account of one store: everybody is new.
The networks find the faces once. Then every part is done by the functions that a run calls, with one thread of each
kind: a turn takes their CPU time (of all threads), and another turn samples the interpreter's lock (`Knocker`).

Asserts that pixels are Pillow's, that hashes, pictures and the shard's table are the same in each turn, and that every
row and face is committed. Needs Linux, which counts a thread's switches.
"""

from __future__ import annotations

import hashlib
import random
import resource
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from itertools import cycle
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
from bench_decode import assert_equal
from bench_memory import settings_for
from corpora import SIZES, make_corpus, read_sources
from harness import argument_parser, settings_of, write_result
from PIL import Image

from pipeline.config import Settings
from pipeline.evaluation.bench.facepipe import FacepipeChain, manifest_rows
from pipeline.evaluation.bench.harness import Timing
from pipeline.extraction.engine import LocalEngine
from pipeline.extraction.images.batch import HostBatch, PixelMemory, host_memory
from pipeline.extraction.images.decode import Decoder
from pipeline.extraction.images.files import read_with_state
from pipeline.extraction.images.jpeg import jpeg_pixels
from pipeline.extraction.rows import CROP, ExtractedRow, read_rows
from pipeline.extraction.sources.folder import ScanCounts
from pipeline.extraction.sources.scan import scan_source
from pipeline.extraction.stored_picture import HeldPictures
from pipeline.jobs.store import Store, open_or_create_store
from pipeline.people.directory import Directories
from pipeline.people.shards import Enroller
from pipeline.run.plan import Plan
from pipeline.run.session import RunRequest, open_session
from pipeline.types import FileState

WANTED_MS = {"a": 0.5, "b": 3.2, "c": 30.0}  # of CPU time per image
SIDE = {"a": (250, 250), **SIZES}
# A commit's pieces are methods of the store; the rest of it is reading the rows back and deciding.
COMMITTING = {"files": "prepare_shard", "transaction": "commit_prepared", "follow": "settle_shard"}
PARTS = (
    *("walk", "plan", "read", "open", "decode", "hash", "items", "pack", "encode", "table"),
    *("rows", "decide", *COMMITTING),
)
KNOCK_S = 0.00025  # between two knocks, on average


class Knocker:
    """Samples how long others hold the interpreter's lock: a thread that sleeps, and then wants the lock.

    The kernel counts the switches of a thread: one for the sleep, another where it had to wait for the lock. The sleeps
    are exponentially distributed, so the share of knocks that had to wait is the share of the sleeping time in which
    the lock was held; the waits are added. Little is disturbed, and a busy machine changes the share hardly.
    """

    def __init__(self) -> None:
        self.seen = np.zeros(4)  # knocks, those that had to wait, seconds asleep, seconds that they waited
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._knock, daemon=True)

    def __enter__(self) -> Knocker:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _knock(self) -> None:
        chance, late, free, switches = random.Random(5), 0.0, 0, _switches()
        while not self._done.is_set():
            asked, begun = chance.expovariate(1 / KNOCK_S), time.perf_counter()
            time.sleep(asked)
            took, before, switches = time.perf_counter() - begun, switches, _switches()
            asleep = took
            waited = switches - before > 1
            if waited:
                asleep = min(took, asked + late / max(1, free))
            else:
                late, free = late + took - asked, free + 1
            self.seen = self.seen + np.array([1, waited, asleep, took - asleep])


def _switches() -> int:
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw


@dataclass
class Meter:
    """Seconds of each part: CPU time of all threads, wall clock; with a knocker, of the interpreter's lock."""

    knocker: Knocker | None = None
    spent: dict[str, np.ndarray] = field(default_factory=dict)

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        before = self._now()
        yield
        self.spent[name] = self.spent.get(name, 0) + self._now() - before

    def _now(self) -> np.ndarray:
        """CPU time, wall clock, this thread's wait for a core, and what the knocker saw."""
        queued = int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9
        seen = np.zeros(4) if self.knocker is None else self.knocker.seen
        return np.array([time.process_time(), time.perf_counter(), queued, *seen])

    def seconds(self) -> dict[str, dict[str, float]]:
        """cpu, wall and lock by part; those without a function of their own are what the others leave."""
        of = {name: self.of(name) for name in self.spent}
        of["plan"] -= of["walk"]
        of["items"] = of.pop("small_engine") - of.pop("small_images")
        of["decide"] = of["commit"] - of["rows"] - of["encode"] - sum(of[name] for name in COMMITTING)
        return {name: dict(zip(("cpu", "wall", "lock"), one.clip(0).tolist(), strict=True)) for name, one in of.items()}

    def of(self, name: str) -> np.ndarray:
        """The three numbers of a part."""
        cpu, wall, queued, knocks, met, asleep, waited = self.spent[name]
        held = asleep * met / knocks + waited if knocks else 0.0
        return np.array([cpu, wall, held * max(0.0, 1 - queued / wall)])  # not while a holder stood in line for a core


class FacesFound:
    """Stands where the models do: answers the faces that they found before, image by image."""

    device = "cpu"

    def __init__(self, shard: pa.Table) -> None:
        self._faces = cycle([pa.Table.from_struct_array(faces.values).drop(CROP.name) for faces in shard["faces"]])

    def extract(self, images: Sequence[object], *_: object) -> list[pa.Table]:
        return [next(self._faces) for _ in images]


class HostWork:
    """What the host does for one shard of real photos, any number of times."""

    def __init__(self, files: Sequence[Path], chain: FacepipeChain, scratch: Path) -> None:
        self.files, self.chain, self.settings = files, chain, chain.settings
        self._decoder = Decoder(self.settings.decode)
        assert_equal([file.read_bytes() for file in files], lambda data: self._decoder(data).pixels)
        self._rows = manifest_rows(files)
        self._held = HeldPictures()
        self._memory = PixelMemory(self.settings.run.batch_pixels, host_memory)
        self._pictures: list[str] = []  # hashes of those that the first turn encoded
        size, decoder = chain.extractor.embedder.embedding_size, self._decoder
        self._engine = LocalEngine(
            self.settings, size, decoder, chain.pixel_hash, lambda: chain.extractor, held=self._held
        )
        self.table = self._extracted(self._rows)
        self._held.forget(range(len(files)))
        self.faces = sum(len(faces) for faces in self.table["faces"])
        self._models, chain.extractor = chain.extractor, FacesFound(self.table)
        self._small = [scratch / f"{number}.jpg" for number in range(len(files))]
        for file, small in zip(files, self._small, strict=True):
            with Image.open(file) as image:
                image.resize((24, 24)).save(small)
        self._small_rows = manifest_rows(self._small)
        self._store = open_or_create_store(scratch / "store", self.settings, "bench")
        self._turns = 0

    def close(self) -> None:
        self._store.close()
        self.chain.extractor = self._models

    def turn(self, meter: Meter) -> dict[str, int]:
        """Everything once; the outcomes of the faces."""
        self._turns += 1
        store, folder = self._store, self.files[0].parent
        request = RunRequest(folder, store.path, self.settings, account=f"turn-{self._turns}")
        store.create_account(request.account, None)
        with open_session(request, None, None, opened=store) as session:
            with meter.part("walk"):
                found = list(scan_source(folder, self.settings.source, ScanCounts()))
            with meter.part("plan"):
                plan = Plan(session)
                plan.write()
                run = plan.run
                manifest = store.read_manifest(run, 0)
        assert (len(found), run.rows, run.shards) == (len(self.files), len(self.files), 1)
        self._extract(meter, read_rows(manifest, self.table))
        with meter.part("table"):
            store.write_run_shard(run.run_id, 0, self.table, {})
        with meter.part("rows"):
            read_rows(manifest, self.table)
        enroller = Enroller(store.local, run, self._decoder, Directories(store.local), held=self._held)
        with ExitStack() as metered:
            encoding = _metered(meter, "encode", enroller._add_pictures, self._same_pictures)
            metered.enter_context(patch.object(enroller, "_add_pictures", encoding))
            for name, method in COMMITTING.items():
                call = _metered(meter, name, getattr(store.local, method))
                metered.enter_context(patch.object(store.local, method, call))
            with meter.part("commit"):
                enroller.commit(0, manifest, self.table)
        store.end_run(run.run_id, {})
        return self._committed(store, run.run_id, session.account_id)

    def _extract(self, meter: Meter, rows: Sequence[ExtractedRow]) -> None:
        """The parts of extraction, batch by batch; then the engine over tiny pictures, and as a whole."""
        limits = self.settings.run
        pixels = self.table["width"][0].as_py() * self.table["height"][0].as_py()
        size = max(1, min(limits.batch_images, limits.batch_pixels // pixels))
        for start in range(0, len(rows), size):
            batch = rows[start : start + size]
            with meter.part("read"):
                data = [self._read(file, row.manifest) for file, row in zip(self.files[start:], batch, strict=False)]
            assert [row.sha256 for row in batch] == [row.manifest["sha256"] for row in batch]
            with meter.part("open"):
                opened = [self._decoder.open(one) for one in data]
            with meter.part("decode"):
                images = [jpeg_pixels(one.data, one.width, one.height) for one in opened]
            with meter.part("hash"):
                hashes = [self.chain.pixel_hash(image) for image in images]
            assert hashes == [row.image["pixel_hash"] for row in batch], "another hash of the pixels"
            with meter.part("pack"), self._memory.taken(pixels * len(images)) as memory:
                HostBatch(images, memory)
        small = self._small_rows.to_pylist()
        with meter.part("small_images"):
            for file, row in zip(self._small, small, strict=True):
                opened = self._decoder.open(self._read(file, row))
                jpeg_pixels(opened.data, opened.width, opened.height)
        with meter.part("small_engine"):
            self._extracted(self._small_rows)
        self._held.forget(range(len(rows)))
        with meter.part("engine"):
            table = self._extracted(self._rows)
        assert table.equals(self.table), "another shard"

    def _read(self, file: Path, row: Mapping[str, Any]) -> bytes:
        """The file's bytes, hashed where its state does not tell that they are those of the row."""
        data, state = read_with_state(file, self.settings.decode.max_bytes)
        known = state == tuple(row[name] for name in FileState._fields)
        assert known or hashlib.sha256(data).hexdigest() == row["sha256"]
        return data

    def _extracted(self, manifest: pa.Table) -> pa.Table:
        [(_, table)] = self._engine.run_shards([(0, manifest)], lambda _: None)
        return table

    def _same_pictures(self, _shard: Any, parts: Sequence[Any]) -> None:
        files = [part.photos.plan.pictures[face_id] for part in parts for face_id in part.new_references()]
        hashes = [hashlib.sha256(file).hexdigest() for file in files]
        assert hashes == (self._pictures or hashes), "another picture"
        self._pictures = hashes

    def _committed(self, store: Store, run_id: str, account_id: int) -> dict[str, int]:
        counts = store.count_runs(account_id, [run_id]).counts
        assert sum(counts.statuses.values()) == len(self.files)
        assert sum(counts.outcomes.values()) == self.faces, "a face is missing"
        assert counts.persons == counts.outcomes["inserted"]
        return counts.outcomes


def _metered(
    meter: Meter, name: str, method: Callable[..., Any], check: Callable[..., None] = lambda *_: None
) -> Callable[..., Any]:
    """The method, timed; then `check` gets its arguments."""

    def call(*arguments: Any) -> Any:
        with meter.part(name):
            answer = method(*arguments)
        check(*arguments)
        return answer

    return call


def measure(work: HostWork, repeats: int) -> tuple[dict[str, Timing], dict[str, Any]]:
    """Timings by part ("decode", "decode_lock"), and the figures per image in milliseconds."""
    outcomes = work.turn(Meter())
    turns = []
    for _ in range(repeats):
        plain = Meter()
        assert work.turn(plain) == outcomes
        with Knocker() as knocker:
            sampled = Meter(knocker)
            assert work.turn(sampled) == outcomes
        turns.append((plain.seconds(), sampled.seconds()))
    names = (*PARTS, "engine", "commit")
    cpu, wall = ({name: Timing([turn[name][kind] for turn, _ in turns]) for name in names} for kind in ("cpu", "wall"))
    # Longer than it worked no part holds the lock; a sample may say so.
    lock = {name: Timing([min(s[name]["lock"], p[name]["cpu"]) for p, s in turns]) for name in names}
    ms = {
        kind: {name: 1000 * one[name].median / len(work.files) for name in names}
        for kind, one in (("cpu", cpu), ("wall", wall), ("lock", lock))
    }
    together = {kind: sum(ms[kind][name] for name in PARTS) for kind in ("cpu", "lock")}
    figures = {
        "images": len(work.files),
        "faces": outcomes,
        "ms": ms,
        "ms_together": together,
        "images_per_s_of_one_interpreter": 1000 / together["lock"],
    }
    return {**cpu, **{f"{name}_lock": timing for name, timing in lock.items()}}, figures


def shard_rows(corpus: str, settings: Settings, most: int) -> int:
    """How many such photos a shard takes."""
    width, height = SIDE[corpus]
    return min(most, settings.run.shard_rows, settings.run.shard_pixels // (width * height))


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--faces", type=Path, required=True, help="the folder of photos")
    parser.add_argument("--work", type=Path, required=True, help="where the corpora are made, and found again")
    parser.add_argument("--corpus", nargs="+", choices=list(WANTED_MS), default=list(WANTED_MS))
    parser.add_argument("--images", type=int, default=256, help="at most so many photos of a corpus")
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    sources, settings = read_sources(arguments.faces), settings_for("cpu", "casia-webface")
    settings = replace(settings, run=replace(settings.run, threads=1))
    chain = FacepipeChain(settings)
    timings: dict[str, Timing] = {}
    figures: dict[str, Any] = {}
    for name in arguments.corpus:
        files = make_corpus(name, sources, arguments.work, shard_rows(name, settings, arguments.images))
        with tempfile.TemporaryDirectory(dir=arguments.work) as scratch:
            work = HostWork(files, chain, Path(scratch))
            try:
                of_corpus, figures[name] = measure(work, arguments.repeats)
            finally:
                work.close()
        figures[name]["wanted_ms"] = WANTED_MS[name]
        timings |= {f"{name}_{part}": timing for part, timing in of_corpus.items()}
    write_result("host", settings_of(arguments), timings, figures, arguments)


if __name__ == "__main__":
    main()
