"""JPEG files: with simplejpeg every file decodes, or is rejected, exactly as with Pillow alone."""

from __future__ import annotations

import hashlib
import io
import random
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image

from pipeline.config import DecodeSettings
from pipeline.errors import ImageRejected
from pipeline.extraction.images import decode, jpeg
from pipeline.extraction.images.decode import decode_image
from tests.extraction.helpers import encode

PLAIN = DecodeSettings(max_pixels=4_000_000)
ACCEPT = DecodeSettings(max_pixels=4_000_000, truncated="accept")

pytestmark = pytest.mark.skipif(find_spec("simplejpeg") is None, reason="simplejpeg is not installed")


def result(data: bytes, settings: DecodeSettings) -> tuple[object, ...]:
    """All that a caller sees of a decoding: the image, or the status and reason."""
    try:
        decoded = decode_image(data, settings)
    except ImageRejected as exc:
        return (exc.status, exc.reason)
    return (decoded.format, decoded.pixels.shape, decoded.pixels.tobytes())


def by_pillow(data: bytes, settings: DecodeSettings) -> tuple[object, ...]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decode, "jpeg_pixels", lambda *_: None)
        return result(data, settings)


def assert_same(data: bytes) -> bool:
    """Both ways agree, in both settings. Returns whether simplejpeg took the file."""
    for settings in (PLAIN, ACCEPT):
        assert result(data, settings) == by_pillow(data, settings)
    try:
        with Image.open(io.BytesIO(data)) as image:
            return jpeg.jpeg_pixels(data, *image.size) is not None
    except OSError:
        return False


KINDS: dict[str, Callable[[Image.Image], bytes]] = {
    "4:4:4": lambda p: encode(p, subsampling=0),
    "4:2:2": lambda p: encode(p, subsampling=1),
    "4:2:0": lambda p: encode(p, subsampling=2),
    "progressive": lambda p: encode(p, progressive=True),
    "progressive 4:4:4": lambda p: encode(p, progressive=True, subsampling=0),
    "grey": lambda p: encode(p.convert("L")),
    "progressive grey": lambda p: encode(p.convert("L"), progressive=True),
    "RGB inside": lambda p: encode(p, keep_rgb=True),
    "optimised": lambda p: encode(p, optimize=True),
    "low quality": lambda p: encode(p, quality=3),
    "restarts": lambda p: encode(p, restart_marker_blocks=2),
    "comment, profile": lambda p: encode(p, comment=b"\xff\xd9" * 40, icc_profile=bytes(70_000)),
    "two pictures": lambda p: encode(p, format="MPO", save_all=True, append_images=[p.rotate(90)]),
    "bytes behind": lambda p: encode(p) + bytes(1000),
}


@pytest.mark.parametrize("kind", KINDS)
def test_sound_files_are_decoded_by_simplejpeg_and_equal(kind: str, picture: Image.Image) -> None:
    assert assert_same(KINDS[kind](picture))


@pytest.mark.parametrize("sampling", ["411", "420", "422", "440", "444"])
def test_samplings_of_another_encoder(sampling: str, picture: Image.Image) -> None:
    factor = getattr(cv2, f"IMWRITE_JPEG_SAMPLING_FACTOR_{sampling}")
    done, data = cv2.imencode(".jpg", np.asarray(picture), [cv2.IMWRITE_JPEG_SAMPLING_FACTOR, factor])
    assert done
    assert assert_same(data.tobytes())


@pytest.mark.parametrize("sides", [(1, 1), (1, 9), (8, 1), (7, 17), (16, 16), (33, 31)])
def test_all_sides_are_equal(sides: tuple[int, int], picture: Image.Image) -> None:
    for sampling in range(3):
        assert assert_same(encode(picture.resize(sides), subsampling=sampling))


@pytest.mark.parametrize("orientation", range(10))
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_exif_turns_are_equal(orientation: int, mode: str, picture: Image.Image) -> None:
    data = encode(picture.convert(mode), orientation)
    assert assert_same(data)
    pixels = decode_image(data, PLAIN).pixels
    assert pixels.flags.c_contiguous
    assert pixels.flags.writeable
    assert pixels.shape == ((101, 75, 3) if orientation in (5, 6, 7, 8) else (75, 101, 3))


def _with_frame(data: bytes, offset: int, value: int) -> bytes:
    """The file with one byte of its frame header changed, counted from the marker."""
    changed = bytearray(data)
    changed[data.index(b"\xff\xc0\x00\x11") + offset] = value
    return bytes(changed)


@pytest.mark.parametrize("marker", [0xC3, 0xC5, 0xC6, 0xC7, 0xC9, 0xCA, 0xCB, 0xCD, 0xCE, 0xCF])
def test_rare_codings_are_left_to_pillow(marker: int, picture: Image.Image) -> None:
    assert not assert_same(_with_frame(encode(picture), 1, marker))


def test_other_depths_components_and_cmyk_are_left_to_pillow(picture: Image.Image) -> None:
    assert not assert_same(_with_frame(encode(picture), 4, 12))
    assert not assert_same(_with_frame(encode(picture), 9, 4))
    assert not assert_same(encode(picture.convert("CMYK")))
    assert not assert_same(encode(picture)[:300])


@pytest.mark.parametrize("factors", [0x11, 0x14, 0x21, 0x31, 0x13, 0x33, 0x42, 0x44, 0x00, 0x51])
def test_odd_sampling_factors_are_equal(factors: int, picture: Image.Image) -> None:
    assert_same(_with_frame(encode(picture), 11, factors))


def test_other_sides_than_pillow_read_are_refused(picture: Image.Image) -> None:
    data = encode(picture)
    assert jpeg.jpeg_pixels(data, 101, 75) is not None
    assert jpeg.jpeg_pixels(data, 75, 101) is None


@pytest.mark.parametrize("progressive", [False, True])
def test_cut_files_give_equal_results(progressive: bool, picture: Image.Image) -> None:
    data = encode(picture, progressive=progressive)
    taken = [assert_same(data[:length]) for length in [*range(2, len(data) - 8, 61), *range(len(data) - 8, len(data))]]
    assert not any(taken[:-8])


def test_broken_files_give_equal_results(picture: Image.Image, full: bool) -> None:
    chance, taken, count = random.Random(5), 0, 300 if full else 100
    files = [KINDS[kind](picture.resize((53, 40))) for kind in ("4:2:0", "progressive", "grey", "restarts")]
    for number in range(count):
        broken = bytearray(files[number % len(files)])
        reach = len(broken) if chance.random() < 0.7 else 200
        for _ in range(chance.randint(1, 3)):
            broken[chance.randrange(2, reach)] ^= 1 << chance.randrange(8)
        taken += assert_same(bytes(broken))
    assert 10 < taken < count - 10


def test_size_limits_hold_before_simplejpeg_decodes(picture: Image.Image, monkeypatch: pytest.MonkeyPatch) -> None:
    data = encode(picture)
    calls: list[int] = []
    monkeypatch.setattr(decode, "jpeg_pixels", lambda *_: calls.append(1))
    small = DecodeSettings(max_pixels=101 * 75 - 1)
    status, reason = result(data, small)
    assert (status, calls) == ("too_large", [])
    assert "7,575 pixels is over the limit of 7,574" in str(reason)


def test_a_library_with_other_pixels_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    import simplejpeg

    assert jpeg._agrees(simplejpeg)
    exact = simplejpeg.decode_jpeg
    monkeypatch.setattr(simplejpeg, "decode_jpeg", lambda data, space: exact(data, space, fastupsample=True))
    assert not jpeg._agrees(simplejpeg)
    monkeypatch.setattr(simplejpeg, "decode_jpeg", lambda data, space: exact(data, space, fastdct=True))
    assert not jpeg._agrees(simplejpeg)


@pytest.mark.parametrize("sampling", ["444", "422", "420", "440", "411", "Gray"])
def test_the_comparison_with_pillow_covers_every_sampling(sampling: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import simplejpeg

    exact = simplejpeg.decode_jpeg

    def differs(data: bytes, space: str) -> np.ndarray:
        pixels = exact(data, space)
        return 255 - pixels if simplejpeg.decode_jpeg_header(data)[3] == sampling else pixels

    monkeypatch.setattr(simplejpeg, "decode_jpeg", differs)
    assert not jpeg._agrees(simplejpeg)


@pytest.mark.parametrize(
    "library",
    [
        "None",  # not installed
        "types.ModuleType('simplejpeg')",  # nothing in it
        "types.SimpleNamespace(decode_jpeg=lambda *_: int('made for another libjpeg'))",
    ],
)
def test_without_a_simplejpeg_that_works_pillow_decodes(library: str, hopper_path: Path) -> None:
    code = (
        f"import hashlib, sys, types; sys.modules['simplejpeg'] = {library}\n"
        "from pathlib import Path\n"
        "from pipeline.extraction.images import jpeg\n"
        "from pipeline.config import DecodeSettings\n"
        "from pipeline.extraction.images.decode import decode_image\n"
        "assert jpeg._library() is None\n"
        "pixels = decode_image(Path(sys.argv[1]).read_bytes(), DecodeSettings()).pixels\n"
        "print(hashlib.sha256(pixels).hexdigest())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(hopper_path)], capture_output=True, text=True, timeout=120, check=True
    )
    pixels = decode_image(hopper_path.read_bytes(), DecodeSettings()).pixels
    assert done.stdout.strip() == hashlib.sha256(pixels).hexdigest()


@pytest.mark.faces
def test_photographs_and_broken_files_are_equal(faces_dir: Path) -> None:
    folders = ("broken-files", "groups-with-boxes", "portraits-cc")
    files = [file for folder in folders for file in sorted((faces_dir / folder).iterdir())]
    files += sorted((faces_dir / "lfw-view1" / "images").glob("*/*.jpg"))[::100]
    taken = {file.name for file in files if assert_same(file.read_bytes())}
    assert len(taken) > 50
    assert "truncated.jpg" not in taken
    assert "einstein.jpeg" in taken
