"""How much sooner does facepipe extract than the loop that facenet-pytorch's README shows, and where does the time go?

    python scripts/bench/bench_extract.py --faces FOLDER --work FOLDER [--corpus a b c d] [--images 256]
        [--weights casia-webface sface] [--device cpu]

From photo files to embedded faces. FOLDER of --faces holds lfw-view1/images and groups-with-boxes; the corpora are made
in the folder of --work, once. Both sides run as one process with a thread per core and as one process per core with one
thread, their models loaded and warm, in turns; of the reference the faster counts, of facepipe what `facepipe extract`
does, in the modes `exact` and `fast`. The reference gets images of one size in one list. facepipe has the reference's
crops (margin and resampling), and does more: it hashes files and pixels, judges quality and cuts the picture to store.
facenet-pytorch has no SFace: there the reference embeds in the plain torch network. Writes extract-<weights>.

Asserts, of the warm-up's output in both modes: the reference's faces (`comparison.assert_same_faces`); a cosine of at
least 0.999 between both embeddings of each of the same boxes; and as many faces in every turn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from comparison import (
    assert_same_embeddings,
    assert_same_faces,
    benchmark_settings,
    cosine_figures,
    parity_figures,
)
from corpora import add_corpus_arguments, measure_corpora
from harness import argument_parser, settings_of, write_result
from stage_costs import STAGES, stage_costs
from workers import Chain, Variant, Workers

from pipeline.config import EXACT, FAST, RunSettings
from pipeline.evaluation.bench.facepipe import FacepipeChain, embeddings_of_boxes
from pipeline.evaluation.bench.harness import Timing, interleave, paired_ratio
from pipeline.evaluation.bench.parity import Extracted, compare_faces, cosines, matched_cosines
from pipeline.evaluation.bench.reference import LIST_IMAGES, LIST_PIXELS, ReferenceChain, equal_sized, image_size
from pipeline.models.weights import cache_folder, resolve
from pipeline.runtime.threads import usable_cores

OURS, FAST_MODE, REFERENCE = "facepipe", "fast", "reference"
STAGE_PASSES = 3  # of which the quickest counts


def make_facepipe(threads: int, device: str, weights: str, margin_px: int, mode: str = EXACT) -> Chain:
    return FacepipeChain(benchmark_settings(device, threads, weights, margin_px, mode))


def make_reference(threads: int, device: str, weights: str, margin_px: int) -> Chain:
    settings = benchmark_settings(device, threads, weights, margin_px)
    resolved = resolve(weights, None, cache_folder(settings.model.cache))
    return ReferenceChain(resolved, settings.detect, margin_px, device)


def variants(device: str, weights: str, margin_px: int) -> dict[str, Variant]:
    """Both chains in both layouts and the mode `fast`, by name; facepipe's environment as its command line sets it."""
    cores = usable_cores()
    arguments, passive = (device, weights, margin_px), {"OMP_WAIT_POLICY": "passive"}
    made: dict[str, Variant] = {}
    for processes, threads in ((1, cores), (cores if device == "cpu" else 2, 1)):
        layout = f"{processes}x{threads}"
        made[f"{OURS}_{layout}"] = Variant(make_facepipe, processes, threads, arguments, passive, reads_ahead=True)
        made[f"{REFERENCE}_{layout}"] = Variant(make_reference, processes, threads, arguments)
    made[f"{FAST_MODE}_1x{cores}"] = Variant(make_facepipe, 1, cores, (*arguments, FAST), passive)
    return made


def lists_of(name: str, files: Sequence[Path], processes: int) -> list[list[Path]]:
    """The lists of files that the processes of the variant `name` take: the reference's whichever is next, facepipe's
    process k of n the lists k, k + n, ..."""
    if name.startswith(REFERENCE):
        return equal_sized(files, min(-(-len(files) // processes), LIST_IMAGES), LIST_PIXELS)
    rows, own = RunSettings().shard_rows, [files[place::processes] for place in range(processes)]
    parts = (part[start : start + rows] for start in range(0, len(own[0]), rows) for part in own)
    return [list(part) for part in parts if part]


def measure(
    workers: Mapping[str, Workers], files: Sequence[Path], repeats: int
) -> tuple[dict[str, Timing], dict[str, Any]]:
    """The timings of all variants over `files`, and the figures."""
    faces: dict[str, dict[Path, Extracted]] = {}
    for name, one in workers.items():
        one.prepare(lists_of(name, files, one.variant.processes))
        one()  # the warm-up
        faces[name] = one.results()
    main, fast, reference = (first_of(side, workers) for side in (OURS, FAST_MODE, REFERENCE))
    parity = {
        "parity": check(workers[main], faces[main], faces[reference]),
        "parity_fast": check(workers[fast], faces[fast], faces[reference]),
    }
    timings = interleave(workers, repeats, warmup=0)  # a worker answers when its device is done
    for name, one in workers.items():
        assert {turn.made for turn in one.turns} == {sum(map(len, faces[name].values()))}, name
    stages = [workers[main].call(stage_costs, files, usable_cores()) for _ in range(STAGE_PASSES)]
    best = min(stages, key=lambda costs: sum(costs[f"{stage}_s"] for stage in (*STAGES, "rest")))
    figures = {name: variant_figures(one, timings[name], len(files)) for name, one in workers.items()}
    return timings, {**parity, "stages": best, **figures, **ratios(timings, main, best["bound_s"])}


def first_of(side: str, names: Mapping[str, object]) -> str:
    return next(name for name in names if name.startswith(f"{side}_"))


def check(ours: Workers, faces: dict[Path, Extracted], reference: dict[Path, Extracted]) -> dict[str, Any]:
    """Compares, and raises AssertionError where the faces or the embeddings are not the reference's."""
    parity = compare_faces(reference, faces, {file: image_size(file) for file in reference})
    assert_same_faces(parity)
    sure = {file: one.confident() for file, one in reference.items()}
    embedded = ours.call(embeddings_of_boxes, sure)
    same_box = np.concatenate([cosines(sure[file].embeddings, own) for file, own in embedded.items()])
    assert_same_embeddings(same_box)
    return {**parity_figures(parity), **cosine_figures({"same_box": same_box, "own_box": matched_cosines(sure, faces)})}


def variant_figures(one: Workers, timing: Timing, images: int) -> dict[str, float | None]:
    """Rates and use of the machine; medians over the timed turns, memory the most of them."""
    turns = one.turns[-len(timing.seconds) :]  # the first was the warm-up
    shares = [turn.cpu_s / s / usable_cores() for turn, s in zip(turns, timing.seconds, strict=True)]
    return {
        "images_per_s": images / timing.median,
        "faces_per_s": turns[0].made / timing.median,
        "cpu_busy_share": median(shares),
        "device_busy_share": median(one.device_busy_shares) if one.device_busy_shares else None,
        "peak_rss_mib": max(turn.peak_rss_bytes for turn in turns) / 2**20,
        "peak_vram_mib": max(turn.peak_vram_bytes for turn in turns) / 2**20,
    }


def ratios(timings: Mapping[str, Timing], main: str, bound_s: float) -> dict[str, Any]:
    """The faster reference's time by that of `main`, which is what `extract` does, and by that of facepipe's others."""
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
    arguments = parser.parse_args()
    for weights in arguments.weights:
        with ExitStack() as stack:
            made = variants(arguments.device, weights, arguments.margin)
            workers = {name: stack.enter_context(Workers(one, arguments.device)) for name, one in made.items()}
            for one in workers.values():
                one.wait()
            measured = measure_corpora(arguments, partial(measure, workers, repeats=arguments.repeats))
        write_result(f"extract-{weights}", settings_of(arguments) | {"weights": weights}, *measured, arguments)


if __name__ == "__main__":
    main()
