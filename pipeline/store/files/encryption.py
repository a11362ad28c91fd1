"""Encryption of stored images and of their keys.

An image at rest is IV (16 bytes) || AES-256-CBC with PKCS#7 padding, under its account's image key: the layout that the
contract's clients decrypt (section 4.6; NIST SP 800-38A, RFC 5652 section 6.3). CBC does not detect tampering; the
SHA-256 in core.objects does. Image keys are wrapped with AES-256-GCM (NIST SP 800-38D) under the master key, which is
never in the store.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
from dataclasses import dataclass, field
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.padding import PKCS7

KEY_BYTES: Final = 32
BLOCK_BYTES: Final = 16
_NONCE_BYTES = 12
_WRAPPED = "aes256gcm"


@dataclass(frozen=True)
class MasterKey:
    """The key that wraps the image keys, and its origin. Never shown or stored."""

    data: bytes = field(repr=False)  # KEY_BYTES
    source: str  # file or setting, for messages
    made: bool = False  # by this process

    def __post_init__(self) -> None:
        if len(self.data) != KEY_BYTES:
            raise ValueError(f"a master key is {KEY_BYTES} bytes")

    @property
    def key_id(self) -> str:
        """16 hexadecimal digits that identify the key and reveal nothing of it."""
        return hmac.new(self.data, b"facepipe master key id", hashlib.sha256).hexdigest()[:16]

    @property
    def notice(self) -> str:
        """A warning to keep a copy."""
        return (
            f"The images of this store are encrypted under the master key from {self.source}. Keep a copy of it apart"
            " from the store: without the key nobody can read them."
        )


def encrypt_image(key: bytes, data: bytes) -> bytes:
    """IV || ciphertext under a 32-byte key; the random IV makes equal images differ."""
    iv = os.urandom(BLOCK_BYTES)
    padder = PKCS7(8 * BLOCK_BYTES).padder()
    encryptor = Cipher(algorithms.AES(_checked(key)), modes.CBC(iv)).encryptor()
    return b"".join([iv, encryptor.update(padder.update(data) + padder.finalize()), encryptor.finalize()])


def looks_encrypted(size: int) -> bool:
    """Whether an encrypted image can have this size: a multiple of the block, at least IV and one block."""
    return size % BLOCK_BYTES == 0 and size >= 2 * BLOCK_BYTES


def decrypt_image(key: bytes, data: bytes) -> bytes:
    """The inverse of `encrypt_image`. Raises ValueError if `data` cannot be its result under this key."""
    if not looks_encrypted(len(data)):
        raise ValueError(f"{len(data)} bytes are not an encrypted image")
    decryptor = Cipher(algorithms.AES(_checked(key)), modes.CBC(data[:BLOCK_BYTES])).decryptor()
    padded = decryptor.update(memoryview(data)[BLOCK_BYTES:]) + decryptor.finalize()
    unpadder = PKCS7(8 * BLOCK_BYTES).unpadder()
    return unpadder.update(padded) + unpadder.finalize()


def _checked(key: bytes) -> bytes:
    """Raises ValueError for shorter keys: AES would not be the contract's cipher."""
    if len(key) != KEY_BYTES:
        raise ValueError(f"an image key is {KEY_BYTES} bytes")
    return key


def seal(key: bytes, data: bytes, bound_to: str) -> bytes:
    """nonce (12 bytes) || AES-256-GCM (NIST SP 800-38D): confidential, authenticated, and bound to the text
    `bound_to`."""
    nonce = os.urandom(_NONCE_BYTES)
    return nonce + AESGCM(_checked(key)).encrypt(nonce, data, bound_to.encode())


def unseal(key: bytes, sealed: bytes, bound_to: str) -> bytes:
    """The inverse of `seal`. Raises ValueError if key, text or data differ."""
    try:
        return AESGCM(_checked(key)).decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], bound_to.encode())
    except InvalidTag as exc:
        raise ValueError("it does not open: it was changed, or is of another key") from exc


def wrap_key(master: MasterKey, account_id: int, key: bytes) -> str:
    """`aes256gcm$nonce$ciphertext` in base64; bound to the account, so that wrapped keys cannot be swapped."""
    sealed = seal(master.data, _checked(key), _bound_to(account_id))
    parts = sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:]
    return "$".join([_WRAPPED, *(base64.b64encode(part).decode() for part in parts)])


def unwrap_key(master: MasterKey, account_id: int, wrapped: str) -> bytes:
    """The inverse of `wrap_key`. Raises ValueError if account, master key or data differ."""
    scheme, *parts = wrapped.split("$")
    if scheme != _WRAPPED or len(parts) != 2:
        raise ValueError("not a wrapped key")
    try:
        nonce, data = (base64.b64decode(part, validate=True) for part in parts)
        return _checked(unseal(master.data, nonce + data, _bound_to(account_id)))
    except ValueError as exc:  # includes binascii.Error
        raise ValueError("a wrapped key that does not open") from exc


def _bound_to(account_id: int) -> str:
    return f"facepipe image key of account {account_id}"
