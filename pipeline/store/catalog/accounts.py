"""Accounts: user ids, password hashes (scrypt, RFC 7914), wrapped image keys."""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import re
import secrets
import unicodedata

from pipeline.errors import AccountExists, AccountUnknown, MasterKeyMissing, StoreDamaged, UsageError
from pipeline.store.catalog import rewriting
from pipeline.store.catalog.connection import Catalog
from pipeline.store.catalog.directories import directories, with_contents
from pipeline.store.catalog.runs import delete_runs
from pipeline.store.files.encryption import KEY_BYTES, MasterKey, unwrap_key, wrap_key
from pipeline.store.records import AccountSummary, Credentials
from pipeline.types import utc_now

# About 180 ms and 32 MiB, as OWASP's Password Storage Cheat Sheet recommends for scrypt.
_N, _R, _P = 2**15, 8, 3
_KEY_BYTES = 32
_PASSWORD_CHARACTERS = 1000
_USER_ID = re.compile(r"[A-Za-z0-9._@-]{1,64}")


def check_user_id(user_id: str) -> str:
    """Raises UsageError unless `user_id` is 1 to 64 of the characters A-Z a-z 0-9 . _ @ -"""
    if not _USER_ID.fullmatch(user_id):
        raise UsageError(message=f'"{user_id}" is not a user id: use 1 to 64 of the characters A-Z a-z 0-9 . _ @ -')
    return user_id


def generate_password() -> str:
    """24 random characters, 144 bits."""
    return secrets.token_urlsafe(18)


def check_password(password: str) -> str:
    """Raises UsageError if no client can send it: HTTP strips trailing white space from headers."""
    if not password or len(password) > _PASSWORD_CHARACTERS:
        raise UsageError(message=f"A password has 1 to {_PASSWORD_CHARACTERS} characters.")
    if password[-1].isspace() or any(unicodedata.category(character) == "Cc" for character in password):
        raise UsageError(message="A password has no control characters and does not end in white space.")
    return password


def hash_password(password: str) -> str:
    """`scrypt$n$r$p$salt$hash`; salt (random) and hash in base64."""
    salt = os.urandom(16)
    key = _scrypt(password, salt, _N, _R, _P)
    encoded = [base64.b64encode(data).decode() for data in (salt, key)]
    return "$".join(["scrypt", str(_N), str(_R), str(_P), *encoded])


def verify_password(password: str, encoded: str | None) -> bool:
    """Whether `encoded` is the hash of `password`; False for None. Takes equally long either way."""
    parts = (encoded or "").split("$")
    if len(parts) != 6 or parts[0] != "scrypt":
        _scrypt(password, bytes(16), _N, _R, _P)
        return False
    n, r, p = (int(part) for part in parts[1:4])
    key = _scrypt(password, base64.b64decode(parts[4]), n, r, p)
    return hmac.compare_digest(key, base64.b64decode(parts[5]))


def _scrypt(password: str, salt: bytes, n: int, r: int, p: int) -> bytes:
    memory = 2 * 128 * n * r * p  # OpenSSL needs slightly more than 128 n r p
    # Clients may encode "é" as one character or two (RFC 8265).
    text = unicodedata.normalize("NFC", password).encode()
    return hashlib.scrypt(text, salt=salt, n=n, r=r, p=p, maxmem=memory, dklen=_KEY_BYTES)


def user_ids(catalog: Catalog) -> list[str]:
    """Oldest first."""
    return catalog.column("SELECT user_id FROM core.accounts ORDER BY account_id")


def summaries(catalog: Catalog) -> list[AccountSummary]:
    """All accounts, oldest first."""
    held = directories(catalog)
    rows = catalog.rows("SELECT account_id, user_id, password_hash IS NOT NULL FROM core.accounts ORDER BY account_id")
    return [
        AccountSummary(number, name, password_set, [each for each in held if each.account_id == number])
        for number, name, password_set in rows
    ]


def account_id(catalog: Catalog, user_id: str) -> int:
    """Raises AccountUnknown."""
    rows = catalog.rows("SELECT account_id FROM core.accounts WHERE user_id = ?", [user_id])
    if not rows:
        others = ", ".join(user_ids(catalog)) or "none yet"
        raise AccountUnknown(account=user_id, known=others, path=catalog.folder.root)
    return int(rows[0][0])


def credentials(catalog: Catalog, user_id: str) -> Credentials | None:
    """The account's id and password hash; None for an unknown user id."""
    rows = catalog.rows("SELECT account_id, password_hash FROM core.accounts WHERE user_id = ?", [user_id])
    return Credentials(int(rows[0][0]), rows[0][1]) if rows else None


def create_account(catalog: Catalog, user_id: str, password_hash: str | None) -> int:
    """Returns the new id. Without a hash no password is accepted.

    Raises AccountExists, UsageError; MasterKeyMissing while an encrypted store is locked.
    """
    master_key = _require_master_key(catalog)
    check_user_id(user_id)
    with catalog.transaction("account"):
        if catalog.rows("SELECT 1 FROM core.accounts WHERE user_id = ?", [user_id]):
            raise AccountExists(account=user_id)
        used = "SELECT account_id FROM core.accounts UNION ALL SELECT account_id FROM core.erasures"
        account = int(catalog.one(f"SELECT coalesce(max(account_id), 0) + 1 FROM ({used})"))
        image_key = None if master_key is None else wrap_key(master_key, account, os.urandom(KEY_BYTES))
        row = {"account_id": account, "user_id": user_id, "password_hash": password_hash, "image_key": image_key}
        catalog.insert("accounts", [{**row, "added_at": utc_now()}])
    return account


def set_password(catalog: Catalog, user_id: str, password_hash: str | None) -> None:
    """None: no password is accepted. Raises AccountUnknown."""
    account = account_id(catalog, user_id)
    with catalog.transaction("account"):
        catalog.execute("UPDATE core.accounts SET password_hash = ? WHERE account_id = ?", [password_hash, account])


def delete_account(catalog: Catalog, account: int) -> bool:
    """Deletes an account without unfinished runs, with its runs, corrections and digests; its log of erasures stays.
    False, and nothing is deleted, if a directory has contents."""
    if with_contents(catalog, account):
        return False
    runs = catalog.column("SELECT run_id FROM core.runs WHERE account_id = ?", [account])
    with catalog.transaction("account"):
        delete_runs(catalog, runs)
        for table in ("files", "forgotten", "corrections", "accounts"):
            catalog.execute(f"DELETE FROM core.{table} WHERE account_id = ?", [account])
        # Readers of changes who have not read of its last deletions must begin again.
        catalog.execute("UPDATE core.store SET changes_from = ?", [catalog.commit_number])
        none = {"people": 0, "faces": 0, "photos": 0}
        catalog.insert("erasures", [{"deleted_at": utc_now(), "account_id": account, "kind": "delete_account", **none}])
        rewriting.note_removal(catalog)
    return True


def image_key(catalog: Catalog, account: int) -> bytes | None:
    """The 32-byte AES key of an account's images; None if the store is not encrypted.

    Raises MasterKeyMissing while the store is locked, StoreDamaged if the key cannot be unwrapped.
    """
    master_key = _require_master_key(catalog)
    if master_key is None:
        return None
    rows = catalog.rows("SELECT image_key FROM core.accounts WHERE account_id = ?", [account])
    try:
        return unwrap_key(master_key, account, rows[0][0] or "" if rows else "")
    except ValueError as exc:
        root = catalog.folder.root
        detail = f"the image key of account {account} cannot be unwrapped"
        raise StoreDamaged(path=root, detail=detail, cure="Restore the store from a backup.") from exc


def _require_master_key(catalog: Catalog) -> MasterKey | None:
    """None if not encrypted. Raises MasterKeyMissing while an encrypted store is locked."""
    if catalog.identity.encrypted and catalog.master_key is None:
        raise MasterKeyMissing(path=catalog.folder.root, detail="the store was opened without one")
    return catalog.master_key
