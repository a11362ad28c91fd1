"""Decoding on the device: which files it gets, what comes back, and what happens when it fails.

On a machine without CUDA the same code decodes with torchvision's own libjpeg, on tensors of the CPU.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from PIL import Image

from pipeline.config import DecodeSettings, RunSettings
from pipeline.errors import ImageRejected, ImageTooLarge, ImageTruncated, ImageUnreadable
from pipeline.extraction.images import nvjpeg
from pipeline.extraction.images.decode import Decoder, decode_image
from pipeline.extraction.images.nvjpeg import DeviceDecoder, decodes_on_device
from pipeline.runtime.device import resolve_device
from pipeline.types import DecodedImage, DeviceImage, EncodedImage
from tests.extraction.helpers import encode

PLAIN = DecodeSettings()
TURNS = range(1, 9)


def damaged(picture: Image.Image) -> bytes:
    """A whole file with a header in order, and a Huffman table that no decoder accepts."""
    data = bytearray(encode(picture))
    at = data.index(b"\xff\xc4") + 5
    data[at : at + 16] = bytes([255] * 16)
    return bytes(data)


def prepared(*files: bytes) -> list[DecodedImage | EncodedImage]:
    opened = [Decoder(PLAIN).prepare(data) for data in files]
    return [image if isinstance(image, EncodedImage) else image.load() for image in opened]


def decode(
    images: Sequence[DecodedImage | EncodedImage], device: str
) -> list[DecodedImage | DeviceImage | ImageRejected]:
    return DeviceDecoder(PLAIN)(images, resolve_device(device))


def pixels_of(image: DecodedImage | DeviceImage | ImageRejected) -> np.ndarray:
    assert isinstance(image, DeviceImage)
    assert image.pixels.is_contiguous()
    assert image.pixels.dtype == torch.uint8
    return image.pixels.cpu().numpy()


@pytest.mark.parametrize(
    ("mode", "device", "jpeg", "expected"),
    [
        ("fast", "cuda", "device", True),
        ("fast", "cuda:1", "device", True),
        ("fast", "cuda", "cpu", False),
        ("exact", "cuda", "device", False),
        ("fast", "cpu", "device", False),
    ],
)
def test_the_device_decodes_only_on_cuda_in_fast_mode_on_request(
    mode: str, device: str, jpeg: str, expected: bool
) -> None:
    assert decodes_on_device(RunSettings(mode=mode, device=device, jpeg=jpeg)) == expected


@pytest.mark.parametrize("turn", [*TURNS, 0, 9])
def test_a_baseline_file_is_left_to_the_device(picture: Image.Image, turn: int) -> None:
    data = encode(picture, turn)
    (image,) = prepared(data)
    expected = decode_image(data, PLAIN)
    assert isinstance(image, EncodedImage)
    assert image.data == data
    assert (image.width, image.height, image.format) == (expected.width, expected.height, "jpeg")


@pytest.mark.parametrize(
    ("mode", "options"),
    [
        ("RGB", {"progressive": True}),
        ("RGB", {"keep_rgb": True}),  # its components are called R, G and B
        *[("RGB", {"format": name}) for name in ("PNG", "WEBP", "BMP")],
        *[(mode, {}) for mode in ("L", "CMYK")],
    ],
)
def test_other_files_are_decoded_on_the_cpu(picture: Image.Image, mode: str, options: dict[str, object]) -> None:
    data = encode(picture.convert(mode), **options)
    (image,) = prepared(data)
    assert isinstance(image, DecodedImage)
    assert np.array_equal(image.pixels, decode_image(data, PLAIN).pixels)


def test_colours_that_are_no_ycbcr_are_decoded_on_the_cpu(picture: Image.Image) -> None:
    """Adobe's marker says so: a decoder that does not heed it gives false colours."""
    data = encode(picture)
    adobe = b"\xff\xee\x00\x0eAdobe\x00d\x00\x00\x00\x00"
    assert isinstance(prepared(data[:2] + adobe + b"\x01" + data[2:])[0], EncodedImage)
    assert isinstance(prepared(data[:2] + adobe + b"\x00" + data[2:])[0], DecodedImage)


def test_rejected_files_do_not_reach_the_device(picture: Image.Image) -> None:
    data = encode(picture)
    decoder = Decoder(DecodeSettings(max_pixels=101 * 75 - 1))
    with pytest.raises(ImageTooLarge):
        decoder.prepare(data)
    with pytest.raises(ImageTooLarge):
        Decoder(DecodeSettings(max_bytes=len(data) - 1)).prepare(data)
    with pytest.raises(ImageTruncated):
        prepared(data[:1500])
    assert decoder.calls == 1


@pytest.mark.parametrize("subsampling", ["4:4:4", "4:2:2", "4:2:0"])
def test_pictures_are_upright_and_nearly_the_reference_decoders(
    picture: Image.Image, device: str, subsampling: str
) -> None:
    files = [encode(picture, turn, subsampling=subsampling) for turn in TURNS]
    for data, image in zip(files, decode(prepared(*files), device), strict=True):
        expected = decode_image(data, PLAIN).pixels
        pixels = pixels_of(image)
        assert pixels.shape == expected.shape
        apart = np.abs(pixels.astype(int) - expected)
        # Colour may be enlarged in another way, and every turn but the right one would be far off.
        assert apart.mean() < 2, apart.mean()


def test_images_keep_their_places(picture: Image.Image, device: str) -> None:
    files = [encode(picture.resize((40 + 8 * k, 32))) for k in range(5)]
    images = prepared(files[0], encode(picture, format="PNG"), *files[1:], damaged(picture))
    done = decode(images, device)
    assert done[1] is images[1]
    assert [pixels_of(done[k]).shape[1] for k in (0, 2, 3, 4, 5)] == [40, 48, 56, 64, 72]
    # The reference decoder decides.
    with pytest.raises(ImageUnreadable) as refused:
        decode_image(damaged(picture), PLAIN)
    last = done[6]
    assert isinstance(last, ImageUnreadable)
    assert last.reason == refused.value.reason


def test_no_images(device: str) -> None:
    assert decode([], device) == []


@pytest.mark.parametrize("error", [RuntimeError("nvjpegDecode failed: 6"), torch.OutOfMemoryError("too much")])
def test_files_that_the_device_cannot_decode_are_decoded_on_the_cpu(
    picture: Image.Image, device: str, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [encode(picture.resize((40 + 8 * k, 32))) for k in range(7)]
    stored, batches = nvjpeg._stored, []

    def picky(images: Sequence[EncodedImage], where: torch.device) -> list[torch.Tensor]:
        batches.append(len(images))
        if any(image.width == 64 for image in images):
            raise error
        return stored(images, where)

    monkeypatch.setattr(nvjpeg, "_stored", picky)
    done = decode(prepared(*files), device)
    assert [type(image) for image in done] == [DeviceImage] * 3 + [DecodedImage] + [DeviceImage] * 3
    spared = done[3]
    assert isinstance(spared, DecodedImage)
    assert np.array_equal(spared.pixels, decode_image(files[3], PLAIN).pixels)
    assert batches == [7, 3, 4, 2, 1, 1, 2]


def test_a_device_that_decodes_nothing_is_not_tried_again(
    picture: Image.Image, device: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    calls: list[int] = []

    def broken(images: Sequence[EncodedImage], _: torch.device) -> list[torch.Tensor]:
        calls.append(len(images))
        raise RuntimeError("not compiled with nvJPEG support")

    monkeypatch.setattr(nvjpeg, "_stored", broken)
    decoder, images = DeviceDecoder(PLAIN), prepared(*[encode(picture)] * 8)
    for batch in (images[:2], images, images):
        assert all(isinstance(image, DecodedImage) for image in decoder(batch, resolve_device(device)))
    assert len(calls) == 3 + 15
    (record,) = caplog.records
    message = "decodes no JPEG file (not compiled with nvJPEG support): from here on the CPU does it"
    assert record.message == f"{resolve_device(device)} {message}"


def test_a_picture_of_other_sides_than_its_header_is_decoded_on_the_cpu(
    picture: Image.Image, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = nvjpeg._stored
    monkeypatch.setattr(nvjpeg, "_stored", lambda *arguments: [pixels[:, :-1] for pixels in stored(*arguments)])
    (image,) = decode(prepared(encode(picture)), device)
    assert isinstance(image, DecodedImage)
    assert (image.width, image.height) == (101, 75)
