"""JPEG files with many scans: a decoder goes over the whole picture for each."""

from __future__ import annotations

import random
import struct

import pytest
from PIL import Image

from pipeline.config import DecodeSettings
from pipeline.errors import ImageTooLarge
from pipeline.extraction.images.decode import decode_image, encoded_image
from tests.extraction.helpers import encode, with_scans

PLAIN = DecodeSettings()


@pytest.fixture(scope="module")
def progressive() -> bytes:
    """48 x 40, of 10 scans."""
    noise = Image.frombytes("RGB", (48, 40), random.Random(0).randbytes(48 * 40 * 3))
    return encode(noise, progressive=True)


def test_a_hundred_scans_are_read_and_no_more(progressive: bytes) -> None:
    assert decode_image(with_scans(progressive, 100), PLAIN).width == 48
    with pytest.raises(ImageTooLarge, match="more than 100 scans is over the limit of 100 for 1,920 pixels"):
        decode_image(with_scans(progressive, 101), PLAIN)


@pytest.mark.parametrize(("max_pixels", "most"), [(48 * 40, 16), (48 * 40 * 2, 32)])
def test_the_larger_a_picture_the_fewer_scans(progressive: bytes, max_pixels: int, most: int) -> None:
    settings = DecodeSettings(max_pixels=max_pixels)
    decode_image(with_scans(progressive, most), settings)
    with pytest.raises(ImageTooLarge, match=f"more than {most} scans"):
        decode_image(with_scans(progressive, most + 1), settings)


@pytest.mark.parametrize("accept", ["refuse", "accept"])
@pytest.mark.parametrize(
    "between",
    [
        b"\xff\xff\xff",  # fill bytes
        b"\xff\xfe\x00\x04\xff\xd9",  # an end within a comment
        b"\xff\x02\xff\xff",  # a reserved marker, whose length says nothing
        b"\xff\xd0\xff\x00",
        b"some bytes too many",
    ],
)
def test_scans_cannot_hide(progressive: bytes, between: bytes, accept: str) -> None:
    crowded, first = with_scans(progressive, 150), progressive.index(b"\xff\xda") + 2
    crowded = crowded[:first] + crowded[first:].replace(b"\xff\xda", between + b"\xff\xda")
    with pytest.raises(ImageTooLarge, match="more than 100 scans"):
        decode_image(crowded, DecodeSettings(truncated=accept))


def test_a_file_without_its_end_is_counted_too(progressive: bytes) -> None:
    with pytest.raises(ImageTooLarge):
        decode_image(with_scans(progressive, 150)[:-2], DecodeSettings(truncated="accept"))


def test_endless_segments_are_not_walked(progressive: bytes) -> None:
    start = progressive.index(b"\xff\xda", progressive.index(b"\xff\xda") + 2)  # of the second scan
    behind = progressive + b"\xff\xda" * 200
    decode_image(behind[:start] + b"\xff\xfe\x00\x02" * 1000 + behind[start:], PLAIN)
    with pytest.raises(ImageTooLarge):
        decode_image(behind[:start] + b"\xff\xfe\x00\x02" * 20_000 + behind[start:], PLAIN)


def test_marks_that_are_no_scans_do_not_count() -> None:
    picture = Image.new("RGB", (48, 40), "teal")
    marks = b"\xff\xda" * 500
    sound = encode(picture, comment=marks) + marks
    assert decode_image(sound, PLAIN).width == 48
    assert encoded_image(sound, PLAIN) is not None


def test_a_device_gets_no_such_file() -> None:
    sequential = encode(Image.new("RGB", (48, 40), "teal"))
    assert encoded_image(with_scans(sequential, 100), PLAIN) is not None
    assert encoded_image(with_scans(sequential, 101), PLAIN) is None


def in_tiff(strips: list[bytes], rows: int, starts: list[int] | None = None) -> bytes:
    """A TIFF file of grey strips 48 pixels wide and `rows` high, each a JPEG file."""
    first = [8 + sum(len(strip) for strip in strips[:k]) for k in range(len(strips))]
    starts, sizes = starts or first, [len(strip) for strip in strips]
    sizes *= len(starts) // len(sizes)
    at, behind = 8 + sum(map(len, strips)), b""
    entries = []
    height = rows * len(starts)
    tags = {256: [48], 257: [height], 258: [8], 259: [7], 262: [1], 273: starts, 277: [1], 278: [rows], 279: sizes}
    for tag, values in tags.items():
        packed = struct.pack(f"<{len(values)}I", *values)
        if len(values) > 1:
            packed, behind = struct.pack("<I", at + len(behind)), behind + packed
        entries.append(struct.pack("<HHI", tag, 4, len(values)) + packed)
    directory = struct.pack("<H", len(entries)) + b"".join(entries) + bytes(4)
    return b"II*\0" + struct.pack("<I", at + len(behind)) + b"".join(strips) + behind + directory


def test_strips_of_a_tiff_are_counted_each() -> None:
    grey = encode(Image.frombytes("L", (48, 40), random.Random(0).randbytes(48 * 40)), progressive=True)
    assert decode_image(in_tiff([with_scans(grey, 90)] * 3, 40), PLAIN).height == 120
    with pytest.raises(ImageTooLarge, match="more than 100 scans"):
        decode_image(in_tiff([grey, with_scans(grey, 101), grey], 40), PLAIN)
    with pytest.raises(ImageTooLarge, match="more than 16 scans"):
        decode_image(in_tiff([with_scans(grey, 17)], 40), DecodeSettings(max_pixels=48 * 40))


def test_strips_of_a_tiff_do_not_share_scans() -> None:
    grey = encode(Image.new("L", (48, 40)), progressive=True)
    with pytest.raises(ImageTooLarge):
        decode_image(in_tiff([with_scans(grey, 101)], 40, starts=[8] * 50), PLAIN)
    with pytest.raises(ImageTooLarge):
        decode_image(in_tiff([with_scans(grey, 90), with_scans(grey, 90)], 40, starts=[8] * 50), PLAIN)
