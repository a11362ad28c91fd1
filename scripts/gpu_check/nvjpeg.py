"""nvJPEG: what it makes of odd and damaged files, how fast it is, and whether it keeps memory."""

from __future__ import annotations

import io
import random
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import torch
from PIL import Image
from torchvision.io import ImageReadMode, decode_jpeg

from gpu_check.benches import call, corpora_words
from gpu_check.findings import Findings
from gpu_check.options import Options
from gpu_check.photos import corpus, images
from pipeline.config import DecodeSettings
from pipeline.errors import ImageRejected
from pipeline.extraction.images.decode import Decoder, decode_image
from pipeline.extraction.images.nvjpeg import DeviceDecoder
from pipeline.runtime.device import resolve_device
from pipeline.types import DecodedImage, DeviceImage, EncodedImage

_SETTINGS: Final = DecodeSettings()
_MOST_LEVELS_APART: Final = 3.0  # of a whole picture: colour may be enlarged in another way
_LEAK_BATCHES, _LEAK_SAMPLED_EVERY, _MOST_LEAK_MIB = 40, 10, 64
_HEADER: Final = 700  # bytes: where they are wrong the file is refused, which is no test of the decoder


def nvjpeg(options: Options, found: Findings) -> None:
    device = resolve_device(options.device)
    for name, data in odd_files(Image.open(corpus(options, "b")[0])).items():
        with found.part(name):
            found.put(name, outcome(name, data, device, found))
    with found.part("leak"):
        free = free_mib(options, device)
        found.put("free MiB after each ten batches", free)
        found.expect(free[0] - free[-1] <= _MOST_LEAK_MIB, f"decoding keeps memory: {free} MiB free")
    with found.part("rate"):
        corpora = "a" if options.quick else "abc"
        words = ["--images", str(images(options)), "--repeats", "3", "--corpus", *corpora]
        figures = call("bench_decode", options, *corpora_words(options), *words)["decode"]
        found.put("decoding", figures)
        rates = ", ".join(f"{name} {of['images_per_s_device']:.0f}" for name, of in figures.items())
        found.headline = f"images/s: {rates}"


def odd_files(original: Image.Image) -> dict[str, bytes]:
    """JPEG files of many kinds, the damaged ones last, by name."""
    picture = original.convert("RGB").resize((1001, 747))
    save = partial(_saved, picture)
    plain, exif = save(), Image.Exif()
    exif[0x0112] = 6
    kinds: dict[str, Callable[[], bytes]] = {
        "4:2:0": save,
        "4:4:4": partial(save, subsampling=0),
        "4:2:2": partial(save, subsampling=1),
        "progressive": partial(save, progressive=True),
        "grey": partial(_saved, picture.convert("L")),
        "CMYK": partial(_saved, picture.convert("CMYK")),
        "turned": partial(save, exif=exif.tobytes()),
        "restart markers": partial(save, restart_marker_blocks=8),
        "1 x 1": partial(_saved, picture.resize((1, 1))),
        "17 x 33": partial(_saved, picture.resize((17, 33))),
        "damaged: cut": lambda: plain[: len(plain) // 2],
        "damaged: cut, with an end": lambda: plain[: len(plain) // 2] + b"\xff\xd9",
        **{f"damaged: {count} bytes wrong": partial(_flipped, plain, count) for count in (1, 3, 20)},
    }
    return {name: make() for name, make in kinds.items()}


def _saved(picture: Image.Image, **options: Any) -> bytes:
    out = io.BytesIO()
    picture.save(out, "JPEG", quality=90, **options)
    return out.getvalue()


def _flipped(data: bytes, count: int) -> bytes:
    rng, flipped = random.Random(count), bytearray(data)
    for _ in range(count):
        flipped[rng.randrange(_HEADER, len(data) - 2)] = rng.randrange(256)
    return bytes(flipped)


def outcome(name: str, data: bytes, device: torch.device, found: Findings) -> dict[str, Any]:
    """What Pillow, nvJPEG alone and facepipe make of a file. Only facepipe must be right, and that on whole files."""
    cpu: DecodedImage | ImageRejected
    try:
        cpu = decode_image(data, _SETTINGS)
    except ImageRejected as exc:
        cpu = exc
    ours = through_facepipe(data, device)
    apart = levels_apart(cpu, ours)
    if not name.startswith("damaged"):
        found.expect(apart is not None and apart <= _MOST_LEVELS_APART, f"{name}: {apart} grey levels from Pillow's")
    try:
        stored = decode_jpeg(torch.frombuffer(bytearray(data), dtype=torch.uint8), ImageReadMode.RGB, device=device)
        alone = str(list(stored.shape))
    except RuntimeError as exc:
        alone = f"refused: {str(exc)[:120]}"
    kinds = {"cpu": type(cpu).__name__, "facepipe": type(ours).__name__}
    return {**kinds, "nvJPEG alone": alone, "grey levels apart": apart}


def through_facepipe(data: bytes, device: torch.device) -> DecodedImage | DeviceImage | ImageRejected:
    """As the engine does it."""
    try:
        opened = Decoder(_SETTINGS).prepare(data)
        image = opened if isinstance(opened, EncodedImage) else opened.load()
    except ImageRejected as exc:
        return exc
    return DeviceDecoder(_SETTINGS)([image], device)[0]


def levels_apart(one: DecodedImage | ImageRejected, two: DecodedImage | DeviceImage | ImageRejected) -> float | None:
    """The mean difference in grey levels; None where there are no two pictures of one size."""
    if isinstance(one, ImageRejected) or isinstance(two, ImageRejected) or one.pixels.shape != tuple(two.pixels.shape):
        return None
    other = torch.as_tensor(two.pixels).cpu()
    return round(float((torch.from_numpy(one.pixels).int() - other.int()).abs().float().mean()), 3)


def free_mib(options: Options, device: torch.device) -> list[int]:
    """The device's free memory while the same batch is decoded again and again."""
    files = [file.read_bytes() for file in corpus(options, "b")]
    batch = [torch.frombuffer(bytearray(data), dtype=torch.uint8) for data in files]
    free = []
    for number in range(1, _LEAK_BATCHES + 1):
        decode_jpeg(batch, ImageReadMode.RGB, device=device)
        if number % _LEAK_SAMPLED_EVERY == 0:
            torch.cuda.synchronize(device)
            torch.cuda.empty_cache()
            free.append(round(torch.cuda.mem_get_info(device)[0] / 2**20))
    return free
