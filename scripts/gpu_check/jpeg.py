"""JPEG files decoded on the device: how far their pixels are from libjpeg-turbo's, what becomes of odd and damaged
ones, and whether it keeps memory. The step `bench` measures how fast it is."""

from __future__ import annotations

import io
import random
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

import torch
from PIL import Image

from gpu_check.findings import Findings, Skipped
from gpu_check.options import Options
from gpu_check.photos import corpus
from pipeline.config import DecodeSettings
from pipeline.errors import BadValue, ImageRejected
from pipeline.extraction.images.decode import Decoder, decode_image
from pipeline.extraction.images.device_jpeg import DeviceDecoder, JpegLibrary, load_nvimgcodec
from pipeline.runtime.device import finish, resolve_device
from pipeline.types import DecodedImage, DeviceImage, EncodedImage

_SETTINGS: Final = DecodeSettings()
_PLAIN, _INTERPOLATED = "plain", "interpolated"  # how colour is enlarged
_PHOTOS: Final = 32  # of each corpus, whose pixels are compared
_MOST_LEVELS_APART: Final = 1.0  # of a whole picture, on average
_LEAK_BATCHES, _LEAK_SAMPLED_EVERY, _MOST_LEAK_MIB = 40, 10, 64
_HEADER: Final = 700  # bytes: where they are wrong the file is refused, which is no test of the decoder


def jpeg(options: Options, found: Findings) -> None:
    try:
        load_nvimgcodec()
    except BadValue as exc:
        raise Skipped(str(exc)) from None
    device = resolve_device(options.device)
    libraries = {_INTERPOLATED: JpegLibrary(), _PLAIN: JpegLibrary(interpolates=False)}
    largest = dict.fromkeys(libraries, 0)
    for name in "a" if options.quick else "abc":
        with found.part(f"pixels {name}"):
            files = [file.read_bytes() for file in corpus(options, name)[:_PHOTOS]]
            apart = pixels_apart(files, libraries, device)
            found.put(f"grey levels from libjpeg-turbo's, {name}", apart)
            largest = {kind: max([largest[kind], *(one[0] for one in each if one)]) for kind, each in apart.items()}
    for name, data in odd_files(Image.open(corpus(options, "b")[0])).items():
        with found.part(name):
            found.put(name, outcome(name, data, libraries, device, found))
    with found.part("leak"):
        free = free_mib(options, libraries[_INTERPOLATED], device)
        found.put("free MiB after each ten batches", free)
        found.expect(free[0] - free[-1] <= _MOST_LEAK_MIB, f"decoding keeps memory: {free} MiB free")
    found.headline = f"grey levels from libjpeg-turbo's at most: {largest}"


def pixels_apart(
    files: list[bytes], libraries: Mapping[str, JpegLibrary], device: str
) -> dict[str, list[tuple[int, float] | None]]:
    """By library, `levels_apart` of each file."""
    references = [torch.from_numpy(decode_image(data, _SETTINGS).pixels) for data in files]
    made = {name: on_host(library, files, device) for name, library in libraries.items()}
    return {
        name: [levels_apart(one, other) for one, other in zip(references, pictures, strict=True)]
        for name, pictures in made.items()
    }


def on_host(library: JpegLibrary, files: list[bytes], device: str) -> list[torch.Tensor | None]:
    pictures = library(files, device)
    copies = [None if one is None else one.cpu() for one in pictures]
    finish(device)
    return copies


def levels_apart(one: torch.Tensor, other: torch.Tensor | None) -> tuple[int, float] | None:
    """The largest and the mean difference in grey levels; None where there are no two pictures of one size."""
    if other is None or one.shape != other.shape:
        return None
    apart = (one.int() - other.int()).abs()
    return int(apart.max()), round(float(apart.float().mean()), 4)


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


def outcome(
    name: str, data: bytes, libraries: Mapping[str, JpegLibrary], device: str, found: Findings
) -> dict[str, Any]:
    """What the reference decoder, facepipe and the library alone make of a file. Only facepipe must be right, and that
    on whole files."""
    reference: DecodedImage | ImageRejected
    try:
        reference = decode_image(data, _SETTINGS)
    except ImageRejected as exc:
        reference = exc
    ours = through_facepipe(data, device)
    apart = None
    if not isinstance(reference, ImageRejected) and not isinstance(ours, ImageRejected):
        apart = levels_apart(torch.from_numpy(reference.pixels), torch.as_tensor(ours.pixels).cpu())
    if not name.startswith("damaged"):
        near = apart is not None and apart[1] <= _MOST_LEVELS_APART
        found.expect(near, f"{name}: {apart} grey levels from libjpeg-turbo's")
    alone = {kind: on_host(library, [data], device)[0] is not None for kind, library in libraries.items()}
    kinds = {"cpu": type(reference).__name__, "facepipe": type(ours).__name__}
    return {**kinds, "library alone": alone, "grey levels apart": apart}


def through_facepipe(data: bytes, device: str) -> DecodedImage | DeviceImage | ImageRejected:
    """As the engine does it."""
    try:
        opened = Decoder(_SETTINGS).prepare(data)
        image = opened if isinstance(opened, EncodedImage) else opened.load()
    except ImageRejected as exc:
        return exc
    return DeviceDecoder(_SETTINGS)([image], device)[0]


def free_mib(options: Options, library: JpegLibrary, device: str) -> list[int]:
    """The device's free memory while the same batch is decoded again and again."""
    files = [file.read_bytes() for file in corpus(options, "b")]
    free = []
    for number in range(1, _LEAK_BATCHES + 1):
        pictures = library(files, device)
        finish(device)
        del pictures
        if number % _LEAK_SAMPLED_EVERY == 0:
            torch.cuda.synchronize(device)
            torch.cuda.empty_cache()
            free.append(round(torch.cuda.mem_get_info(device)[0] / 2**20))
    return free
