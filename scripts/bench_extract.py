"""The whole extraction, photo files to embedded faces, against the loop that facenet-pytorch's README shows.

    python scripts/bench_extract.py --faces FOLDER --work FOLDER [--only a b c d] [--images 64] [--device cpu]

FOLDER of --faces holds lfw-view1/images and groups-with-boxes; the corpora (see bench_corpora) are made in the folder
of --work, once. Both sides run as one process with a thread per core and as one process per core with one thread, their
models loaded and warm, in turns; of the reference the faster counts, of facepipe what `extract` does. The reference
gets images of one size in one list. facepipe does more: it hashes files and pixels, judges quality and cuts the picture
to store.

Asserts, of the warm-up's output: the reference's faces of probability 0.95 found at IoU 0.9 (99 %), at most 1 % others,
landmarks within 1 % of the eyes' distance (median), a cosine of at least 0.999 between both embeddings of 98 % of the
same boxes (or all but one) and of 0.995 of all (crops in whole grey levels, as the reference has them); and the same
number of faces in every turn.
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
from extraction_parity import Extracted, assert_equal, compare_faces, cosines, figures_of, matched_cosines
from facepipe_chain import WHOLE, FacepipeChain, benchmark_settings, embeddings_of_boxes
from reference_chain import ReferenceChain, equal_sized, image_size
from stage_costs import stage_costs

from pipeline.config import RunSettings
from pipeline.device import usable_cores
from pipeline.models.weights import cache_folder, resolve

OURS, REFERENCE = "facepipe", "reference"
REFERENCE_IMAGES, REFERENCE_PIXELS = 32, 24_000_000  # in one list
LISTS_PER_PROCESS = 4  # at least, where several processes share the work
STAGE_PASSES = 3  # of which the quickest counts


def make_facepipe(threads: int, device: str, weights: str, margin_px: int) -> Chain:
    return FacepipeChain(benchmark_settings(device, threads, weights, margin_px))


def make_reference(threads: int, device: str, weights: str, margin_px: int) -> Chain:
    settings = benchmark_settings(device, threads, weights, margin_px)
    resolved = resolve(weights, None, cache_folder(settings.model.cache))
    return ReferenceChain(resolved, settings.detect, margin_px, device)


def variants(device: str, weights: str, margin_px: int) -> dict[str, Variant]:
    """Both chains in both layouts, by name; facepipe's environment as its command line sets it."""
    cores = usable_cores()
    how, passive = (device, weights, margin_px), {"OMP_WAIT_POLICY": "passive"}
    made: dict[str, Variant] = {}
    for processes, threads in ((1, cores), (cores if device == "cpu" else 2, 1)):
        layout = f"{processes}x{threads}"
        made[f"{OURS}_{layout}"] = Variant(make_facepipe, processes, threads, how, passive)
        made[f"{REFERENCE}_{layout}"] = Variant(make_reference, processes, threads, how)
    return made


def lists_of(name: str, files: Sequence[Path], processes: int) -> list[list[Path]]:
    """What the processes of the variant `name` take one after the other."""
    most = len(files) if processes == 1 else max(1, len(files) // (LISTS_PER_PROCESS * processes))
    if name.startswith(REFERENCE):
        return equal_sized(files, min(most, REFERENCE_IMAGES), REFERENCE_PIXELS)
    most = min(most, RunSettings().shard_rows)
    return [list(files[start : start + most]) for start in range(0, len(files), most)]


def measure(workers: Mapping[str, Workers], files: Sequence[Path], repeats: int) -> tuple[Any, Any]:
    """The timings of all variants over `files`, and the figures."""
    found: dict[str, dict[Path, Extracted]] = {}
    for name, one in workers.items():
        one.prepare(lists_of(name, files, one.variant.processes))
        one()  # the warm-up
        found[name] = one.results()
    main, other = (next(name for name in workers if name.startswith(who)) for who in (OURS, REFERENCE))
    parity = check(workers[main], found[main], found[other])
    timings = interleave(workers, repeats, warmup=0)  # a worker answers when its device is done
    for name, one in workers.items():
        assert {turn.made for turn in one.turns} == {sum(map(len, found[name].values()))}, name
    stages = [workers[main].call(stage_costs, files, usable_cores()) for _ in range(STAGE_PASSES)]
    best = min(stages, key=lambda costs: sum(costs[key] for key in ("decode_s", "detect_s", "embed_s", "rest_s")))
    figures = {name: figures_of_variant(one, timings[name], len(files)) for name, one in workers.items()}
    return timings, {"parity": parity, "stages": best, **figures, **ratios(timings, main, best["bound_s"])}


def check(ours: Workers, found: dict[Path, Extracted], reference: dict[Path, Extracted]) -> dict[str, Any]:
    """Compares, and raises AssertionError where the faces or the embeddings are not the reference's."""
    sizes = {file: image_size(file) for file in reference}
    parity = compare_faces(reference, found, sizes)
    sure = {file: faces.confident() for file, faces in reference.items()}
    same_box = {
        name: np.concatenate([cosines(sure[file].embeddings, made) for file, made in embeddings.items()])
        for name, embeddings in ours.call(embeddings_of_boxes, sure).items()
    }
    cosine = {f"same_box_{name}": found for name, found in same_box.items()}
    figures = figures_of(parity, {**cosine, "own_box": matched_cosines(sure, found)})
    print(json.dumps(figures), flush=True)
    assert_equal(parity, same_box[WHOLE])
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
    """The faster reference's time by that of `main`, which is what `extract` does, and of facepipe's other layout."""
    fastest = min((name for name in timings if name.startswith(REFERENCE)), key=lambda name: timings[name]["median"])
    others = [name for name in timings if name.startswith(OURS) and name != main]
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
    add_arguments(parser, images=64)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--weights", default="casia-webface")
    parser.add_argument("--margin", type=int, default=32, help="pixels of the crop, on both sides")
    return parser.parse_args()


if __name__ == "__main__":
    main()
