"""The whole extraction, photo files to embedded faces, against the loop that facenet-pytorch's README shows.

    python scripts/bench/bench_extract.py --faces FOLDER --work FOLDER [--only a b c d] [--images 256] [--device cpu]

FOLDER of --faces holds lfw-view1/images and groups-with-boxes; the corpora (see bench_corpora) are made in the folder
of --work, once. Both sides run as one process with a thread per core and as one process per core with one thread, their
models loaded and warm, in turns; of the reference the faster counts, of facepipe what `extract` does, in the mode
`exact`. The mode `fast` takes its turns beside them, as `extract` runs it. The reference gets images of one size
in one list. facepipe has the reference's crops (margin and resampling), and does more: it hashes files and pixels,
judges quality and cuts the picture to store.

Asserts, of the warm-up's output in both modes: the reference's faces of probability 0.95 found at IoU 0.9 (99 %), at
most 1 % others, landmarks within 1 % of the eyes' distance (median), a cosine of at least 0.999 between both embeddings
of each of the same boxes; and the same number of faces in every turn.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from bench_common import interleave, paired_ratio, result, write_result
from bench_corpora import add_arguments, given, wanted
from bench_workers import Chain, Variant, Workers
from extraction_parity import assert_equal, figures_of
from facepipe_chain import benchmark_settings
from stage_costs import stage_costs

from pipeline.config import EXACT, FAST, RunSettings
from pipeline.evaluation.bench.facepipe import FacepipeChain, embeddings_of_boxes
from pipeline.evaluation.bench.parity import Extracted, compare_faces, cosines, matched_cosines
from pipeline.evaluation.bench.reference import LIST_IMAGES, LIST_PIXELS, ReferenceChain, equal_sized, image_size
from pipeline.models.weights import cache_folder, resolve
from pipeline.runtime.device import usable_cores

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
    how, passive = (device, weights, margin_px), {"OMP_WAIT_POLICY": "passive"}
    made: dict[str, Variant] = {}
    for processes, threads in ((1, cores), (cores if device == "cpu" else 2, 1)):
        layout = f"{processes}x{threads}"
        made[f"{OURS}_{layout}"] = Variant(make_facepipe, processes, threads, how, passive, reads_ahead=True)
        made[f"{REFERENCE}_{layout}"] = Variant(make_reference, processes, threads, how)
    made[f"{FAST_MODE}_1x{cores}"] = Variant(make_facepipe, 1, cores, (*how, FAST), passive)
    return made


def lists_of(name: str, files: Sequence[Path], processes: int) -> list[list[Path]]:
    """What the processes of the variant `name` take one after the other: the reference's whichever is next, facepipe's
    every so-manieth."""
    if name.startswith(REFERENCE):
        return equal_sized(files, min(-(-len(files) // processes), LIST_IMAGES), LIST_PIXELS)
    rows, own = RunSettings().shard_rows, [files[place::processes] for place in range(processes)]
    parts = (part[start : start + rows] for start in range(0, len(own[0]), rows) for part in own)
    return [list(part) for part in parts if part]


def measure(workers: Mapping[str, Workers], files: Sequence[Path], repeats: int) -> tuple[Any, Any]:
    """The timings of all variants over `files`, and the figures."""
    found: dict[str, dict[Path, Extracted]] = {}
    for name, one in workers.items():
        one.prepare(lists_of(name, files, one.variant.processes))
        one()  # the warm-up
        found[name] = one.results()
    main, fast, other = (next(name for name in workers if name.startswith(who)) for who in (OURS, FAST_MODE, REFERENCE))
    parity = {name: check(workers[name], found[name], found[other]) for name in (main, fast)}
    timings = interleave(workers, repeats, warmup=0)  # a worker answers when its device is done
    for name, one in workers.items():
        assert {turn.made for turn in one.turns} == {sum(map(len, found[name].values()))}, name
    stages = [workers[main].call(stage_costs, files, usable_cores()) for _ in range(STAGE_PASSES)]
    best = min(stages, key=lambda costs: sum(costs[key] for key in ("decode_s", "detect_s", "embed_s", "rest_s")))
    figures = {name: figures_of_variant(one, timings[name], len(files)) for name, one in workers.items()}
    parities = {"parity": parity[main], "parity_fast": parity[fast]}
    return timings, {**parities, "stages": best, **figures, **ratios(timings, main, best["bound_s"])}


def check(ours: Workers, found: dict[Path, Extracted], reference: dict[Path, Extracted]) -> dict[str, Any]:
    """Compares, and raises AssertionError where the faces or the embeddings are not the reference's."""
    sizes = {file: image_size(file) for file in reference}
    parity = compare_faces(reference, found, sizes)
    sure = {file: faces.confident() for file, faces in reference.items()}
    same_box = np.concatenate(
        [cosines(sure[file].embeddings, made) for file, made in ours.call(embeddings_of_boxes, sure).items()]
    )
    figures = figures_of(parity, {"same_box": same_box, "own_box": matched_cosines(sure, found)})
    print(json.dumps(figures), flush=True)
    assert_equal(parity, same_box)
    return figures


def figures_of_variant(one: Workers, timing: Mapping[str, Any], images: int) -> dict[str, float | None]:
    """Rates and use of the machine; medians over the timed turns, memory the most of them."""
    seconds = timing["seconds"]
    turns = one.turns[-len(seconds) :]  # the first was the warm-up
    return {
        "images_per_s": images / timing["median"],
        "faces_per_s": turns[0].made / timing["median"],
        "cpu_busy_share": median(t.cpu_s / s / usable_cores() for t, s in zip(turns, seconds, strict=True)),
        "device_busy_share": median(one.device_busy_shares) if one.device_busy_shares else None,
        "peak_rss_mib": max(turn.peak_rss_bytes for turn in turns) / 2**20,
        "peak_vram_mib": max(turn.peak_vram_bytes for turn in turns) / 2**20,
    }


def ratios(timings: Mapping[str, Mapping[str, Any]], main: str, bound_s: float) -> dict[str, Any]:
    """The faster reference's time by that of `main`, which is what `extract` does, and by that of facepipe's others."""
    fastest = min((name for name in timings if name.startswith(REFERENCE)), key=lambda name: timings[name]["median"])
    others = [name for name in timings if not name.startswith(REFERENCE) and name != main]
    return {
        "reference": fastest,
        "ratio": paired_ratio(timings, fastest, main),
        **{f"ratio_{name}": paired_ratio(timings, fastest, name) for name in others},
        "share_of_bound": bound_s / timings[main]["median"],
    }


def main() -> None:
    arguments = _arguments()
    made = variants(arguments.device, arguments.weights, arguments.margin)
    timings: dict[str, Any] = {}
    figures: dict[str, Any] = {}
    with ExitStack() as stack:
        workers = {name: stack.enter_context(Workers(one, arguments.device)) for name, one in made.items()}
        for one in workers.values():
            one.wait()
        for name, files in wanted(arguments):
            taken, figures[name] = measure(workers, files, arguments.repeats)
            timings |= {f"{name}_{variant}": timing for variant, timing in taken.items()}
            print(name, json.dumps(figures[name], indent=1), flush=True)
    print(write_result(result("extract", given(arguments), timings, figures, arguments.device), arguments.results))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser, images=256)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--weights", default="casia-webface")
    parser.add_argument("--margin", type=int, default=32, help="pixels of the crop, on both sides")
    return parser.parse_args()


if __name__ == "__main__":
    main()
