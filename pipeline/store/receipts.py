"""Receipts of erasures, for whoever knows what was erased and has to prove that it was.

A receipt has each erased value as HMAC-SHA256 under a salt of its own. The command that forgets writes it, `pending`.
The store keeps its SHA-256, but neither salt nor digests; once its files are rewritten, it completes and signs the
receipt with its Ed25519 key (RFC 8032). FORMAT.md describes the file.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from pipeline.errors import ReceiptInvalid
from pipeline.store.keyed_digests import keyed_digests
from pipeline.store.records import Erasure
from pipeline.texts import nfc
from pipeline.types import utc_now

FORMAT: Final = "facepipe erasure receipt"
VERSION: Final = 1
PENDING, ERASED, LOG = "pending", "erased", "log"  # states; a log is of all erasures, without digests
NAME, SHA256 = "name", "sha256"  # kinds of values
# What `erasure` covers, before a receipt is signed.
REWRITTEN: Final = (
    "catalog",
    "embedding shards",
    "index segments",
    "pictures",
    "reports",
    "files of interrupted runs",
    "quarantine",
)
Values = Mapping[str, Sequence[str]]  # kind -> texts


@dataclass(frozen=True)
class Receipt:
    """A receipt's file, read. Nothing of it is trusted before `require_signature`."""

    state: str
    public_key: str  # the store's, hexadecimal
    salt: str
    parts: Sequence[Mapping[str, Any]]
    content: Mapping[str, Any]  # all of it

    def has(self, kind: str, text: str) -> bool:
        """Whether this value was erased."""
        (digest,) = keyed_digests(self.salt, kind, [_normal(kind, text)])
        return any(digest in part["digests"].get(kind, ()) for part in self.parts)


def public_key(seed: str) -> str:
    """Of the private key's 32 bytes; both hexadecimal."""
    return _private(seed).public_key().public_bytes_raw().hex()


def sha256(text: str) -> str:
    """By which the store knows a pending receipt."""
    return hashlib.sha256(text.encode()).hexdigest()


def pending(key: str, erased: Iterable[tuple[str, Values, int]], *, keeps_digests: bool) -> str:
    """A new pending receipt of the store with the public `key`. `erased`: of each change its kind, the values, and the
    number of photos that it keeps because they show others."""
    salt = secrets.token_hex(32)
    parts = [
        {
            "kind": kind,
            "kept_photos": kept,
            "keeps_digests": keeps_digests,
            # Sorted: their order tells nothing.
            "digests": {
                of: sorted(set(keyed_digests(salt, of, [_normal(of, text) for text in texts])))
                for of, texts in values.items()
            },
        }
        for kind, values, kept in erased
    ]
    return _written(_content(PENDING, key, salt, parts))


def read(text: str) -> Receipt:
    """Raises ReceiptInvalid if it is no receipt, or of a newer version."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise ReceiptInvalid(detail="it is not JSON") from exc
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ReceiptInvalid(detail=f'it has no "format": "{FORMAT}"')
    version = content.get("version")
    if isinstance(version, int) and version > VERSION:
        raise ReceiptInvalid(detail=f"it has version {version}, and this facepipe reads up to {VERSION}: upgrade it")
    try:
        receipt = Receipt(content["state"], content["public_key"], content["salt"], content["parts"], content)
        fits = version == VERSION and receipt.state in (PENDING, ERASED, LOG)
        fits &= len(bytes.fromhex(receipt.public_key)) == len(bytes.fromhex(receipt.salt)) == 32
        if fits and all(isinstance(digests, list) for part in receipt.parts for digests in part["digests"].values()):
            return receipt
    except (AttributeError, KeyError, TypeError, ValueError):
        pass
    raise ReceiptInvalid(detail="it has not the fields of a receipt")


def signed(text: str, seed: str, erasures: Sequence[Erasure]) -> str:
    """Completes a pending receipt by what the store recorded of it, and signs it. Changes that were not made are left
    out."""
    receipt = read(text)
    made = {each.kind: each for each in erasures}
    parts = [{**part, **_numbers(row)} for part in receipt.parts if (row := made.get(part["kind"])) is not None]
    return _signed({**receipt.content, "state": ERASED, "parts": parts, "pending_sha256": sha256(text)}, seed)


def signed_log(seed: str, erasures: Iterable[Erasure]) -> str:
    """A signed receipt of these erasures in times and numbers, also of those that have none of their own."""
    parts = [{"kind": each.kind, "digests": {}, **_numbers(each)} for each in erasures]
    return _signed(_content(LOG, public_key(seed), secrets.token_hex(32), parts), seed)


def require_signature(receipt: Receipt, key: str) -> None:
    """Raises ReceiptInvalid unless the store with the public `key` signed exactly this."""
    if receipt.public_key != key:
        raise ReceiptInvalid(detail=f"it is of another store, with the key {receipt.public_key}")
    try:
        signature = bytes.fromhex(receipt.content["signature"])
        Ed25519PublicKey.from_public_bytes(bytes.fromhex(key)).verify(signature, _canonical(receipt.content))
    except (InvalidSignature, KeyError, TypeError, ValueError) as exc:
        raise ReceiptInvalid(detail="it was changed after it was signed") from exc


def _content(state: str, key: str, salt: str, parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    content = {"format": FORMAT, "version": VERSION, "state": state, "made_at": _time(utc_now())}
    return {**content, "public_key": key, "salt": salt, "parts": parts}


def _numbers(row: Erasure) -> dict[str, Any]:
    return {
        "deleted_at": _time(row.deleted_at),
        "erased_at": row.erased_at and _time(row.erased_at),
        "people": row.people,
        "faces": row.faces,
        "photos": row.photos,
    }


def _normal(kind: str, text: str) -> str:
    return nfc(text) if kind == NAME else text


def _private(seed: str) -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(bytes.fromhex(seed))


def _canonical(content: Mapping[str, Any]) -> bytes:
    """What is signed: all but the signature."""
    own = {name: value for name, value in content.items() if name != "signature"}
    return json.dumps(own, sort_keys=True, separators=(",", ":")).encode()


def _signed(content: Mapping[str, Any], seed: str) -> str:
    content = {**content, "rewritten": [*REWRITTEN]}
    return _written({**content, "signature": _private(seed).sign(_canonical(content)).hex()})


def _written(content: Mapping[str, Any]) -> str:
    return json.dumps(content, indent=1) + "\n"


def _time(at: datetime) -> str:
    return f"{at.isoformat(timespec='seconds')}Z"
