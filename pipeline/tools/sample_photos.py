"""The demo's photos: about thirty files made from two portraits, and what the pipeline must find in each.

Both portraits are works of the United States government and so in the public domain: Grace Hopper by the US Navy (in
the matplotlib wheel), Eileen Collins by NASA (in the scikit-image wheel). The three pictures without a face are also
from the scikit-image wheel, which marks them CC0.

The pipeline reads the files by name. The first three show faces of poor quality: the store is still empty, so they
match nobody, and the quality gate rejects them. Then comes a good photo of each person, which the later ones match.
"""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, TypeAlias

import pillow_heif
from PIL import Image, ImageEnhance, ImageFilter, ImageOps

from pipeline.errors import ImageTooLarge, ImageTruncated, ImageUnsupported, UsageError
from pipeline.texts import install_extra
from pipeline.types import CENTER_POSE, CONTRAST, DUPLICATE, NO_FACE, OK, SHARPNESS

HOPPER: Final = "Grace Hopper"
COLLINS: Final = "Eileen Collins"
_ORIGINALS: Final = {  # package and data file
    "hopper": ("matplotlib", "mpl-data/sample_data/grace_hopper.jpg"),
    "collins": ("skimage", "data/astronaut.png"),
    "cat": ("skimage", "data/chelsea.png"),
    "coffee": ("skimage", "data/coffee.png"),
    "rocket": ("skimage", "data/rocket.jpg"),
}
_PEOPLE: Final = {"hopper": HOPPER, "collins": COLLINS}
_EXIF_ORIENTATION: Final = 0x0112
_Edit: TypeAlias = Callable[[Image.Image], Image.Image]


@dataclass(frozen=True)
class Sample:
    """A file of the demo, and what a default run must find in it."""

    file: str
    person: str | None  # whose single face it shows
    status: str  # of the media row
    rejection: str | None = None  # the quality measure that rejects its face


_Recipe: TypeAlias = tuple[Sample, Callable[[], bytes]]  # with a function that makes the file's bytes


def write_samples(folder: Path) -> list[Sample]:
    """Writes the files into `folder`, created if missing; returns the samples, ordered by name.

    Raises UsageError if a package with the originals is missing, or `folder` has other files.
    """
    recipes = _recipes()
    _make_folder(folder, {sample.file for sample, _ in recipes})
    for sample, make in recipes:
        (folder / sample.file).write_bytes(make())
    return [sample for sample, _ in recipes]


def portrait() -> bytes:
    """A JPEG file of 512 x 600 with one face. Raises UsageError if its package is missing."""
    return _original("hopper").read_bytes()


def _make_folder(folder: Path, own: set[str]) -> None:
    """Raises UsageError for other files than `own`, which a run would import."""
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
            message=f'The sample photos come with the package "{package}", which is missing or incomplete. '
            f"Run: {install_extra('demo')}"
        )
    return path


def _recipes() -> list[_Recipe]:
    """Ordered by name."""
    pillow_heif.register_heif_opener()  # lets Pillow write HEIC
    hopper, collins = partial(_photo, "hopper"), partial(_photo, "collins")
    mirror = partial(_turn, orientation=2)
    return [
        hopper("01-blurred.jpg", lambda image: image.filter(ImageFilter.GaussianBlur(7)), rejection=SHARPNESS),
        collins("02-flat.png", _flatten, rejection=CONTRAST),
        hopper("03-tilted.jpg", _tilt, rejection=CENTER_POSE, quality=92),
        (Sample("10-hopper.jpg", HOPPER, OK), _original("hopper").read_bytes),
        (Sample("11-collins.png", COLLINS, OK), _original("collins").read_bytes),
        (Sample("12-hopper-copy.jpg", HOPPER, DUPLICATE), _original("hopper").read_bytes),
        hopper("20-hopper-cut.png", lambda image: image.crop((90, 30, 450, 470))),
        hopper("21-hopper-half.jpg", lambda image: _scale(image, 0.5)),
        hopper("22-hopper-mirrored.webp", mirror),
        hopper("23-hopper-dark.bmp", lambda image: ImageEnhance.Brightness(image).enhance(0.6)),
        hopper("24-hopper-quality20.jpg", quality=20),
        hopper("25-hopper.heic"),
        *(_turned(hopper, f"26-hopper-exif{orientation}.jpg", orientation) for orientation in (2, 3, 6, 8)),
        hopper("27-hopper-cmyk.jpg", lambda image: image.convert("CMYK"), quality=90),
        collins("30-collins-cut.jpg", lambda image: image.crop((120, 0, 330, 240)), quality=90),
        collins("31-collins-large.jpg", lambda image: _scale(image, 1.5), quality=80),
        collins("32-collins-mirrored.tiff", mirror),
        collins("33-collins-bright.webp", lambda image: ImageEnhance.Brightness(image).enhance(1.3), quality=85),
        collins("34-collins-palette.gif"),
        collins("35-collins-alpha.png", _fade),
        *(_turned(collins, f"36-collins-exif{orientation}.jpg", orientation) for orientation in (4, 5, 7)),
        collins("37-collins.avif", quality=80),
        _photo("cat", "40-cat.jpg", quality=90),
        _photo("coffee", "41-coffee.png"),
        _photo("rocket", "42-rocket.webp", quality=85),
        (Sample("50-empty.jpg", None, ImageUnsupported.status), bytes),
        (Sample("51-notes.jpg", None, ImageUnsupported.status), lambda: b"Remember to scan the album.\n"),
        (Sample("52-cut.jpg", None, ImageTruncated.status), _first_third),
        (Sample("53-huge.png", None, ImageTooLarge.status), _huge_png),
    ]


def _photo(
    source: str, file: str, edit: _Edit = lambda image: image, *, rejection: str | None = None, **save: Any
) -> _Recipe:
    """An original after `edit`, in the format of the suffix of `file`. `save`: Pillow's options."""
    person, path = _PEOPLE.get(source), _original(source)

    def make() -> bytes:
        out = io.BytesIO()
        with Image.open(path) as image:
            edited = edit(image.convert("RGB"))
        edited.save(out, format=Image.registered_extensions()[Path(file).suffix], **save)
        return out.getvalue()

    return Sample(file, person, NO_FACE if person is None else OK, rejection), make


def _turned(photo: Callable[..., _Recipe], file: str, orientation: int) -> _Recipe:
    exif = Image.Exif()
    exif[_EXIF_ORIENTATION] = orientation
    return photo(file, partial(_turn, orientation=orientation), exif=exif.tobytes(), quality=90)


def _turn(image: Image.Image, orientation: int) -> Image.Image:
    """Turns the pixels so that the EXIF orientation restores them: 6 and 8 are each other's inverse."""
    image.getexif()[_EXIF_ORIENTATION] = {6: 8, 8: 6}.get(orientation, orientation)
    return ImageOps.exif_transpose(image)


def _flatten(image: Image.Image) -> Image.Image:
    """Reduces the contrast to a fifth."""
    return image.point(lambda value: round(128 + (value - 128) * 0.2))


def _tilt(image: Image.Image) -> Image.Image:
    return image.rotate(48, Image.Resampling.BICUBIC, fillcolor=(128, 128, 128))


def _scale(image: Image.Image, factor: float) -> Image.Image:
    size = (round(image.width * factor), round(image.height * factor))
    return image.resize(size, Image.Resampling.LANCZOS)


def _fade(image: Image.Image) -> Image.Image:
    """Transparent towards the lower edge, below the face."""
    image.putalpha(Image.linear_gradient("L").resize(image.size).point(lambda value: min(255, 2 * (255 - value))))
    return image


def _first_third() -> bytes:
    whole = _original("hopper").read_bytes()
    return whole[: len(whole) // 3]


def _huge_png() -> bytes:
    """A PNG whose header says 50,000 x 50,000 pixels."""
    header = _chunk(b"IHDR", struct.pack(">IIBBBBB", 50_000, 50_000, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + _chunk(b"IDAT", zlib.compress(bytes(4096))) + _chunk(b"IEND", b"")


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
