"""JPEG files with an end mark that do not hold the picture that their header promises."""

from __future__ import annotations

import random
from importlib.util import find_spec

import numpy as np
import pytest
from PIL import Image

from pipeline.config import DecodeSettings
from pipeline.errors import ImageTruncated
from pipeline.extraction.images import decode
from pipeline.extraction.images.decode import decode_image, encoded_image
from tests.extraction.helpers import encode

PLAIN = DecodeSettings()
needs_warnings = pytest.mark.skipif(find_spec("simplejpeg") is None, reason="simplejpeg tells of warnings")


def claiming(data: bytes, side: int, frame: bytes = b"\xff\xc0") -> bytes:
    """The file with `side` x `side` pixels in its header."""
    at = data.index(frame) + 5
    return data[:at] + side.to_bytes(2, "big") * 2 + data[at + 4 :]


def without_end(data: bytes, share: float) -> bytes:
    """The file without `share` of its last scan, but with its end mark."""
    scan = data.rindex(b"\xff\xda")
    kept = scan + int((len(data) - scan) * (1 - share))
    return data[:kept].rstrip(b"\xff") + b"\xff\xd9"


def noise(width: int, height: int, mode: str = "RGB") -> Image.Image:
    size = width * height * len(Image.new(mode, (1, 1)).getbands())
    return Image.frombytes(mode, (width, height), random.Random(7).randbytes(size))


def test_335_bytes_are_no_picture_of_100_megapixels() -> None:
    for progressive in (False, True):
        small = encode(Image.new("L", (8, 8)), optimize=True, progressive=progressive)
        huge = claiming(small, 10_000, b"\xff\xc2" if progressive else b"\xff\xc0")
        assert len(huge) < 335
        with pytest.raises(ImageTruncated, match="fewer bits than blocks"):
            decode_image(huge, PLAIN)
    assert encoded_image(claiming(encode(Image.new("RGB", (8, 8))), 10_000), PLAIN) is None


def test_accepting_what_is_there_still_does() -> None:
    huge = claiming(encode(Image.new("L", (8, 8), 0)), 2000)
    pixels = decode_image(huge, DecodeSettings(truncated="accept")).pixels
    assert pixels.shape == (2000, 2000, 3)
    assert pixels[:8, :8].max() < 8
    assert (pixels[16:] == 128).all()


@needs_warnings
@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
@pytest.mark.parametrize("share", [0.999, 0.5, 0.05])
def test_what_is_missing_is_seen_in_the_picture(mode: str, share: float) -> None:
    """Padding makes the file long enough."""
    cut = without_end(encode(noise(320, 240, mode)), share) + bytes(20_000)
    with pytest.raises(ImageTruncated, match=r"\d+% of the picture is missing"):
        decode_image(cut, PLAIN)


@needs_warnings
def test_a_progressive_file_without_its_first_scan_is_truncated() -> None:
    data = encode(noise(320, 240), progressive=True)
    scan = data.index(b"\xff\xda")
    with pytest.raises(ImageTruncated, match="of the picture is missing"):
        decode_image(data[: scan + 400] + b"\xff\xd9" + bytes(20_000), PLAIN)


def test_a_few_blocks_may_be_missing() -> None:
    whole = encode(noise(640, 480))
    pixels, expected = (decode_image(d, PLAIN).pixels for d in (without_end(whole, 0.004), whole))
    assert np.array_equal(pixels[:460], expected[:460])
    assert not np.array_equal(pixels, expected)


@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
@pytest.mark.parametrize("by_pillow", [False, True])
def test_a_grey_picture_is_whole(mode: str, by_pillow: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """It looks like the part that libjpeg fills in."""
    if by_pillow:
        monkeypatch.setattr(decode, "jpeg_pixels", lambda *_: None)
    grey = Image.new(mode, (640, 480), 128 if mode == "L" else (128,) * len(mode))
    for progressive in (False, True):
        decode_image(encode(grey, optimize=True, progressive=progressive), PLAIN)


def test_a_file_that_lacks_its_end_within_the_last_blocks_is_taken_with_a_remark() -> None:
    whole = encode(noise(640, 480))
    cut = whole[: int(len(whole) * 0.996)]
    taken, accepted = (decode_image(cut, DecodeSettings(truncated=t)) for t in ("tolerate", "accept"))
    assert np.array_equal(taken.pixels, accepted.pixels)
    assert np.array_equal(taken.pixels[:460], decode_image(whole, PLAIN).pixels[:460])
    assert str(taken.remark).startswith("the image data end early: ")
    assert decode_image(whole, PLAIN).remark is None
    with pytest.raises(ImageTruncated):
        decode_image(cut, DecodeSettings(truncated="refuse"))


@pytest.mark.parametrize("share", [0.97, 0.5, 0.01])
def test_a_file_that_lacks_more_is_truncated(share: float) -> None:
    whole = encode(noise(640, 480))
    with pytest.raises(ImageTruncated):
        decode_image(whole[: int(len(whole) * share)], PLAIN)


def test_a_progressive_file_without_its_end_is_truncated() -> None:
    """It lacks its details everywhere: how much that is nobody knows."""
    whole = encode(noise(640, 480), progressive=True)
    with pytest.raises(ImageTruncated):
        decode_image(whole[:-100], PLAIN)
