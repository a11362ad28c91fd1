"""JPEG files with so much before the picture that Pillow would read in it for minutes."""

from __future__ import annotations

import struct
import time

import pytest
from PIL import Image

from pipeline.config import DecodeSettings
from pipeline.errors import ImageUnreadable
from pipeline.extraction.images.decode import decode_image, encoded_image
from tests.extraction.helpers import encode

PICTURE = encode(Image.new("RGB", (20, 20)))
EXIF = b"\xff\xe1" + struct.pack(">H", 65_000) + b"Exif\0\0".ljust(64_998, b"x")


def beginning(junk: bytes) -> bytes:
    return PICTURE[:2] + junk + PICTURE[2:]


@pytest.mark.parametrize(
    "junk",
    [
        EXIF * 400,  # 25 MB that are copied 400 times
        b"\xff\xfe\0\x02" * 3_000_000,
        b"\xff\xf0\xff\xff" + bytes(10_000_000),  # an extension has no length
        b"\xff\0" * 3_000_000,
        b"\xff" * 6_000_000,
        b"\xff\xd8" * 3_000_000,
    ],
    ids=["exif", "comments", "extension", "escaped", "filled", "begun again"],
)
def test_what_comes_before_the_picture_is_bounded(junk: bytes) -> None:
    begin = time.process_time()
    with pytest.raises(ImageUnreadable, match="too much before its picture"):
        decode_image(beginning(junk), DecodeSettings())
    assert encoded_image(beginning(junk), DecodeSettings()) is None
    assert time.process_time() - begin < 1


@pytest.mark.parametrize(
    "junk",
    [EXIF * 60, (b"\xff\xe2\xff\xf0" + bytes(65_518)) * 300, b"\xff\xfe\0\x02" * 9_000, b"\xff" * 60_000],
    ids=["exif", "profile", "comments", "filled"],
)
def test_what_cameras_and_editors_write_there_is_read(junk: bytes) -> None:
    assert decode_image(beginning(junk), DecodeSettings()).width == 20
