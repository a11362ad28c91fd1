"""The hash of a picture's pixels, by which a store knows the picture again in another file."""

from __future__ import annotations

import hashlib
import struct
from typing import Final

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from pipeline.types import ByteArray

_MOST_BYTES: Final = 2**31 - 1  # that AESGCM takes at once


class PixelHash:
    """The hash of upright pixels [H, W, 3] under the key of a store: equal pictures have equal hashes.

    It is a tag of GMAC, which costs a tenth of SHA-256; who does not know the key cannot make two pictures with one
    tag. Its nonce is the picture's size, so it repeats: the key must not authenticate anything. A store without a key
    is older and has SHA-256. Safe to call from many threads.
    """

    def __init__(self, key: str | None) -> None:
        self._cipher = None if key is None else AESGCM(bytes.fromhex(key))

    def __call__(self, pixels: ByteArray) -> str:
        height, width = pixels.shape[:2]
        data = pixels.reshape(-1).data
        if self._cipher is None:
            digest = hashlib.sha256(struct.pack("<II", width, height))
            digest.update(data)
            return digest.hexdigest()
        tags = b""
        for part, start in enumerate(range(0, len(data), _MOST_BYTES)):
            nonce = struct.pack("<III", width, height, part)
            tags += self._cipher.encrypt(nonce, b"", data[start : start + _MOST_BYTES])
        return tags.hex()
