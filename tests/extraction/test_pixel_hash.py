"""Equal pictures have equal hashes, whatever their files; all others have other ones."""

from __future__ import annotations

import hashlib
import struct
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from PIL import Image

from pipeline.config import DecodeSettings
from pipeline.extraction.images.decode import decode_image
from pipeline.extraction.images.pixel_hash import PixelHash
from tests.extraction.helpers import encode

KEY = "000102030405060708090a0b0c0d0e0f"


@pytest.fixture(scope="module")
def pixels() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (70, 30, 3), np.uint8)


def test_the_hash_is_the_one_of_the_format(pixels: np.ndarray) -> None:
    gmac = Cipher(algorithms.AES(bytes.fromhex(KEY)), modes.GCM(struct.pack("<III", 30, 70, 0))).encryptor()
    gmac.authenticate_additional_data(pixels.tobytes())
    gmac.finalize()
    assert PixelHash(KEY)(pixels) == gmac.tag.hex()
    assert PixelHash(None)(pixels) == hashlib.sha256(struct.pack("<II", 30, 70) + pixels.tobytes()).hexdigest()


@pytest.mark.parametrize("key", [KEY, None])
def test_only_equal_pictures_have_equal_hashes(key: str | None, pixels: np.ndarray) -> None:
    pixel_hash = PixelHash(key)
    files = [encode(Image.fromarray(pixels), format=name) for name in ("PNG", "BMP", "TIFF")]
    assert {pixel_hash(decode_image(data, DecodeSettings()).pixels) for data in files} == {pixel_hash(pixels)}
    others = [pixels.reshape(30, 70, 3), pixels.reshape(35, 60, 3), np.pad(pixels, ((0, 1), (0, 0), (0, 0)))]
    for place in (0, 3000, -1):
        changed = pixels.copy()
        changed.flat[place] ^= 1
        others.append(changed)
    assert len({pixel_hash(other) for other in (*others, pixels)}) == 7


def test_another_key_gives_other_hashes(pixels: np.ndarray) -> None:
    assert PixelHash("f" * 32)(pixels) != PixelHash(KEY)(pixels)


def test_threads_share_a_hash(pixels: np.ndarray) -> None:
    pixel_hash = PixelHash(KEY)
    pictures = [np.full((500, 400 + k, 3), k, np.uint8) for k in range(8)]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(pixel_hash, pictures * 20))
    assert found == [pixel_hash(picture) for picture in pictures] * 20


def test_pictures_of_more_than_2_gib_are_hashed_to_the_last_byte() -> None:
    pixel_hash, huge = PixelHash(KEY), np.zeros((26_800, 26_800, 3), np.uint8)
    assert huge.nbytes > 2**31
    found = {pixel_hash(huge)}
    for place in (0, -1):
        huge.flat[place] = 1
        found.add(pixel_hash(huge))
        huge.flat[place] = 0
    assert len(found) == 3
