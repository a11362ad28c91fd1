"""Accounts: user ids, and password hashes (scrypt, RFC 7914)."""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import re
import secrets

from pipeline.errors import AccountExists, AccountUnknown, UsageError
from pipeline.store.catalog import Catalog
from pipeline.store.opening import utc_now

# About 60 ms and 32 MiB a try.
_N, _R, _P = 2**15, 8, 1
_KEY_BYTES = 32
_USER_ID = re.compile(r"[A-Za-z0-9._@-]{1,64}")


def check_user_id(user_id: str) -> str:
    """Raises UsageError unless it is 1 to 64 of the characters A-Z a-z 0-9 . _ @ -"""
    if not _USER_ID.fullmatch(user_id):
        raise UsageError(message=f'"{user_id}" is no user id: 1 to 64 characters out of A-Z, a-z, 0-9 and ._@- serve.')
    return user_id


def generate_password() -> str:
    """A random password of 24 characters, 144 bits."""
    return secrets.token_urlsafe(18)


def hash_password(password: str) -> str:
    """`scrypt$n$r$p$salt$hash`, salt and hash in base64, the salt random."""
    salt = os.urandom(16)
    key = _scrypt(password, salt, _N, _R, _P)
    return "$".join(["scrypt", str(_N), str(_R), str(_P), _encode(salt), _encode(key)])


def verify_password(password: str, encoded: str | None) -> bool:
    """Whether `password` is the one behind `encoded`; never, without a hash. Costs the same work either way."""
    parts = (encoded or "").split("$")
    if len(parts) != 6 or parts[0] != "scrypt":
        _scrypt(password, bytes(16), _N, _R, _P)
        return False
    n, r, p = (int(part) for part in parts[1:4])
    key = _scrypt(password, base64.b64decode(parts[4]), n, r, p)
    return hmac.compare_digest(key, base64.b64decode(parts[5]))


def _scrypt(password: str, salt: bytes, n: int, r: int, p: int) -> bytes:
    memory = 2 * 128 * n * r * p  # OpenSSL wants a little more than 128 n r p
    return hashlib.scrypt(password.encode(), salt=salt, n=n, r=r, p=p, maxmem=memory, dklen=_KEY_BYTES)


def _encode(data: bytes) -> str:
    return base64.b64encode(data).decode()


def user_ids(catalog: Catalog) -> list[str]:
    return [user_id for (user_id,) in catalog.rows("SELECT user_id FROM core.accounts ORDER BY account_id")]


def account_id(catalog: Catalog, user_id: str) -> int:
    """Raises AccountUnknown."""
    rows = catalog.rows("SELECT account_id FROM core.accounts WHERE user_id = ?", [user_id])
    if not rows:
        known = ", ".join(user_ids(catalog)) or "none yet"
        raise AccountUnknown(account=user_id, known=known, path=catalog.folder.root)
    return int(rows[0][0])


def create_account(catalog: Catalog, user_id: str, password_hash: str | None) -> int:
    """The new account's id. Raises AccountExists, UsageError."""
    check_user_id(user_id)
    with catalog.transaction("account"):
        if catalog.rows("SELECT 1 FROM core.accounts WHERE user_id = ?", [user_id]):
            raise AccountExists(account=user_id)
        new = int(catalog.one("SELECT coalesce(max(account_id), 0) + 1 FROM core.accounts"))
        catalog.execute("INSERT INTO core.accounts VALUES (?, ?, ?, ?)", [new, user_id, password_hash, utc_now()])
    return new
