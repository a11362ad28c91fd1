"""How much sooner is facepipe than the loop that facenet-pytorch's README shows, and where does the time go?

    python scripts/bench/bench_extract.py --faces FOLDER --work FOLDER [--corpus a b c d] [--images 256]
        [--weights casia-webface sface] [--device cpu] [--config FILE] [--turn-seconds 2]

From photo files to embedded faces; `run` goes on to a committed store. FOLDER of --faces holds lfw-view1/images and
groups-with-boxes; the corpora are made in the folder of --work, once. Both sides run as one process with a thread per
core and as one process per core with one thread, on CUDA as four processes that share the cores, their models loaded
and warm, in turns; of the reference the faster counts, of facepipe what `facepipe extract` does, in the modes `exact`
and `fast`, and what `facepipe run` does. A turn goes over the photos as often as fills --turn-seconds (`passes`); the
seconds in the result are those of one pass.

The reference gets images of one size in one list. facepipe has the reference's crops (margin and resampling), and does
more: it hashes files and pixels, judges quality and cuts the picture to store. On CUDA it has the settings of
configs/cuda.yaml, and no side computes in TF32. facenet-pytorch has no SFace: there the reference embeds in the plain
torch network. Writes extract-<weights>.

Asserts, of the warm-up's output: the reference's faces (`comparison.assert_same_faces`) in both modes and in the store
of `run`, which holds all rows and faces; a cosine of at least 0.999 between both embeddings of each of the same boxes,
in the mode `fast`, which may compute in bfloat16, of 0.997; and as many faces in every turn, in `run` as many
identities.
"""

from __future__ import annotations

import argparse
import math
import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from statistics import median
from typing import Any, Final

import duckdb
import numpy as np
import torch
from bench_memory import models_loaded_once, write_manifest
from comparison import (
    LEAST_COSINE,
    assert_same_embeddings,
    assert_same_faces,
    cosine_figures,
    matched_cosines,
    parity_figures,
)
from corpora import add_corpus_arguments, distinct, measure_corpora
from harness import argument_parser, paired_ratio, settings_for, settings_of, write_result
from stage_costs import STAGES, stage_costs
from workers import Chain, Variant, Workers

from pipeline.config import FAST, Settings
from pipeline.evaluation.bench.facepipe import FacepipeChain, comparable, embeddings_of_boxes
from pipeline.evaluation.bench.harness import Timing, interleave, timed
from pipeline.evaluation.bench.parity import Extracted, compare_faces, cosines
from pipeline.evaluation.bench.reference import LIST_IMAGES, LIST_PIXELS, ReferenceChain, equal_sized, image_size
from pipeline.models.weights import cache_folder, resolve
from pipeline.run.run import RunRequest, run
from pipeline.runtime.device import resolve_device
from pipeline.runtime.threads import usable_cores

OURS, FAST_MODE, RUN, REFERENCE = "facepipe", "fast", "run", "reference"
CUDA_CONFIG: Final = Path(__file__).resolve().parents[2] / "configs" / "cuda.yaml"
LEAST_COSINE_FAST: Final = 0.997  # sface in bfloat16: see docs/speed.md
STAGE_PASSES = 3  # of which the quickest counts
_DETECTIONS = """
    SELECT m.path, [d.x1, d.y1, d.x2, d.y2] AS box, d.landmarks, d.confidence
    FROM core.faces f JOIN core.media m USING (media_id) JOIN core.detections d USING (face_id)
"""
_COUNTS = {"rows": "core.media", "faces": "core.faces", "identities": "core.persons"}


class RunChain:
    """`facepipe run`, the models loaded once. Each turn is one run over all files, which have names of their own, into
    a new store."""

    def __init__(self, settings: Settings, scratch: Path) -> None:
        self._settings, self._scratch = settings, scratch
        self._files: dict[str, Path] = {}
        self._turns = 0
        self._identities: set[int] = set()
        self._models = ExitStack()
        self._models.enter_context(models_loaded_once())  # for as long as the chain lives

    def prepare(self, lists: Sequence[Sequence[Path]]) -> None:
        self._files = {file.name: file for files in lists for file in files}
        self._identities = set()
        shutil.rmtree(self._scratch, ignore_errors=True)  # the stores so far
        self._scratch.mkdir()
        self._manifest = write_manifest(list(self._files.values()), self._scratch / "photos.csv")

    def __call__(self, _: Iterable[int]) -> Mapping[Path, range]:
        """As many numbers as there are faces. Raises AssertionError where the run did not take and read every file, or
        found other identities than the turn before."""
        self._turns += 1
        report = run(RunRequest(self._manifest, self._store, self._settings))
        assert report.new == report.images == report.work.decoded == len(self._files), report
        assert report.statuses.keys() <= {"ok", "no_face"}, report.statuses
        self._identities.add(report.persons)
        assert len(self._identities) == 1, self._identities
        return {self._manifest: range(report.faces)}

    @property
    def _store(self) -> Path:
        return self._scratch / f"store-{self._turns}"

    def committed(self) -> tuple[dict[Path, Extracted], dict[str, int]]:
        """What is in the last turn's store: the faces of each photo, without embeddings; and how many rows, faces and
        identities there are."""
        catalog = self._store / (self._store / "CURRENT").read_text().strip()
        with duckdb.connect(str(catalog), read_only=True) as con:
            rows = con.execute(_DETECTIONS).fetchall()
            counts = {name: con.execute(f"SELECT count(*) FROM {table}").fetchall() for name, table in _COUNTS.items()}
        found: dict[str, list[Any]] = {name: [] for name in self._files}
        for path, *face in rows:
            found[Path(path).name].append(face)
        faces = {self._files[name]: _extracted(of_photo) for name, of_photo in found.items()}
        return faces, {name: int(rows[0][0]) for name, rows in counts.items()}


def _extracted(found: Sequence[Sequence[Any]]) -> Extracted:
    boxes, landmarks, scores = (np.array([face[column] for face in found], np.float32) for column in range(3))
    return Extracted(boxes.reshape(-1, 4), landmarks.reshape(-1, 5, 2), scores, np.zeros((len(found), 0), np.float32))


def make_facepipe(threads: int, settings: Settings) -> Chain:
    return FacepipeChain(with_threads(settings, threads))


def make_run(threads: int, settings: Settings, scratch: Path) -> Chain:
    return RunChain(with_threads(settings, threads), scratch)


def with_threads(settings: Settings, threads: int) -> Settings:
    return replace(settings, run=replace(settings.run, threads=threads))


def make_reference(_: int, settings: Settings) -> Chain:
    device = resolve_device(settings.run.device)  # from now on without TF32
    resolved = resolve(settings.model.weights, None, cache_folder(settings.model.cache))
    return ReferenceChain(resolved, settings.detect, settings.align.margin_px, str(device))


def variants(settings: Settings, scratch: Path) -> dict[str, Variant]:
    """Both chains in both layouts, the mode `fast` and `run`, by name; facepipe's environment as its command line sets
    it."""
    cores, passive = usable_cores(), {"OMP_WAIT_POLICY": "passive"}
    made: dict[str, Variant] = {}
    several = (cores, 1) if settings.run.device == "cpu" else (4, max(1, cores // 4))
    for processes, threads in ((1, cores), several):
        layout = f"{processes}x{threads}"
        made[f"{OURS}_{layout}"] = Variant(make_facepipe, processes, threads, (settings,), passive, reads_ahead=True)
        made[f"{REFERENCE}_{layout}"] = Variant(make_reference, processes, threads, (settings,))
    fast = replace(settings, run=replace(settings.run, mode=FAST))
    made[f"{FAST_MODE}_1x{cores}"] = Variant(make_facepipe, 1, cores, (fast,), passive)
    made[f"{RUN}_1x{cores}"] = Variant(make_run, 1, cores, (settings, scratch), passive)
    return made


def lists_of(name: str, files: Sequence[Path], processes: int, rows: int) -> list[list[Path]]:
    """The lists of files that the processes of the variant `name` take: the reference's whichever is next, facepipe's
    process k of n the lists k, k + n, ..., each a shard of at most `rows`."""
    if name.startswith(REFERENCE):
        return equal_sized(files, min(-(-len(files) // processes), LIST_IMAGES), LIST_PIXELS)
    own = [files[place::processes] for place in range(processes)]
    parts = (part[start : start + rows] for start in range(0, len(own[0]), rows) for part in own)
    return [list(part) for part in parts if part]


class Passes:
    """The photos as often as a turn needs them, as files of their own: no two have the same bytes."""

    def __init__(self, files: Sequence[Path], folder: Path) -> None:
        self.photos, self._folder = len(files), folder
        self._files = cycle(files)
        self._made: list[Path] = []

    def __call__(self, passes: int) -> list[Path]:
        missing = max(0, passes * self.photos - len(self._made))
        self._made += distinct(list(islice(self._files, missing)), self._folder, len(self._made))
        return self._made[: passes * self.photos]


def fill_turn(name: str, one: Workers, files: Passes, rows: int, least_s: float) -> tuple[int, dict[Path, Any]]:
    """Warms up, and prepares so many passes that a turn lasts `least_s`: their number, and what the first one found."""
    passes = 1
    one.prepare(lists_of(name, files(passes), one.variant.processes, rows))
    one()
    found = one.results()
    while least_s and (took := timed(one)) < least_s:
        passes = max(passes + 1, math.ceil(1.1 * passes * least_s / took))
        one.prepare(lists_of(name, files(passes), one.variant.processes, rows))
    return passes, found


def measure(
    workers: Mapping[str, Workers], settings: Settings, arguments: argparse.Namespace, photos: Sequence[Path]
) -> tuple[dict[str, Timing], dict[str, Any]]:
    """The timings of all variants, of one pass over `photos`, and the figures."""
    repeats, least_s = arguments.repeats, arguments.turn_seconds
    faces: dict[str, dict[Path, Any]] = {}
    passes: dict[str, int] = {}
    with tempfile.TemporaryDirectory(dir=arguments.work) as folder:
        files = Passes(photos, Path(folder))
        for name, one in workers.items():
            passes[name], faces[name] = fill_turn(name, one, files, settings.run.shard_rows, least_s)
            assert not one.call(computes_in_tf32, settings.run.device), name
        main, fast, ran, reference = (first_of(side, workers) for side in (OURS, FAST_MODE, RUN, REFERENCE))
        parity = {
            "parity": check(workers[main], faces[main], faces[reference]),
            "parity_fast": check(workers[fast], faces[fast], faces[reference], LEAST_COSINE_FAST),
        }
        turns = interleave(workers, repeats, warmup=0)  # a worker answers when its device is done
        parity["parity_run"] = check_run(workers[ran], files(passes[ran]), faces[reference])
        stages = [workers[main].call(stage_costs, files(1), usable_cores()) for _ in range(STAGE_PASSES)]
    for name, one in workers.items():
        expected = passes[name] * sum(map(len, faces[name].values()))
        assert {turn.made for turn in one.turns[-repeats:]} == {expected}, name
    timings = {name: Timing([s / passes[name] for s in turn.seconds]) for name, turn in turns.items()}
    best = min(stages, key=lambda costs: sum(costs[f"{stage}_s"] for stage in (*STAGES, "rest")))
    figures = {name: variant_figures(one, timings[name], len(photos), passes[name]) for name, one in workers.items()}
    return timings, {**parity, "stages": best, **figures, **ratios(timings, main, best["bound_s"])}


def computes_in_tf32(_: Chain, device: str) -> bool:
    """Whether convolutions or products do, in this process."""
    products = torch.get_float32_matmul_precision() != "highest"
    return device != "cpu" and (torch.backends.cudnn.allow_tf32 or products)


def first_of(side: str, names: Mapping[str, object]) -> str:
    return next(name for name in names if name.startswith(f"{side}_"))


def check(
    ours: Workers, faces: dict[Path, Extracted], reference: dict[Path, Extracted], least: float = LEAST_COSINE
) -> dict[str, Any]:
    """Compares, and raises AssertionError where the faces or the embeddings are not the reference's."""
    parity = compare_faces(reference, faces, {file: image_size(file) for file in reference})
    assert_same_faces(parity)
    sure = {file: one.confident() for file, one in reference.items()}
    embedded = ours.call(embeddings_of_boxes, sure)
    same_box = np.concatenate([cosines(sure[file].embeddings, own) for file, own in embedded.items()])
    assert_same_embeddings(same_box, least)
    return {**parity_figures(parity), **cosine_figures({"same_box": same_box, "own_box": matched_cosines(sure, faces)})}


def check_run(ran: Workers, files: Sequence[Path], reference: dict[Path, Extracted]) -> dict[str, Any]:
    """Compares what is in the store of the last turn over `files`. Raises AssertionError where the faces are not the
    reference's, or a row or face is missing."""
    faces, counts = ran.call(RunChain.committed)
    own = {file: faces[file] for file in reference}
    parity = compare_faces(reference, own, {file: image_size(file) for file in reference})
    assert_same_faces(parity)
    passes = len(files) // len(reference)
    assert faces.keys() == set(files)
    assert (counts["rows"], counts["faces"]) == (len(files), passes * sum(map(len, own.values()))), counts
    assert 0 < counts["identities"] <= counts["faces"] // passes, counts
    return {**parity_figures(parity), "store": counts}


def variant_figures(one: Workers, timing: Timing, images: int, passes: int) -> dict[str, float | None]:
    """Rates and use of the machine; medians over the timed turns, memory the most of them."""
    turns = one.turns[-len(timing.seconds) :]  # the first was the warm-up
    shares = [turn.cpu_s / s / passes / usable_cores() for turn, s in zip(turns, timing.seconds, strict=True)]
    return {
        "passes": passes,
        "images_per_s": images / timing.median,
        "faces_per_s": turns[0].made / passes / timing.median,
        "cpu_busy_share": median(shares),
        "device_busy_share": median(one.device_busy_shares) if one.device_busy_shares else None,
        "peak_rss_mib": max(turn.peak_rss_bytes for turn in turns) / 2**20,
        "peak_vram_mib": max(turn.peak_vram_bytes for turn in turns) / 2**20,
    }


def ratios(timings: Mapping[str, Timing], main: str, bound_s: float) -> dict[str, Any]:
    """The faster reference's time by that of `main`, which is what `extract` does, and by that of facepipe's others, of
    which one is `run`."""
    fastest = min((name for name in timings if name.startswith(REFERENCE)), key=lambda name: timings[name].median)
    others = [name for name in timings if not name.startswith(REFERENCE) and name != main]
    return {
        "reference": fastest,
        "ratio": paired_ratio(timings[fastest], timings[main]),
        **{f"ratio_{name}": paired_ratio(timings[fastest], timings[name]) for name in others},
        "share_of_bound": bound_s / timings[main].median,
    }


def main() -> None:
    parser = argument_parser(__doc__)
    add_corpus_arguments(parser, images=256, repeats=5)
    parser.add_argument("--weights", nargs="+", default=["casia-webface", "sface"])
    parser.add_argument("--margin", type=int, default=32, help="pixels of the crop, on both sides")
    parser.add_argument("--config", type=Path, help="facepipe's settings; on CUDA configs/cuda.yaml")
    parser.add_argument("--turn-seconds", type=float, default=2.0, help="the least that a turn lasts; 0: one pass")
    arguments = parser.parse_args()
    config = arguments.config or (None if arguments.device == "cpu" else CUDA_CONFIG)
    for weights in arguments.weights:
        settings = comparable(settings_for(arguments.device, weights, config, align__margin_px=arguments.margin))
        with ExitStack() as stack:
            arguments.work.mkdir(parents=True, exist_ok=True)
            scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=arguments.work)))
            made = variants(settings, scratch / "run")
            workers = {name: stack.enter_context(Workers(one, arguments.device)) for name, one in made.items()}
            for one in workers.values():
                one.wait()
            measured = measure_corpora(arguments, partial(measure, workers, settings, arguments))
        used = {"config": config.name if config else "defaults", "run": asdict(settings.run), "tf32": False}
        write_result(f"extract-{weights}", settings_of(arguments) | {"weights": weights, **used}, *measured, arguments)


if __name__ == "__main__":
    main()
