"""Encryption of images and keys: published vectors, another implementation, and changed data."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.store.files import encryption
from pipeline.store.files.encryption import (
    MasterKey,
    decrypt_image,
    encrypt_image,
    looks_encrypted,
    unwrap_key,
    wrap_key,
)

# NIST SP 800-38A, F.2.5 CBC-AES256.Encrypt
NIST_KEY = bytes.fromhex("603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4")
NIST_IV = bytes(range(16))
NIST_PLAIN = bytes.fromhex(
    "6bc1bee22e409f96e93d7e117393172aae2d8a571e03ac9c9eb76fac45af8e51"
    "30c81c46a35ce411e5fbc1191a0a52eff69f2445df4f9b17ad2b417be66c3710"
)
NIST_CIPHER = bytes.fromhex(
    "f58c4c04d6e5f1ba779eabfb5f7bfbd69cfc4e967edb808d679f777bc6702c7d"
    "39f23369a9d9bacfa530e26304231461b2eb05e2c39be9fcda6c19078c6a9d1b"
)
KEY = bytes(range(32))
MASTER = MasterKey(bytes(range(100, 132)), "a test")
OTHER_MASTER = MasterKey(bytes(range(101, 133)), "a test")


def test_the_vectors_of_the_standard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encryption.os, "urandom", lambda size: NIST_IV[:size])
    encrypted = encrypt_image(NIST_KEY, NIST_PLAIN)
    assert encrypted[:16] == NIST_IV
    assert encrypted[16:80] == NIST_CIPHER
    assert len(encrypted) == 96  # a full last block is followed by one of padding
    assert decrypt_image(NIST_KEY, encrypted) == NIST_PLAIN


@given(st.binary(max_size=200))
def test_what_was_encrypted_is_decrypted(data: bytes) -> None:
    first, second = encrypt_image(KEY, data), encrypt_image(KEY, data)
    assert first != second  # the IV
    assert decrypt_image(KEY, first) == decrypt_image(KEY, second) == data
    assert len(first) == 16 + 16 * (len(data) // 16 + 1)
    assert looks_encrypted(len(first))


@pytest.mark.parametrize("size", [0, 1, 15, 16, 17, 100_000])
def test_the_openssl_command_line_decrypts_it(tmp_path: Path, size: int) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("no openssl on this machine")
    data = os.urandom(size)
    encrypted = encrypt_image(KEY, data)
    body = tmp_path / "body"
    body.write_bytes(encrypted[16:])
    command = ["openssl", "enc", "-d", "-aes-256-cbc", "-K", KEY.hex(), "-iv", encrypted[:16].hex(), "-in", str(body)]
    assert subprocess.run(command, capture_output=True, check=True).stdout == data


@pytest.mark.parametrize("data", [b"", b"x" * 15, b"x" * 16, b"x" * 33, b"\xff\xd8\xff" + bytes(200)])
def test_data_that_is_not_an_encrypted_image_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="not an encrypted image"):
        decrypt_image(KEY, data)


def test_a_changed_length_or_padding_is_refused() -> None:
    encrypted = encrypt_image(KEY, b"x" * 100)
    with pytest.raises(ValueError):
        decrypt_image(KEY, encrypted[:-1])
    flipped = bytearray(encrypted)
    flipped[-17] ^= 0x40  # in CBC this flips a bit of the last byte, the length of the padding
    with pytest.raises(ValueError):
        decrypt_image(KEY, bytes(flipped))


@pytest.mark.parametrize("key", [b"", bytes(16), bytes(24), bytes(33)])
def test_only_256_bit_keys_are_accepted(key: bytes) -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        encrypt_image(key, b"x")
    with pytest.raises(ValueError, match="32 bytes"):
        decrypt_image(key, bytes(32))
    with pytest.raises(ValueError, match="32 bytes"):
        wrap_key(MASTER, 1, key)
    with pytest.raises(ValueError, match="32 bytes"):
        MasterKey(key, "a test")


def test_wrapped_keys_open_for_their_account_and_master_key_only() -> None:
    wrapped = wrap_key(MASTER, 1, KEY)
    assert wrapped != wrap_key(MASTER, 1, KEY)  # the nonce
    assert unwrap_key(MASTER, 1, wrapped) == KEY
    for master, account in ((MASTER, 2), (MASTER, 11), (OTHER_MASTER, 1)):
        with pytest.raises(ValueError, match="does not open"):
            unwrap_key(master, account, wrapped)


@given(place=st.integers(0, 10_000), change=st.integers(1, 255))
def test_a_wrapped_key_with_any_character_changed_does_not_open(place: int, change: int) -> None:
    wrapped = wrap_key(MASTER, 1, KEY)
    place %= len(wrapped)
    changed = wrapped[:place] + chr((ord(wrapped[place]) + change) % 256) + wrapped[place + 1 :]
    with pytest.raises(ValueError):
        unwrap_key(MASTER, 1, changed)


@pytest.mark.parametrize("wrapped", ["", "aes256gcm", "aes256gcm$AAAA", "aes256gcm$!$!", "scrypt$AA==$AA==", "a$b$c$d"])
def test_a_text_that_is_not_a_wrapped_key_is_refused(wrapped: str) -> None:
    with pytest.raises(ValueError):
        unwrap_key(MASTER, 1, wrapped)


def test_a_master_key_has_an_id_and_reveals_nothing() -> None:
    assert len(MASTER.key_id) == 16
    assert MASTER.key_id == MasterKey(MASTER.data, "elsewhere").key_id
    assert MASTER.key_id != OTHER_MASTER.key_id
    for shown in (repr(MASTER), str(MASTER), MASTER.notice):
        assert "a test" in shown
        assert MASTER.data.hex() not in shown
        assert "defghij" not in shown  # the bytes as text


def test_ids_and_wrapped_keys_of_existing_stores_stay_valid() -> None:
    """An id and a wrapped key as existing stores hold them."""
    wrapped = "aes256gcm$AAECAwQFBgcICQoL$n6o6T7lIx+6VGpTDmpeGvfkGL4M5FsYy3wvzEE/xX/83y/3nGroAlEYiTnlyJk3Q"
    assert MASTER.key_id == "5b4b5c54a991da0b"
    assert unwrap_key(MASTER, 1, wrapped) == KEY
