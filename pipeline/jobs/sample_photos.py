"""The demo's photos: about thirty files made from two portraits, and the table of what they hold.

Both portraits are in the public domain as works of the United States government: Grace Hopper by the US Navy (from
the matplotlib wheel), Eileen Collins by NASA (from the scikit-image wheel). The three faceless pictures beside them
come from the scikit-image wheel too, where they are marked CC0.

The files sort so that faces too poor to become an identity come first, while the store is empty: they match nobody
and the gate counts them. A good photo of each person follows, and all later ones are found to be one of the two.
"""

from __future__ import annotations

import io
import struct
import zlib
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, TypeAlias

import pillow_heif
from PIL import Image, ImageEnhance, ImageFilter

from pipeline.errors import ImageTooLarge, ImageTruncated, ImageUnsupported, UsageError
from pipeline.types import CENTER_POSE, CONTRAST, DUPLICATE, NO_FACE, OK, SHARPNESS

HOPPER: Final = "Grace Hopper"
COLLINS: Final = "Eileen Collins"
_REFUSED: Final = frozenset({ImageTooLarge.status, ImageTruncated.status, ImageUnsupported.status})
_ORIGINALS: Final = {  # package and data file
    "hopper": ("matplotlib", "mpl-data/sample_data/grace_hopper.jpg"),
    "collins": ("skimage", "data/astronaut.png"),
    "cat": ("skimage", "data/chelsea.png"),
    "coffee": ("skimage", "data/coffee.png"),
    "rocket": ("skimage", "data/rocket.jpg"),
}
_PEOPLE: Final = {"hopper": HOPPER, "collins": COLLINS}
_EXIF_ORIENTATION: Final = 0x0112
# How a picture is stored so that its EXIF orientation turns it upright again.
_STORED: Final = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_90,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_270,
}
_Edit: TypeAlias = Callable[[Image.Image], Image.Image]


@dataclass(frozen=True)
class Sample:
    """One file of the demo, and what the pipeline must find in it (default settings, files in name order)."""

    file: str
    person: str | None  # whose single face it shows
    status: str  # of the media row
    rejection: str | None  # the quality measure that keeps its face from becoming an identity
    made: str  # how, in words


@dataclass(frozen=True)
class SampleCounts:
    """What a run over all samples into an empty directory must count, under the names of the run's report."""

    images: int
    faces: int  # those of duplicates and the rejected ones too
    persons: int
    statuses: Mapping[str, int]
    rejected: Mapping[str, int]  # refused images by status, refused faces by quality measure


@dataclass(frozen=True)
class _Recipe:
    sample: Sample
    data: Callable[[], bytes]


def expected_counts(samples: list[Sample]) -> SampleCounts:
    """The table of what `samples` hold, summed up."""
    statuses = Counter(sample.status for sample in samples)
    rejected = Counter(sample.rejection for sample in samples if sample.rejection)
    rejected.update({status: count for status, count in statuses.items() if status in _REFUSED})
    return SampleCounts(
        images=len(samples),
        faces=sum(sample.person is not None for sample in samples),
        persons=len({sample.person for sample in samples if sample.person}),
        statuses=dict(statuses),
        rejected={reason: count for reason, count in rejected.items() if reason},
    )


def write_samples(folder: Path) -> list[Sample]:
    """Writes the files into `folder` (made where it is missing), in name order, and says what each holds.

    Raises UsageError where a package with the originals is not installed, or `folder` holds other files already.
    """
    recipes = sorted(_recipes(), key=lambda recipe: recipe.sample.file)
    _make_folder(folder, {recipe.sample.file for recipe in recipes})
    for recipe in recipes:
        (folder / recipe.sample.file).write_bytes(recipe.data())
    return [recipe.sample for recipe in recipes]


def _make_folder(folder: Path, own: set[str]) -> None:
    """Other files would be images of the demo too, and its table would not hold."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        others = sorted({path.name for path in folder.iterdir()} - own)
    except OSError as exc:
        raise UsageError(message=f"The folder {folder} for the sample photos cannot be used: {exc.strerror}.") from exc
    if others:
        raise UsageError(message=f"The folder {folder} holds other files ({others[0]}). Give an empty one.")


def _original(name: str) -> Path:
    package, file = _ORIGINALS[name]
    spec = find_spec(package)
    path = Path(spec.origin).parent / file if spec is not None and spec.origin is not None else None
    if path is None or not path.is_file():
        raise UsageError(
            message=f'The sample photos come with the package "{package}", which is not installed or not whole. '
            'Run: pip install "facepipe[demo]"'
        )
    return path


def _recipes() -> list[_Recipe]:
    pillow_heif.register_heif_opener()  # Pillow then writes HEIC, too
    return [*_too_poor(), *_portraits(), *_hopper_variants(), *_collins_variants(), *_faceless(), *_broken()]


def _photo(file: str, made: str, source: str, edit: _Edit, *, rejection: str | None = None, **save: Any) -> _Recipe:
    """An edited picture; `save` is what Pillow's `save` is told beside the format that the suffix says."""
    person = _PEOPLE.get(source)
    path = _original(source)
    sample = Sample(file, person, NO_FACE if person is None else OK, rejection, made)
    return _Recipe(sample, lambda: _encode(edit(_load(path)), Path(file).suffix, save))


def _load(path: Path) -> Image.Image:
    image = Image.open(path)
    with image:
        return image.convert("RGB")


def _encode(image: Image.Image, suffix: str, save: Mapping[str, Any]) -> bytes:
    file = io.BytesIO()
    image.save(file, format=Image.registered_extensions()[suffix], **save)
    return file.getvalue()


def _too_poor() -> list[_Recipe]:
    tilted = partial(_tilt, degrees=48)
    return [
        _photo("01-blurred.jpg", "blurred", "hopper", _blur, rejection=SHARPNESS),
        _photo("02-flat.png", "contrast cut to a fifth", "collins", _flatten, rejection=CONTRAST),
        _photo("03-tilted.jpg", "tilted by 48 degrees", "hopper", tilted, rejection=CENTER_POSE, quality=92),
    ]


def _portraits() -> list[_Recipe]:
    hopper, collins = _original("hopper").read_bytes(), _original("collins").read_bytes()
    return [
        _Recipe(Sample("10-hopper.jpg", HOPPER, OK, None, "the original file"), lambda: hopper),
        _Recipe(Sample("11-collins.png", COLLINS, OK, None, "the original file"), lambda: collins),
        _Recipe(Sample("12-hopper-copy.jpg", HOPPER, DUPLICATE, None, "the same bytes again"), lambda: hopper),
    ]


def _hopper_variants() -> list[_Recipe]:
    photo = partial(_photo, source="hopper")
    return [
        photo("20-hopper-cut.png", "cut to head and shoulders", edit=_crop((90, 30, 450, 470))),
        photo("21-hopper-half.jpg", "half the size", edit=_scale(0.5)),
        photo("22-hopper-mirrored.webp", "mirrored", edit=_turn(Image.Transpose.FLIP_LEFT_RIGHT)),
        photo("23-hopper-dark.bmp", "darker", edit=_brightness(0.6)),
        photo("24-hopper-quality20.jpg", "JPEG quality 20", edit=_same, quality=20),
        photo("25-hopper.heic", "as HEIC", edit=_same),
        *(_turned(f"26-hopper-exif{turn}.jpg", "hopper", turn) for turn in (2, 3, 6, 8)),
        photo("27-hopper-cmyk.jpg", "in CMYK", edit=_mode("CMYK"), quality=90),
    ]


def _collins_variants() -> list[_Recipe]:
    photo = partial(_photo, source="collins")
    return [
        photo("30-collins-cut.jpg", "cut to the head", edit=_crop((120, 0, 330, 240)), quality=90),
        photo("31-collins-large.jpg", "one and a half times the size", edit=_scale(1.5), quality=80),
        photo("32-collins-mirrored.tiff", "mirrored", edit=_turn(Image.Transpose.FLIP_LEFT_RIGHT)),
        photo("33-collins-bright.webp", "brighter", edit=_brightness(1.3), quality=85),
        photo("34-collins-palette.gif", "256 colours", edit=_same),
        photo("35-collins-alpha.png", "with a transparent edge", edit=_fade),
        *(_turned(f"36-collins-exif{turn}.jpg", "collins", turn) for turn in (4, 5, 7)),
        photo("37-collins.avif", "as AVIF", edit=_same, quality=80),
    ]


def _faceless() -> list[_Recipe]:
    return [
        _photo("40-cat.jpg", "a cat", "cat", _same, quality=90),
        _photo("41-coffee.png", "a cup of coffee", "coffee", _same),
        _photo("42-rocket.webp", "a rocket", "rocket", _same, quality=85),
    ]


def _broken() -> list[_Recipe]:
    whole = _original("hopper").read_bytes()
    table = [
        ("50-empty.jpg", ImageUnsupported.status, "no bytes at all", b""),
        ("51-notes.jpg", ImageUnsupported.status, "a text named like a photo", b"Remember to scan the album.\n"),
        ("52-cut.jpg", ImageTruncated.status, "the first third of a file", whole[: len(whole) // 3]),
        ("53-huge.png", ImageTooLarge.status, "a header of 50,000 x 50,000 pixels", _huge_png()),
    ]
    return [_Recipe(Sample(file, None, status, None, made), partial(bytes, data)) for file, status, made, data in table]


def _huge_png() -> bytes:
    header = _chunk(b"IHDR", struct.pack(">IIBBBBB", 50_000, 50_000, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + _chunk(b"IDAT", zlib.compress(bytes(4096))) + _chunk(b"IEND", b"")


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def _turned(file: str, source: str, orientation: int) -> _Recipe:
    exif = Image.Exif()
    exif[_EXIF_ORIENTATION] = orientation
    made = f"turned, with EXIF orientation {orientation}"
    return _photo(file, made, source, _turn(_STORED[orientation]), exif=exif.tobytes(), quality=90)


def _same(image: Image.Image) -> Image.Image:
    return image


def _blur(image: Image.Image) -> Image.Image:
    return image.filter(ImageFilter.GaussianBlur(7))


def _flatten(image: Image.Image) -> Image.Image:
    return image.point(lambda value: round(128 + (value - 128) * 0.2))


def _tilt(image: Image.Image, degrees: float) -> Image.Image:
    return image.rotate(degrees, Image.Resampling.BICUBIC, fillcolor=(128, 128, 128))


def _fade(image: Image.Image) -> Image.Image:
    """Transparent towards the lower edge, below the face."""
    image.putalpha(Image.linear_gradient("L").resize(image.size).point(lambda value: min(255, 2 * (255 - value))))
    return image


def _crop(box: tuple[int, int, int, int]) -> _Edit:
    return lambda image: image.crop(box)


def _scale(factor: float) -> _Edit:
    return lambda image: image.resize(
        (round(image.width * factor), round(image.height * factor)), Image.Resampling.LANCZOS
    )


def _turn(method: Image.Transpose) -> _Edit:
    return lambda image: image.transpose(method)


def _brightness(factor: float) -> _Edit:
    return lambda image: ImageEnhance.Brightness(image).enhance(factor)


def _mode(mode: str) -> _Edit:
    return lambda image: image.convert(mode)
