"""What each stage of an extraction costs, one after the other, beside the least that it could cost on this machine.

The bound of decoding is the fastest bare JPEG decoder that is installed: simplejpeg, or else Pillow. The bound of the
networks is the arithmetic of their layers for the same levels, crops and faces, at the rate of the machine's own
float32 matrix product. On a CPU all is timed on one thread, as the engine works a batch on a core, and divided by the
cores: seconds of a machine whose cores share the work without loss.
"""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from facenet_pytorch.models.mtcnn import ONet, PNet, RNet
from PIL import Image
from torch.utils.flop_counter import FlopCounterMode

from pipeline.config import RunSettings, Settings
from pipeline.evaluation.bench.facepipe import FacepipeChain
from pipeline.evaluation.bench.harness import timed
from pipeline.extraction.detection.pyramid import pyramid
from pipeline.extraction.images.decode import Decoder
from pipeline.models.load import load_torch_network
from pipeline.models.weights import cache_folder, resolve
from pipeline.runtime.device import synchronize
from pipeline.runtime.stage_times import EMBED, ONET, PNET, RNET, StageTimes
from pipeline.runtime.threads import using_threads
from pipeline.types import ByteArray, DecodedImage

STAGES: Final = ("decode", "detect", "embed")
_PRODUCT_SIDE: Final = {"cpu": 1536, "cuda": 8192}
_PRODUCT_TRIES: Final = 7
_DETECTOR: Final = {"pnet": PNet, "rnet": RNet, "onet": ONet}


@cache
def detector_flops(name: str, height: int, width: int) -> int:
    """Floating point operations of P-, R- or O-Net over one image, two for each multiply-add."""
    with torch.device("meta"):
        return _flops(_DETECTOR[name](pretrained=False).eval(), height, width)


@cache
def embedder_flops(weights: str, size: int) -> int:
    """Of one crop, likewise."""
    return _flops(load_torch_network(resolve(weights, None, cache_folder(None))), size, size)


def _flops(network: torch.nn.Module, height: int, width: int) -> int:
    counter, device = FlopCounterMode(display=False), next(network.parameters()).device
    with torch.no_grad(), counter:
        network(torch.zeros(1, 3, height, width, device=device))
    return int(counter.get_total_flops())


def pyramid_flops(height: int, width: int, settings: Settings) -> int:
    """P-Net's, over all levels of an image."""
    levels = pyramid(height, width, settings.detect.min_face_px, settings.detect.factor)
    return sum(detector_flops("pnet", level.height, level.width) for level in levels)


def product_flops_per_s(device: str) -> float:
    """The best rate of a large float32 matrix product on `device`, with the threads that torch has."""
    side = _PRODUCT_SIDE[torch.device(device).type]
    matrix = torch.ones(side, side, device=device)
    best = min(timed(lambda: torch.mm(matrix, matrix), device) for _ in range(_PRODUCT_TRIES))
    return 2 * side**3 / best


def stage_costs(chain: FacepipeChain, files: Sequence[Path], threads: int) -> dict[str, Any]:
    """Seconds and shares of the bound, by stage, for one pass over `files`; `bound_s` is all bounds together.

    `threads` is what the machine has: of decoding, and on a CPU of everything. On CUDA the stages run one after the
    other, so together they take longer than the engine, which decodes meanwhile.
    """
    if chain.settings.run.device != "cpu":
        return _costs(chain, files, threads, 1)
    with using_threads(1):
        return _costs(chain, files, 1, threads)


def _costs(chain: FacepipeChain, files: Sequence[Path], decoders: int, cores: int) -> dict[str, Any]:
    settings, extractor = chain.settings, chain.extractor
    data = [file.read_bytes() for file in files]
    decoder, (bare_name, bare) = Decoder(settings.decode), bare_decoder()

    def decode(one: bytes) -> DecodedImage:
        image = decoder(one)
        chain.pixel_hash(image.pixels)
        return image

    with ThreadPoolExecutor(decoders) as pool:
        decode_s, images = _seconds(lambda: list(pool.map(decode, data)))
        bare_s, _ = _seconds(lambda: [None for _ in pool.map(lambda one: bare(one).shape, data)])
    counts = (extractor.detector.counts[RNET], extractor.detector.counts[ONET], extractor.embedder.counts)
    before = [count.inputs for count in counts]
    times = StageTimes(lambda: synchronize(settings.run.device))
    total_s, _ = _seconds(lambda: [extractor.extract(batch, times) for batch in _batches(images, settings.run)])
    rnet, onet, faces = (count.inputs - first for count, first in zip(counts, before, strict=True))
    detect_flops = sum(pyramid_flops(image.height, image.width, settings) for image in images)
    detect_flops += rnet * detector_flops("rnet", 24, 24) + onet * detector_flops("onet", 48, 48)
    embed_flops = faces * embedder_flops(settings.model.weights, extractor.embedder.input_size)
    detect_s = sum(times.stages[name].seconds for name in (PNET, RNET, ONET))
    embed_s = times.stages[EMBED].seconds
    rate = product_flops_per_s(settings.run.device) * cores
    spent = dict(zip(STAGES, (s / cores for s in (decode_s, detect_s, embed_s)), strict=True))
    bounds = dict(zip(STAGES, (bare_s / cores, detect_flops / rate, embed_flops / rate), strict=True))
    return {
        "product_gflops_per_s": rate / 1e9,
        "bare_decoder": bare_name,
        "detect_gflop": detect_flops / 1e9,
        "embed_gflop": embed_flops / 1e9,
        **{f"{stage}_s": seconds for stage, seconds in spent.items()},
        "rest_s": (total_s - detect_s - embed_s) / cores,  # crops, quality, pictures to store, tables of faces
        **{f"{stage}_share_of_bound": bounds[stage] / spent[stage] for stage in STAGES},
        "bound_s": sum(bounds.values()),
    }


def bare_decoder() -> tuple[str, Callable[[bytes], ByteArray]]:
    """Its name, and what makes [H, W, 3] uint8 RGB of a file's bytes, and nothing else."""
    if find_spec("simplejpeg") is None:
        return "pillow", lambda data: np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
    import simplejpeg

    return "simplejpeg", lambda data: simplejpeg.decode_jpeg(data, colorspace="RGB")


def _seconds(run: Callable[[], Any]) -> tuple[float, Any]:
    begun = time.perf_counter()
    answer = run()
    return time.perf_counter() - begun, answer


def _batches(images: Sequence[DecodedImage], limits: RunSettings) -> Iterator[list[DecodedImage]]:
    """Within the limits of images and pixels."""
    batch: list[DecodedImage] = []
    pixels = 0
    for image in images:
        size = image.width * image.height
        if batch and (len(batch) == limits.batch_images or pixels + size > limits.batch_pixels):
            yield batch
            batch, pixels = [], 0
        batch.append(image)
        pixels += size
    yield batch
