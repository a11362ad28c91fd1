"""What each stage of an extraction costs, one after the other, beside the least that it could cost on this machine.

The bound of decoding is the fastest bare JPEG decoder there is; the bound of the networks is the arithmetic that the
reference's networks need for the same levels, crops and faces, at the rate of the machine's own float32 matrix product.
A share is that bound by the seconds that the stage took. On a CPU all is timed on one thread, as the engine works a
batch on a core, and divided by the cores: seconds of a machine whose cores share the work without loss.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from bench_common import synchronize, timed
from facenet_pytorch.models.inception_resnet_v1 import InceptionResnetV1
from facenet_pytorch.models.mtcnn import ONet, PNet, RNet
from jpeg_decoders import installed
from torch.utils.flop_counter import FlopCounterMode

from pipeline.config import Settings
from pipeline.evaluation.bench.facepipe import FacepipeChain
from pipeline.extraction.detection.pyramid import pyramid
from pipeline.extraction.images.decode import Decoder
from pipeline.types import DecodedImage

_PRODUCT_SIDE = {"cpu": 1536, "cuda": 8192}
_PRODUCT_TRIES = 7


@cache
def network_flops(name: str, height: int, width: int) -> int:
    """Floating point operations of one pass over one image, two for each multiply-add."""
    makers: dict[str, Callable[[], torch.nn.Module]] = {
        "pnet": lambda: PNet(pretrained=False),
        "rnet": lambda: RNet(pretrained=False),
        "onet": lambda: ONet(pretrained=False),
        "embedder": lambda: InceptionResnetV1(pretrained=None),
    }
    counter = FlopCounterMode(display=False)
    with torch.device("meta"), torch.no_grad(), counter:
        makers[name]().eval()(torch.empty(1, 3, height, width))
    return int(counter.get_total_flops())


def pyramid_flops(height: int, width: int, settings: Settings) -> int:
    """P-Net's, over all levels of an image."""
    levels = pyramid(height, width, settings.detect.min_face_px, settings.detect.factor)
    return sum(network_flops("pnet", level.height, level.width) for level in levels)


def product_flops_per_s(device: str) -> float:
    """The best rate of a large float32 matrix product on `device`, with the threads that torch has."""
    side = _PRODUCT_SIDE["cuda" if device.startswith("cuda") else "cpu"]
    matrix = torch.ones(side, side, device=device)
    best = min(timed(lambda: torch.mm(matrix, matrix), device) for _ in range(_PRODUCT_TRIES))
    return 2 * side**3 / best


class _Watched:
    """A stage that is timed, and is otherwise what it was."""

    def __init__(self, stage: Callable[..., Any], device: str) -> None:
        self.stage, self.device, self.seconds = stage, device, 0.0

    def __call__(self, *arguments: Any) -> Any:
        synchronize(self.device)
        begun = time.perf_counter()
        answer = self.stage(*arguments)
        synchronize(self.device)
        self.seconds += time.perf_counter() - begun
        return answer

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stage, name)


@dataclass
class _Work:
    """What was done, to be multiplied with what it costs at least."""

    images: list[DecodedImage]
    rnet_crops: int
    onet_crops: int
    faces: int


def stage_costs(chain: FacepipeChain, files: Sequence[Path], threads: int) -> dict[str, Any]:
    """Seconds and shares of the bound, by stage, for one pass over `files`; `bound_s` is all bounds together.

    `threads` is what the machine has: of decoding, and on a CPU of everything. On CUDA the stages run one after the
    other, so together they take longer than the engine, which decodes meanwhile.
    """
    if chain.settings.run.device != "cpu":
        return _costs(chain, files, threads, 1)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _costs(chain, files, 1, threads)
    finally:
        torch.set_num_threads(before)


def _costs(chain: FacepipeChain, files: Sequence[Path], decoders: int, cores: int) -> dict[str, Any]:
    settings, extractor, device = chain.settings, chain.extractor, chain.settings.run.device
    data = [file.read_bytes() for file in files]
    decoder, bare = Decoder(settings.decode), next(iter(installed().values()))
    with ThreadPoolExecutor(decoders) as pool:
        decode_s, images = _seconds(lambda: list(pool.map(decoder, data)))
        bare_s, _ = _seconds(lambda: [None for _ in pool.map(lambda one: bare(one).shape, data)])
    counts, items = extractor.detector.counts, extractor.embedder.counts.inputs
    crops = (counts.rnet.inputs, counts.onet.inputs)
    detector, embedder = _Watched(extractor.detector, device), _Watched(extractor.embedder, device)
    extractor.detector, extractor.embedder = detector, embedder  # type: ignore[assignment]
    try:
        extract_s, _ = _seconds(lambda: [extractor.extract(part) for part in _batches(images, settings)])
    finally:
        extractor.detector, extractor.embedder = detector.stage, embedder.stage  # type: ignore[assignment]
    faces = extractor.embedder.counts.inputs - items
    work = _Work(images, counts.rnet.inputs - crops[0], counts.onet.inputs - crops[1], faces)
    rest_s = extract_s - detector.seconds - embedder.seconds
    seconds = (decode_s, bare_s, detector.seconds, embedder.seconds, rest_s)
    return _shares(work, settings, *(each / cores for each in seconds), cores=cores)


def _seconds(run: Callable[[], Any]) -> tuple[float, Any]:
    begun = time.perf_counter()
    answer = run()
    return time.perf_counter() - begun, answer


def _batches(images: Sequence[DecodedImage], settings: Settings) -> Iterator[list[DecodedImage]]:
    """Within the settings' limits of images and pixels."""
    batch: list[DecodedImage] = []
    pixels = 0
    for image in images:
        size = image.width * image.height
        if batch and (len(batch) == settings.run.batch_images or pixels + size > settings.run.batch_pixels):
            yield batch
            batch, pixels = [], 0
        batch.append(image)
        pixels += size
    yield batch


def _shares(
    work: _Work,
    settings: Settings,
    decode_s: float,
    bare_s: float,
    detect_s: float,
    embed_s: float,
    rest_s: float,
    cores: int,
) -> dict[str, Any]:
    rate = product_flops_per_s(settings.run.device) * cores
    detect = sum(pyramid_flops(image.height, image.width, settings) for image in work.images)
    detect += work.rnet_crops * network_flops("rnet", 24, 24) + work.onet_crops * network_flops("onet", 48, 48)
    embed = work.faces * network_flops("embedder", 160, 160)
    bounds = {"decode": bare_s, "detect": detect / rate, "embed": embed / rate}
    spent = {"decode": decode_s, "detect": detect_s, "embed": embed_s}
    return {
        "product_gflops_per_s": rate / 1e9,
        "bare_decoder": next(iter(installed())),
        "detect_gflop": detect / 1e9,
        "embed_gflop": embed / 1e9,
        **{f"{stage}_s": seconds for stage, seconds in spent.items()},
        "rest_s": rest_s,  # summed-area tables, crops, quality, pictures to store, tables of faces
        **{f"{stage}_share_of_bound": bounds[stage] / seconds for stage, seconds in spent.items()},
        "bound_s": sum(bounds.values()),
    }
