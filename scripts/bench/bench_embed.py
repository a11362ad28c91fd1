"""The embedding networks alone: facepipe's in torch and in OpenVINO, and facenet-pytorch's module.

    python scripts/bench/bench_embed.py --faces FOLDER [--weights casia-webface sface] [--batches 1 8 32] [--device cpu]

The crops are the middle of photos of FOLDER/lfw-view1/images. All run in this process, with a thread per core. Asserts
a cosine of at least 0.99999 between the embeddings of all ways. (SFace is no model of facenet-pytorch's.)
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from bench_common import RESULTS, interleave, result, write_result
from bench_corpora import given, load_pictures, read_sources
from facepipe_chain import benchmark_settings

from pipeline.errors import BadValue
from pipeline.evaluation.bench.parity import cosines
from pipeline.evaluation.bench.reference import reference_network
from pipeline.extraction.embed import load_embedder
from pipeline.models.backend import choose_backend
from pipeline.models.weights import ResolvedWeights, cache_folder, resolve
from pipeline.runtime.device import resolve_device, set_threads, usable_cores

WANT_COSINE = 0.99999
Embed = Callable[[torch.Tensor], torch.Tensor]


def ways(resolved: ResolvedWeights, device: str) -> dict[str, Embed]:
    """What is compared, by name: crops [n, 3, S, S] in [0, 255] -> embeddings [n, d]."""
    settings = benchmark_settings(device, 0, resolved.name, 0)
    where, cache = resolve_device(device), cache_folder(settings.model.cache)
    made: dict[str, Embed] = {"facepipe_torch": load_embedder(resolved, where)}
    with suppress(BadValue):  # on CUDA, and where it is not installed
        runtime = choose_backend("openvino", where, cache, usable_cores())
        made["facepipe_openvino"] = load_embedder(resolved, where, runtime=runtime)
    if resolved.weight_set.architecture == "inception-resnet-v1":
        network = reference_network(resolved).to(where)
        made["reference"] = lambda crops: network((crops.to(where) - 127.5) / 128)
    return made


def face_crops(faces: Path, count: int, size: int) -> torch.Tensor:
    """[count, 3, size, size] float32: the middle of portraits, which the face fills."""
    files = read_sources(faces).portraits
    pictures = load_pictures(files[:: max(1, len(files) // count)][:count])
    cut = [picture.crop((45, 45, 205, 205)).resize((size, size)) for picture in pictures]
    return torch.from_numpy(np.stack([np.array(one) for one in cut])).permute(0, 3, 1, 2).float()


@torch.inference_mode()
def measure(
    embed: dict[str, Embed], crops: torch.Tensor, batches: Sequence[int], repeats: int, device: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Timings by way and batch, each of all crops, and the figures."""
    worst = smallest_cosine(embed, crops)
    assert worst >= WANT_COSINE, worst
    timings: dict[str, Any] = {}
    for batch in batches:
        parts = torch.split(crops, batch)
        runs = {f"{name}_{batch}": in_parts(one, parts) for name, one in embed.items()}
        timings |= interleave(runs, repeats, device)
    per_crop = {f"ms_per_crop_{name}": 1e3 * timing["median"] / len(crops) for name, timing in timings.items()}
    return timings, {"crops": len(crops), "cosine_min": worst, **per_crop}


def in_parts(embed: Embed, parts: Sequence[torch.Tensor]) -> Callable[[], object]:
    return lambda: [embed(part) for part in parts]


def smallest_cosine(embed: dict[str, Embed], crops: torch.Tensor) -> float:
    """Between any crop's embedding by the first way and by another; 1 where there is one way only."""
    made = [np.asarray(one(crops).cpu()) for one in embed.values()]
    return min((float(cosines(made[0], other).min()) for other in made[1:]), default=1.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faces", type=Path, required=True, help="the folder of photos")
    parser.add_argument("--weights", nargs="+", default=["casia-webface", "sface"])
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8, 32])
    parser.add_argument("--crops", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the JSON goes")
    arguments = parser.parse_args()
    set_threads(0)
    timings: dict[str, Any] = {}
    figures: dict[str, Any] = {}
    for name in arguments.weights:
        resolved = resolve(name, None, cache_folder(benchmark_settings("cpu", 0, name, 0).model.cache))
        crops = face_crops(arguments.faces, arguments.crops, resolved.weight_set.input_size)
        made = ways(resolved, arguments.device)
        taken, figures[name] = measure(made, crops, arguments.batches, arguments.repeats, arguments.device)
        timings |= {f"{name}_{variant}": timing for variant, timing in taken.items()}
        print(name, json.dumps(figures[name], indent=1), flush=True)
    print(write_result(result("embed", given(arguments), timings, figures, arguments.device), arguments.results))


if __name__ == "__main__":
    main()
