"""When a photo was taken, by the EXIF data of real files."""

from __future__ import annotations

import io
import struct
import zlib
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from pipeline.config import DecodeSettings
from pipeline.extraction.images.decode import decode_image, encoded_image
from pipeline.extraction.images.exif_date import taken_at
from tests.extraction.helpers import encode

ORIGINAL, DIGITIZED, CHANGED = 0x9003, 0x9004, 0x0132
EXIF_DIRECTORY = 0x8769
TAKEN = "2004:02:29 13:14:15"
FORMATS: dict[str, dict[str, Any]] = {
    "jpeg": {"format": "JPEG"},
    "progressive": {"format": "JPEG", "progressive": True},
    "cmyk": {"format": "JPEG", "mode": "CMYK"},
    "mpo": {"format": "MPO", "save_all": True, "append_images": [Image.new("RGB", (64, 48))]},
    "png": {"format": "PNG"},
    "webp": {"format": "WEBP"},
    "tiff": {"format": "TIFF"},
    "avif": {"format": "AVIF"},
    "heic": {"format": "HEIF"},
}


def exif_of(dates: dict[int, Any], **others: Any) -> bytes:
    """As Pillow writes it: DateTime in the first directory, the others in the second one."""
    exif = Image.Exif()
    exif[0x0112] = others.get("turn", 1)
    exif[0x010F] = "A camera"
    for tag, date in dates.items():
        (exif if tag == CHANGED else exif.get_ifd(EXIF_DIRECTORY))[tag] = date
    exif.get_ifd(EXIF_DIRECTORY)[0x927C] = b"a maker's note" * 100
    return exif.tobytes()


def block_of(dates: dict[int, Any]) -> bytes:
    return exif_of(dates).removeprefix(b"Exif\0\0")


def date_of(data: bytes) -> datetime | None:
    return decode_image(data, DecodeSettings()).taken_at


@pytest.mark.parametrize("turn", [1, 6])
@pytest.mark.parametrize("name", FORMATS)
def test_each_format_with_exif_data_tells_it(name: str, turn: int) -> None:
    options = dict(FORMATS[name])
    picture = Image.new(options.pop("mode", "RGB"), (64, 48), 128)
    dates = {ORIGINAL: TAKEN, DIGITIZED: "2005:01:01 00:00:00", CHANGED: "2006:01:01 00:00:00"}
    data = encode(picture, **options, exif=exif_of(dates, turn=turn))
    with Image.open(io.BytesIO(data)) as image:  # that the test's file has it
        assert image.getexif().get_ifd(EXIF_DIRECTORY)[ORIGINAL] == TAKEN
    assert date_of(data) == datetime(2004, 2, 29, 13, 14, 15)
    assert date_of(encode(picture, **options)) is None


@pytest.mark.parametrize(("width", "turn"), [(64, 1), (48, 6)])
def test_a_file_for_a_device_has_it(width: int, turn: int) -> None:
    data = encode(Image.new("RGB", (64, 48)), exif=exif_of({DIGITIZED: TAKEN}, turn=turn))
    found = encoded_image(data, DecodeSettings())
    assert found is not None
    assert (found.width, found.orientation, found.taken_at) == (width, turn, datetime(2004, 2, 29, 13, 14, 15))


@pytest.mark.parametrize("year", [1, 1903, 1904, 1969, 2038, 2106, 9999])
def test_any_year(year: int) -> None:
    assert taken_at(block_of({ORIGINAL: f"{year:04d}:12:31 23:59:59"})) == datetime(year, 12, 31, 23, 59, 59)


UNUSABLE: dict[str, Any] = {
    "unknown": "0000:00:00 00:00:00",
    "blanks": "    :  :     :  :  ",
    "spaces": " " * 19,
    "empty": "",
    "short": "2004",
    "no time": "2004:02:29",
    "month 13": "2004:13:01 00:00:00",
    "no leap year": "2005:02:29 00:00:00",
    "hour 24": "2004:02:28 24:00:00",
    "more digits": "2004:02:28 23:00:000",
    "no digits": "2004:ab:28 23:00:00",
    "other digits": "٢٠٠٤:٠٢:٢٨ ٢٣:٠٠:٠٠".encode(),
    "no ASCII": b"\xff\xfe\x80" * 7,
    "binary": bytes(range(20)),
}


@pytest.mark.parametrize("name", UNUSABLE)
def test_what_is_no_date_is_passed_over(name: str) -> None:
    assert taken_at(block_of({ORIGINAL: UNUSABLE[name]})) is None
    assert date_of(encode(Image.new("RGB", (64, 48)), exif=exif_of({ORIGINAL: UNUSABLE[name]}))) is None
    assert taken_at(block_of({ORIGINAL: UNUSABLE[name], CHANGED: TAKEN})) == datetime(2004, 2, 29, 13, 14, 15)
    both = {ORIGINAL: UNUSABLE[name], DIGITIZED: TAKEN, CHANGED: "2006:01:01 00:00:00"}
    assert taken_at(block_of(both)) == datetime(2004, 2, 29, 13, 14, 15)


@pytest.mark.parametrize(
    "text",
    [
        "2004-02-29 13:14:15",
        "2004/02/29 13:14:15",
        "2004-02-29T13:14:15+02:00",
        "2004:02:29 13:14:15.5",
        TAKEN.encode(),  # which Pillow writes as UNDEFINED
    ],
)
def test_usual_other_forms(text: str | bytes) -> None:
    """A zone is ignored."""
    assert taken_at(block_of({ORIGINAL: text})) == datetime(2004, 2, 29, 13, 14, 15)


@pytest.mark.parametrize("order", ["<", ">"])
def test_both_byte_orders_and_a_date_in_the_first_directory(order: str) -> None:
    """As TIFF/EP has it, which raw files follow."""
    head = (b"II*\0" if order == "<" else b"MM\0*") + struct.pack(f"{order}I", 8)
    directory = struct.pack(f"{order}HHHIII", 1, ORIGINAL, 2, 20, 26, 0)
    assert taken_at(head + directory + TAKEN.encode() + b"\0") == datetime(2004, 2, 29, 13, 14, 15)


def test_damaged_exif_data_raises_nothing(full: bool) -> None:
    block = block_of({ORIGINAL: TAKEN, CHANGED: "2006:01:01 00:00:00"})
    possible = {None, datetime(2004, 2, 29, 13, 14, 15), datetime(2006, 1, 1)}
    found = {taken_at(block[:end]) for end in range(len(block))}
    assert found == possible
    generator = np.random.default_rng(0)
    for _ in range(100_000 if full else 3000):
        damaged = bytearray(block)
        for at in generator.integers(0, 160, 3):  # the directories
            damaged[at] = generator.integers(256)
        assert isinstance(taken_at(bytes(damaged)), datetime | None)
    loop = b"II*\0" + struct.pack("<IHHHIII", 8, 1, EXIF_DIRECTORY, 4, 1, 8, 0)
    assert taken_at(loop) is None


def _with_chunk(png: bytes, kind: bytes, data: bytes) -> bytes:
    """With another chunk before the last one, behind the pixels."""
    chunk = struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    return png[:-12] + chunk + png[-12:]


def test_a_png_may_have_it_behind_the_pixels() -> None:
    png = encode(Image.new("RGB", (64, 48)), format="PNG")
    assert date_of(_with_chunk(png, b"eXIf", block_of({ORIGINAL: TAKEN}))) == datetime(2004, 2, 29, 13, 14, 15)
    assert date_of(_with_chunk(png, b"tEXt", b"exif\0" + TAKEN.encode())) is None  # Pillow gives it the same name


def test_a_photo_that_is_accepted_in_part_keeps_it(hopper_path: Path) -> None:
    data = encode(Image.open(hopper_path).convert("RGB"), exif=exif_of({ORIGINAL: TAKEN}))
    decoded = decode_image(data[: len(data) // 2], DecodeSettings(truncated="accept"))
    assert decoded.remark is not None
    assert decoded.taken_at == datetime(2004, 2, 29, 13, 14, 15)
