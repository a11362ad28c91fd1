"""Decoding on the device: which files it gets, what comes back, and what happens when it fails.

On a machine without CUDA nvImageCodec's decoder for CPUs runs, where it is installed. Tests of what is done with its
answers run without it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import NoReturn

import numpy as np
import pytest
import torch
from PIL import Image

from pipeline.config import DecodeSettings, RunSettings
from pipeline.errors import BadValue, DeviceFailed, ImageRejected, ImageTooLarge, ImageTruncated, ImageUnreadable
from pipeline.extraction.images.decode import Decoder, decode_image
from pipeline.extraction.images.device_jpeg import DeviceDecoder, JpegLibrary, decodes_on_device, load_nvimgcodec
from pipeline.runtime.device import finish, resolve_device
from pipeline.types import DecodedImage, DeviceImage, EncodedImage
from tests.extraction.helpers import encode, pillow_as_library

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


def library_is(monkeypatch: pytest.MonkeyPatch, answer: object) -> None:
    monkeypatch.setattr(JpegLibrary, "__call__", answer)


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
    assert decoder.counts.calls == 1


def test_without_the_library_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nvidia", None)
    message = r"run\.jpeg.* is device: nvImageCodec cannot be imported .*: pip install -e '\.\[cuda\]' in .*, or"
    with pytest.raises(BadValue, match=message):
        load_nvimgcodec()


def assert_near(pixels: np.ndarray, expected: np.ndarray, device: str) -> None:
    """On a CPU the library decodes by libjpeg-turbo."""
    assert pixels.shape == expected.shape
    apart = np.abs(pixels.astype(int) - expected)
    assert apart.mean() <= (0 if device == "cpu" else 1), apart.mean()


@pytest.mark.usefixtures("nvimgcodec")
@pytest.mark.parametrize("subsampling", ["4:4:4", "4:2:2", "4:2:0"])
def test_pictures_are_upright_and_the_reference_decoders(picture: Image.Image, device: str, subsampling: str) -> None:
    files = [encode(picture, turn, subsampling=subsampling) for turn in TURNS]
    for data, image in zip(files, decode(prepared(*files), device), strict=True):
        assert_near(pixels_of(image), decode_image(data, PLAIN).pixels, device)


@pytest.mark.usefixtures("nvimgcodec")
@pytest.mark.parametrize("size", [(1, 1), (1, 40), (17, 33), (4000, 3000)])
def test_small_and_large_pictures(picture: Image.Image, device: str, size: tuple[int, int]) -> None:
    data = encode(picture.resize(size))
    (image,) = decode(prepared(data), device)
    assert_near(pixels_of(image), decode_image(data, PLAIN).pixels, device)


@pytest.mark.usefixtures("nvimgcodec")
def test_the_library_refuses_single_files(picture: Image.Image, device: str) -> None:
    whole = encode(picture)
    files = [whole, b"", b"no picture", damaged(picture), whole[:1500], whole]
    first, *refused, last = JpegLibrary()(files, resolve_device(device))
    assert refused == [None] * 4
    assert first is not None
    assert last is not None
    assert torch.equal(first, last)


@pytest.mark.usefixtures("nvimgcodec")
def test_colour_is_interpolated(picture: Image.Image, device: str) -> None:
    """The plain way is there to be measured."""
    data, where = encode(picture, subsampling="4:2:0"), resolve_device(device)
    expected = torch.from_numpy(decode_image(data, PLAIN).pixels)
    smooth, plain = (JpegLibrary(interpolates=way)([data], where)[0] for way in (True, False))
    assert smooth is not None
    assert plain is not None
    apart = [float((pixels.cpu().float() - expected).abs().mean()) for pixels in (smooth, plain)]
    assert apart[0] < apart[1] / 2


@pytest.mark.usefixtures("nvimgcodec")
def test_threads_share_a_decoder(picture: Image.Image, device: str) -> None:
    """Its pixels stay what they are while later batches are decoded."""
    decoder, where = DeviceDecoder(PLAIN), resolve_device(device)
    batches = [[encode(picture.resize((40 + 8 * k + j, 32))) for k in range(8)] for j in range(6)] * 4
    with ThreadPoolExecutor(6) as pool:
        done = list(pool.map(lambda files: decoder(prepared(*files), where), batches))
    finish(where)
    for files, images in zip(batches, done, strict=True):
        for data, image in zip(files, images, strict=True):
            assert_near(pixels_of(image), decode_image(data, PLAIN).pixels, device)


@pytest.mark.usefixtures("nvimgcodec")
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


def test_only_the_files_that_the_device_refuses_are_decoded_on_the_cpu(
    picture: Image.Image, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [encode(picture.resize((40 + 8 * k, 32))) for k in range(7)]

    def picky(_: object, data: Sequence[bytes], where: torch.device) -> list[torch.Tensor | None]:
        return [None if k == 3 else one for k, one in enumerate(pillow_as_library(_, data, where))]

    library_is(monkeypatch, picky)
    done = decode(prepared(*files), device)
    assert [type(image) for image in done] == [DeviceImage] * 3 + [DecodedImage] + [DeviceImage] * 3
    spared = done[3]
    assert isinstance(spared, DecodedImage)
    assert np.array_equal(spared.pixels, decode_image(files[3], PLAIN).pixels)


@pytest.mark.parametrize("error", [RuntimeError("CUDA Runtime failure: '#2'"), torch.OutOfMemoryError("too much")])
@pytest.mark.parametrize(("failures", "expected"), [(1, DeviceImage), (2, DecodedImage)])
def test_a_batch_that_fails_is_tried_again_and_then_decoded_on_the_cpu(
    picture: Image.Image, device: str, monkeypatch: pytest.MonkeyPatch, error: Exception, failures: int, expected: type
) -> None:
    calls: list[int] = []

    def fails(*arguments: object) -> object:
        calls.append(1)
        if len(calls) <= failures:
            raise error
        return pillow_as_library(*arguments)  # type: ignore[arg-type]

    library_is(monkeypatch, fails)
    decoder, images = DeviceDecoder(PLAIN), prepared(*[encode(picture)] * 3)
    assert [type(image) for image in decoder(images, resolve_device(device))] == [expected] * 3
    assert all(isinstance(image, DeviceImage) for image in decoder(images, resolve_device(device)))


@pytest.mark.parametrize(
    ("library", "then"),
    [
        ("CUDA error: an illegal memory access was encountered", ""),  # torch's words
        ("CUDA Runtime failure: '#700'", "CUDA error: an illegal memory access was encountered"),
        ("", "CUDA error: unspecified launch failure"),  # found when the decoding is waited for
    ],
)
def test_a_lost_device_is_never_replaced_by_the_cpu(
    picture: Image.Image, monkeypatch: pytest.MonkeyPatch, library: str, then: str
) -> None:
    def fails(*arguments: object) -> object:
        if library:
            raise RuntimeError(library)
        return [None]

    def synchronize() -> None:
        if then:
            raise RuntimeError(then)

    library_is(monkeypatch, fails)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: SimpleNamespace(synchronize=synchronize))
    with pytest.raises(DeviceFailed, match=then or library):
        DeviceDecoder(PLAIN)(prepared(encode(picture)), "cuda:0")


def refuses(*_: object) -> list[None]:
    return [None] * 8


def breaks(*_: object) -> NoReturn:
    raise RuntimeError("Internal error - Could not create decoder. Code: 8")


@pytest.mark.parametrize(
    ("answer", "calls", "reason"),
    [(refuses, 1, "it refuses them all"), (breaks, 2, "Internal error - Could not create decoder. Code: 8")],
)
def test_a_device_that_decodes_nothing_is_not_tried_again(
    picture: Image.Image,
    device: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    answer: Callable[..., object],
    calls: int,
    reason: str,
) -> None:
    made: list[object] = []
    library_is(monkeypatch, lambda *arguments: made.append(arguments) or answer())
    decoder, images = DeviceDecoder(PLAIN), prepared(*[encode(picture)] * 8)
    for _ in range(2):
        assert all(isinstance(image, DecodedImage) for image in decoder(images, resolve_device(device)))
    assert len(made) == calls
    (record,) = caplog.records
    message = f"nvImageCodec decodes no JPEG file on {resolve_device(device)} ({reason}): from here on the CPU does it"
    assert record.message == message


def test_a_picture_of_other_sides_than_its_header_is_decoded_on_the_cpu(
    picture: Image.Image, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    library_is(monkeypatch, lambda *arguments: [pixels[:-1] for pixels in pillow_as_library(*arguments)])
    (image,) = decode(prepared(encode(picture)), device)
    assert isinstance(image, DecodedImage)
    assert (image.width, image.height) == (101, 75)
