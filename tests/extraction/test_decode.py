"""Decoding: every promised format, every odd mode, and either an image or a reason from any bytes at all."""

from __future__ import annotations

import io
import random
import struct
import tracemalloc
import warnings
import zlib
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from pipeline.config import DecodeSettings
from pipeline.errors import ImageRejected, ImageTooLarge, ImageTruncated, ImageUnsupported
from pipeline.extraction.images.decode import Decoder, decode_image
from pipeline.types import DecodedImage
from tests.extraction.helpers import encode

PLAIN = DecodeSettings(truncated="refuse")
ACCEPT = DecodeSettings(truncated="accept")
FORMATS: dict[str, dict[str, Any]] = {
    "jpeg": {"format": "JPEG", "quality": 95},
    "png": {"format": "PNG"},
    "webp": {"format": "WEBP", "quality": 95},
    "bmp": {"format": "BMP"},
    "tiff": {"format": "TIFF"},
    "gif": {"format": "GIF"},
    "avif": {"format": "AVIF", "quality": 90},
    "heic": {"format": "HEIF", "quality": 90},
    "ico": {"format": "ICO", "sizes": [(96, 96)]},
}
TOLERANCE = {"png": 0, "bmp": 0, "tiff": 0, "ico": 0, "gif": 40}  # others: 30 at the worst pixel of an edge


@pytest.fixture(scope="module")
def picture(astronaut_path: Path) -> Image.Image:
    """96 x 96 RGB with the face in it."""
    with Image.open(astronaut_path) as image:
        return image.convert("RGB").crop((130, 10, 322, 202)).resize((96, 96), Image.Resampling.BOX)


def outcome(data: bytes, settings: DecodeSettings = PLAIN) -> DecodedImage | ImageRejected:
    """What comes out: a sound image or a rejection. Anything else fails the test."""
    try:
        decoded = decode_image(data, settings)
    except ImageRejected as exc:
        rejected = exc
    else:
        return _sound(decoded)
    assert rejected.reason
    assert rejected.reason.isprintable()
    return rejected


def _sound(decoded: DecodedImage) -> DecodedImage:
    assert decoded.pixels.dtype == np.uint8
    assert decoded.pixels.shape == (decoded.height, decoded.width, 3)
    return decoded


@pytest.mark.parametrize("name", FORMATS)
def test_each_format_gives_the_picture(name: str, picture: Image.Image) -> None:
    decoded = decode_image(encode(picture, **FORMATS[name]), PLAIN)
    assert decoded.format == name
    assert (decoded.width, decoded.height) == (96, 96)
    assert decoded.pixels.flags.c_contiguous
    assert decoded.pixels.flags.writeable
    difference = np.abs(decoded.pixels.astype(int) - np.asarray(picture).astype(int))
    assert difference.max() <= TOLERANCE.get(name, 100)
    assert difference.mean() <= 5


# The turn that stores an upright picture with each EXIF orientation.
STORED = {
    1: None,
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_90,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_270,
}


@pytest.mark.parametrize("name", ["png", "tiff", "jpeg", "webp", "avif", "heic"])
@pytest.mark.parametrize("orientation", STORED)
def test_all_exif_orientations_come_out_upright(name: str, orientation: int, picture: Image.Image) -> None:
    upright = picture.crop((0, 0, 64, 96))
    turn = STORED[orientation]
    stored = upright if turn is None else upright.transpose(turn)
    decoded = decode_image(encode(stored, orientation, **FORMATS[name]), PLAIN)
    difference = np.abs(decoded.pixels.astype(int) - np.asarray(upright).astype(int))
    if name in ("png", "tiff"):
        assert difference.max() == 0
    else:
        assert difference.mean() < 5


def test_the_exif_tag_of_a_heic_with_its_own_transform_is_ignored(picture: Image.Image) -> None:
    """libheif applied the transform of the container; a second turn by the tag would be one too many."""
    data = encode(picture.crop((0, 0, 64, 96)), 6, **FORMATS["heic"])
    decoded = decode_image(data, PLAIN)
    assert (decoded.width, decoded.height) == (96, 64)


def test_broken_exif_does_not_spoil_the_picture(picture: Image.Image) -> None:
    data = encode(picture, format="JPEG", exif=b"Exif\0\0MM\0*\0\0\0\x08\xff\xff" + b"\xff" * 40)
    assert decode_image(data, PLAIN).pixels.shape == (96, 96, 3)


def test_transparency_is_flattened_on_white(picture: Image.Image) -> None:
    clear = picture.copy()
    clear.putalpha(Image.new("L", clear.size, 0))
    half = picture.copy()
    half.putalpha(Image.new("L", clear.size, 128))
    expected = (np.asarray(picture).astype(int) * 128 + 255 * 127) / 255
    for options in (FORMATS["png"], {"format": "WEBP", "lossless": True, "exact": True}, FORMATS["tiff"]):
        assert decode_image(encode(clear, **options), PLAIN).pixels.min() == 255
        assert np.abs(decode_image(encode(half, **options), PLAIN).pixels - expected).max() <= 1
    grey = clear.convert("LA")
    assert decode_image(encode(grey, format="PNG"), PLAIN).pixels.min() == 255


def test_palette_and_colour_key_transparency_become_white(picture: Image.Image) -> None:
    palette = picture.quantize(16)
    transparent = decode_image(encode(palette, format="PNG", transparency=bytes(16)), PLAIN)
    assert transparent.pixels.min() == 255
    one = decode_image(encode(palette, format="GIF", transparency=3), PLAIN).pixels
    assert (one[np.asarray(palette) == 3] == 255).all()
    red = Image.new("RGB", (8, 8), (200, 10, 10))
    assert decode_image(encode(red, format="PNG", transparency=(200, 10, 10)), PLAIN).pixels.min() == 255
    grey = Image.new("L", (8, 8), 77)
    assert decode_image(encode(grey, format="PNG", transparency=77), PLAIN).pixels.min() == 255


@pytest.mark.parametrize("mode", ["1", "L", "P", "LA", "RGBA", "CMYK", "YCbCr"])
def test_plain_modes_keep_grey_tones(mode: str) -> None:
    """A TIFF of each mode, black beside white: both must come out as such, whatever the mode calls them."""
    image = Image.new("RGB", (20, 10), "black")
    image.paste("white", (10, 0, 20, 10))
    pixels = decode_image(encode(image.convert(mode), format="TIFF"), PLAIN).pixels
    assert pixels[:, :10].max() <= 2
    assert pixels[:, 10:].min() >= 253


def test_cmyk_jpeg_is_not_inverted(picture: Image.Image) -> None:
    data = encode(picture.convert("CMYK"), format="JPEG", quality=95)
    assert b"Adobe" in data[:64]
    difference = np.abs(decode_image(data, PLAIN).pixels.astype(int) - np.asarray(picture).astype(int))
    assert difference.mean() < 8


@pytest.mark.parametrize("kind", ["I;16 png", "I;16 tiff", "I;16B tiff", "I tiff", "F tiff 0..1", "F tiff 0..255"])
def test_deep_greys_are_scaled_to_8_bits(kind: str) -> None:
    eight = np.tile(np.arange(256, dtype=np.uint8), (4, 1))
    deep = eight.astype(np.uint16) * 257
    images = {
        "I;16 png": (Image.fromarray(deep), "PNG"),
        "I;16 tiff": (Image.fromarray(deep), "TIFF"),
        "I;16B tiff": (Image.frombytes("I;16B", (256, 4), deep.astype(">u2").tobytes()), "TIFF"),
        "I tiff": (Image.fromarray(deep.astype(np.int32)), "TIFF"),
        "F tiff 0..1": (Image.fromarray(eight.astype(np.float32) / 255), "TIFF"),
        "F tiff 0..255": (Image.fromarray(eight.astype(np.float32)), "TIFF"),
    }
    image, format_name = images[kind]
    decoded = decode_image(encode(image, format=format_name), PLAIN)
    assert (decoded.pixels == eight[:, :, None]).all()


def test_16_bit_rgb_png_keeps_the_high_byte() -> None:
    rows = b"".join(b"\0" + struct.pack(">6H", 0, 0x7FFF, 0xFFFF, 0x1234, 0x0100, 0x00FF) for _ in range(2))
    decoded = decode_image(_png(2, 2, 16, 2, rows), PLAIN)
    assert decoded.pixels[0].tolist() == [[0, 0x7F, 255], [0x12, 1, 0]]


def test_floats_without_a_customary_scale_are_stretched() -> None:
    values = np.linspace(-3, 5, 64, dtype=np.float32).reshape(8, 8)
    values[0, 1] = np.nan
    pixels = decode_image(encode(Image.fromarray(values), format="TIFF"), PLAIN).pixels
    assert pixels[0, 0, 0] == 0
    assert pixels[7, 7, 0] == 255
    flat = np.full((8, 8), -3, dtype=np.float32)
    assert decode_image(encode(Image.fromarray(flat), format="TIFF"), PLAIN).pixels.max() == 0


def test_first_frame_of_an_animation(picture: Image.Image) -> None:
    frames = [picture, Image.new("RGB", picture.size, "red")]
    for name in ("GIF", "WEBP", "PNG", "TIFF"):
        data = encode(frames[0], format=name, save_all=True, append_images=frames[1:])
        pixels = decode_image(data, PLAIN).pixels
        assert np.abs(pixels.astype(int) - np.asarray(picture).astype(int)).mean() < 8


def test_progressive_and_multi_picture_jpeg(picture: Image.Image) -> None:
    assert decode_image(encode(picture, format="JPEG", progressive=True), PLAIN).format == "jpeg"
    mpo = encode(picture, format="MPO", save_all=True, append_images=[picture])
    assert decode_image(mpo, PLAIN).format == "jpeg"


def test_a_file_that_is_not_an_image_is_unsupported() -> None:
    for data, reason in (
        (b"", "the file is empty"),
        (b"Dear diary, no picture here.\r\n", "begins as text"),
        (b"BMW drivers of the world\n" * 9, "begins as text"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n", "begins as text"),
        (b"\x7fELF" + bytes(60), "7f 45 4c 46"),
        (b"\xff", "begins with ff"),
    ):
        with pytest.raises(ImageUnsupported, match=reason):
            decode_image(data, PLAIN)


def test_size_of_the_file_is_limited() -> None:
    with pytest.raises(ImageTooLarge, match=r"a file of 101 bytes is over the limit of 100 bytes"):
        decode_image(bytes(101), DecodeSettings(max_bytes=100))


def test_pixel_limit_is_exact(picture: Image.Image) -> None:
    for options in FORMATS.values():
        data = encode(picture, **options)
        assert decode_image(data, DecodeSettings(max_pixels=96 * 96)).width == 96
        with pytest.raises(ImageTooLarge, match="9,216 pixels is over the limit of 9,215"):
            decode_image(data, DecodeSettings(max_pixels=96 * 96 - 1))


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def _png(width: int, height: int, depth: int, colour: int, rows: bytes) -> bytes:
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    body = _chunk(b"IHDR", header) + _chunk(b"IDAT", zlib.compress(rows)) + _chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


def _bomb_ico(inner: bytes) -> bytes:
    return struct.pack("<HHH", 0, 1, 1) + struct.pack("<BBBBHHII", 16, 16, 0, 0, 1, 32, len(inner), 22) + inner


def _bombs() -> dict[str, bytes]:
    png = _png(50_000, 50_000, 8, 2, bytes(4096))
    dib = struct.pack("<IiiHHIIiiII", 40, 50_000, 100_000, 1, 32, 0, 0, 0, 0, 0, 0)
    webp = b"VP8X" + struct.pack("<I", 10) + bytes(4) + b"\xfe\x3f\0" * 2 + b"ANIM" + struct.pack("<IIH", 6, 0, 0)
    return {
        "png": png,
        "ico of png": _bomb_ico(png),
        "ico of bmp": _bomb_ico(dib),
        "bmp": b"BM" + struct.pack("<IHHI", 54, 0, 0, 54) + dib,
        "gif": b"GIF89a" + struct.pack("<HHBBB", 50_000, 50_000, 0, 0, 0) + b"," + struct.pack("<HHHHB", 0, 0, 9, 9, 0),
        "webp": b"RIFF" + struct.pack("<I", 4 + len(webp)) + b"WEBP" + webp,
    }


@pytest.mark.parametrize("name", list(_bombs()))
def test_huge_headers_are_refused_without_memory(name: str) -> None:
    tracemalloc.start()
    try:
        result = outcome(_bombs()[name])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert isinstance(result, ImageTooLarge | ImageTruncated)
    assert peak < 2**20
    if name in ("png", "ico of png", "ico of bmp", "bmp"):
        assert "2,500,000,000 pixels" in result.reason or "5,000,000,000 pixels" in result.reason


@pytest.mark.parametrize("name", ["jpeg", "png", "webp", "bmp", "gif", "avif", "heic"])
def test_a_cut_file_is_truncated_wherever_it_is_cut(name: str, picture: Image.Image) -> None:
    data = encode(picture, **FORMATS[name])
    found: Counter[str] = Counter()
    for length in range(32, len(data) - 16, max(1, len(data) // 60)):
        result = outcome(data[:length])
        assert isinstance(result, ImageTruncated), f"{length} of {len(data)}: {result}"
        found[result.status] += 1
    assert found["truncated"] >= 40


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("settings", [PLAIN, ACCEPT], ids=["refuse", "accept"])
def test_every_length_gives_an_image_or_a_reason(
    name: str, settings: DecodeSettings, picture: Image.Image, full: bool
) -> None:
    data = encode(picture, **FORMATS[name])
    for length in [*range(40), *range(40, len(data), max(1, len(data) // (100 if full else 30)))]:
        outcome(data[:length], settings)


@pytest.mark.parametrize("name", ["jpeg", "png", "bmp", "tiff"])
def test_accepting_truncated_files_keeps_the_upper_part(name: str, picture: Image.Image) -> None:
    whole = decode_image(encode(picture, **FORMATS[name]), PLAIN).pixels
    data = encode(picture, **FORMATS[name])
    top = {"bmp": slice(56, 96), "tiff": slice(0, 40)}.get(name, slice(0, 24))  # a BMP begins with its last row
    half = data[: len(data) * 6 // 10]
    result = decode_image(half, ACCEPT)
    assert (result.pixels[top] == whole[top]).all()
    rest = result.pixels[-8:] if name != "bmp" else result.pixels[:8]
    assert np.abs(rest.astype(int) - 128).max() <= 2
    with pytest.raises(ImageTruncated):
        decode_image(half, PLAIN)


def test_accept_and_refuse_at_once_do_not_disturb_each_other(picture: Image.Image) -> None:
    half = encode(picture.resize((400, 400)), format="JPEG")[:9000]
    jobs = [ACCEPT if index % 2 else PLAIN for index in range(64)]
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda settings: outcome(half, settings), jobs))
    for settings, result in zip(jobs, results, strict=True):
        assert isinstance(result, DecodedImage if settings is ACCEPT else ImageTruncated)


@pytest.mark.parametrize("name", FORMATS)
def test_flipped_bits_give_an_image_or_a_reason(name: str, picture: Image.Image, full: bool) -> None:
    data = encode(picture, **FORMATS[name])
    chance = random.Random(name)
    rejected = 0
    for _ in range(150 if full else 50):
        broken = bytearray(data)
        # Half of the damage goes into the first bytes, where parsers make their decisions.
        reach = len(data) if chance.random() < 0.5 else min(len(data), 200)
        for _ in range(chance.randint(1, 8)):
            broken[chance.randrange(reach)] ^= 1 << chance.randrange(8)
        rejected += isinstance(outcome(bytes(broken), DecodeSettings(max_pixels=4_000_000)), ImageRejected)
    assert rejected > 0


def test_warnings_of_the_readers_are_not_passed_on(picture: Image.Image) -> None:
    """Pillow warns of this file's directory; neither an "error" filter nor a listener may see it."""
    data = bytearray(encode(picture, format="TIFF"))
    directory = struct.unpack_from("<I", data, 4)[0]
    tags = [struct.unpack_from("<H", data, directory + 2 + 12 * n)[0] for n in range(data[directory])]
    entry = directory + 2 + 12 * tags.index(0x011C)  # PlanarConfiguration becomes a text longer than the file
    struct.pack_into("<HHII", data, entry, 0x010F, 2, 50_000, 8)
    with pytest.warns(UserWarning, match="larger than file"):
        Image.open(io.BytesIO(bytes(data))).close()
    for action in ("error", "always"):
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter(action)  # type: ignore[arg-type]
            outcome(bytes(data))
        assert seen == []


def test_the_bomb_limit_of_the_process_is_never_lowered(picture: Image.Image) -> None:
    before = Image.MAX_IMAGE_PIXELS
    assert before is not None
    decode_image(encode(picture, format="PNG"), DecodeSettings(max_pixels=10_000))
    assert before == Image.MAX_IMAGE_PIXELS


def test_decoder_counts_every_call_from_every_thread(picture: Image.Image) -> None:
    decoder = Decoder(PLAIN)
    data = encode(picture, format="JPEG")
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(decoder, [data] * 100))
    with pytest.raises(ImageUnsupported):
        decoder(b"nothing")
    assert decoder.counts.calls == 101


@pytest.mark.faces
def test_broken_files_each_give_an_image_or_a_status(faces_dir: Path) -> None:
    files = sorted((faces_dir / "broken-files").iterdir())
    results = {file.name: outcome(file.read_bytes()) for file in files}
    assert len(results) == 10
    broken = {name: result.status for name, result in results.items() if isinstance(result, ImageRejected)}
    assert broken == {
        "empty.png": "unsupported",
        "truncated.jpg": "truncated",
        "corrupted.png": broken["corrupted.png"],
    }
