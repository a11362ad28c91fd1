"""What is stored of a face: which part of its photo, and where its pixels wait."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch
from PIL import Image

from pipeline.extraction.images import jpeg
from pipeline.extraction.stored_picture import HeldPictures, cut_faces, encode_reference_image
from pipeline.types import DecodedImage, DeviceImage

PIXELS = np.random.default_rng(3).integers(0, 256, (90, 200, 3), np.uint8)
BOXES = np.array([(60.2, 30.0, 80.0, 50.9), (0, 0, 50, 40), (190, 80, 200, 90)], np.float32)
STORED = [(50, 19, 90, 62), (0, 0, 75, 60), (185, 75, 200, 90)]


def test_the_box_and_half_its_size_on_each_side(device: str) -> None:
    on_host = cut_faces(DecodedImage(PIXELS, "png"), BOXES)
    assert cut_faces(DecodedImage(PIXELS, "png"), BOXES[:0]) == []
    for cut, (x0, y0, x1, y1) in zip(on_host, STORED, strict=True):
        assert np.array_equal(cut, PIXELS[y0:y1, x0:x1])
    on_device = cut_faces(DeviceImage(torch.from_numpy(PIXELS).to(device)), BOXES)
    assert all(np.array_equal(a, b) for a, b in zip(on_host, on_device, strict=True))


@pytest.mark.parametrize("encoder", ["simplejpeg", "Pillow"])
def test_a_picture_is_a_small_jpeg_without_metadata(encoder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    library = jpeg._library() if encoder == "simplejpeg" else None
    if encoder == "simplejpeg" and library is None:
        pytest.skip("simplejpeg is not installed")
    monkeypatch.setattr(jpeg, "_library", lambda: library)
    y, x = np.mgrid[0:90, 0:200]
    pixels = np.stack([y + 50, x, 255 - x], axis=2).astype(np.uint8)
    with Image.open(io.BytesIO(encode_reference_image(pixels[19:62, 50:90]))) as picture:
        assert (picture.format, picture.size, picture.mode) == ("JPEG", (40, 43), "RGB")
        assert not picture.getexif()
        assert np.abs(np.asarray(picture).astype(int) - pixels[19:62, 50:90]).max() < 6


def test_pixels_are_held_within_the_limit_until_they_are_forgotten() -> None:
    held, picture = HeldPictures(3 * 1200), np.zeros((20, 20, 3), np.uint8)
    assert held.hold(7, [picture, picture])
    assert not held.hold(8, [picture, picture])
    assert held.hold(9, [picture])
    assert held.hold(10, [])
    picture[:] = 9
    assert [p.max() for p in held.of_row(7) or ()] == [0, 0]  # copies: the photo's pixels may go
    assert (held.of_row(8), held.of_row(10)) == (None, [])
    held.forget([7, 8])
    assert held.of_row(7) is None
    assert held.hold(8, [picture, picture])
