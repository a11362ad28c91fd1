"""How long does an embedding network take for a crop: in torch, in OpenVINO, and as facenet-pytorch has it?

    python scripts/bench/bench_embed.py --faces FOLDER [--weights casia-webface sface] [--batches 1 8 32]

The crops are the middle of photos of FOLDER/lfw-view1/images. facepipe's variants are the backends of `run.backend` in
both modes, as far as this machine has them; all run in this process, with a thread per core.

Asserts the cosine between each variant's embeddings and those of torch in the mode `exact`: at least 0.99999, and 0.999
of the mode `fast`. (facenet-pytorch has no SFace: there the reference is the plain torch network.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from corpora import load_pictures, read_sources
from harness import argument_parser, settings_for, settings_of, write_result

from pipeline.config import EXACT, FAST
from pipeline.errors import BadValue
from pipeline.evaluation.bench.facepipe import comparable
from pipeline.evaluation.bench.harness import Timing, interleave
from pipeline.evaluation.bench.parity import cosines
from pipeline.evaluation.bench.reference import reference_embedder
from pipeline.jobs.models import load_extractor
from pipeline.jobs.store_identity import make_identity
from pipeline.models.registry import FIVE_POINT
from pipeline.models.weights import cache_folder, resolve
from pipeline.runtime.device import resolve_device
from pipeline.runtime.threads import set_threads

BACKENDS = ("torch", "openvino")
FIRST = f"torch_{EXACT}"  # the others are compared with it
LEAST_COSINE = {EXACT: 0.99999, FAST: 0.999}
Embed = Callable[[torch.Tensor], torch.Tensor]


def variants(weights: str, device: str) -> dict[str, Embed]:
    """What is compared, by name: crops [n, 3, S, S] in [0, 255] -> embeddings [n, d] of norm 1."""
    made: dict[str, Embed] = {}
    for backend in BACKENDS:
        for mode in (EXACT, FAST):
            with suppress(BadValue):  # not installed, not on this device, or not in this mode
                settings = comparable(settings_for(device, weights, run__mode=mode, run__backend=backend))
                made[f"{backend}_{mode}"] = load_extractor(settings, make_identity(settings), Path()).embedder
    resolved = resolve(weights, None, cache_folder(settings.model.cache))
    where, preprocessing = resolve_device(device), resolved.weight_set.preprocessing
    reference = reference_embedder(resolved, where)

    def embed(crops: torch.Tensor) -> torch.Tensor:
        scaled = (crops - preprocessing.mean) * preprocessing.scale  # as facenet-pytorch's crops are
        return reference((crops if preprocessing.alignment == FIVE_POINT else scaled).to(where))

    return {**made, "reference": embed}


def face_crops(faces: Path, count: int, size: int) -> torch.Tensor:
    """[count, 3, size, size] float32: the middle of portraits, which the face fills."""
    files = read_sources(faces).portraits
    pictures = load_pictures(files[:: max(1, len(files) // count)][:count])
    crops = [np.array(picture.crop((45, 45, 205, 205)).resize((size, size))) for picture in pictures]
    return torch.from_numpy(np.stack(crops)).permute(0, 3, 1, 2).float()


@torch.inference_mode()
def measure(
    embed: dict[str, Embed], crops: torch.Tensor, batches: Sequence[int], repeats: int, device: str
) -> tuple[dict[str, Timing], dict[str, Any]]:
    """Timings of all crops by variant and batch, and the figures."""
    figures = {"crops": len(crops), **smallest_cosines(embed, crops)}
    timings: dict[str, Timing] = {}
    for batch in batches:
        parts = torch.split(crops, batch)
        timings |= interleave(
            {f"{name}_{batch}": _in_parts(one, parts) for name, one in embed.items()}, repeats, device
        )
    per_crop = {f"ms_per_crop_{name}": 1e3 * timing.median / len(crops) for name, timing in timings.items()}
    return timings, {**figures, **per_crop}


def _in_parts(embed: Embed, parts: Sequence[torch.Tensor]) -> Callable[[], object]:
    return lambda: [embed(part) for part in parts]


def smallest_cosines(embed: dict[str, Embed], crops: torch.Tensor) -> dict[str, float]:
    """Of each variant's embeddings to the first one's. Raises AssertionError for one that is too small."""
    made = {name: np.asarray(one(crops).cpu()) for name, one in embed.items()}
    smallest = {name: float(cosines(made[FIRST], other).min()) for name, other in made.items() if name != FIRST}
    for name, cosine in smallest.items():
        assert cosine >= LEAST_COSINE[FAST if name.endswith(FAST) else EXACT], (name, cosine)
    return {f"cosine_min_{name}": cosine for name, cosine in smallest.items()}


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--faces", type=Path, required=True, help="the folder of photos")
    parser.add_argument("--weights", nargs="+", default=["casia-webface", "sface"])
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8, 32])
    parser.add_argument("--crops", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=7)
    arguments = parser.parse_args()
    set_threads(0)
    timings: dict[str, Timing] = {}
    figures: dict[str, Any] = {}
    for weights in arguments.weights:
        size = resolve(weights, None, cache_folder(None)).weight_set.input_size
        crops = face_crops(arguments.faces, arguments.crops, size)
        embed = variants(weights, arguments.device)
        of_weights, figures[weights] = measure(embed, crops, arguments.batches, arguments.repeats, arguments.device)
        timings |= {f"{weights}_{name}": timing for name, timing in of_weights.items()}
    write_result("embed", settings_of(arguments), timings, figures, arguments)


if __name__ == "__main__":
    main()
