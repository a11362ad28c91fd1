"""Digests under a store's key: they find equal texts and reveal nothing."""

from __future__ import annotations

import hmac
import json
from collections.abc import Iterable
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.store.records import Label
from pipeline.texts import nfc

LABEL: Final = "label"
ERASED: Final = ""  # replaces the digest of a label that named a deleted person
_as_json: Final = json.JSONEncoder(ensure_ascii=False).encode


def keyed_digests(key: str, kind: str, texts: Iterable[str]) -> list[str]:
    """HMAC-SHA256 of each `<kind>:<text>`; hexadecimal, as the key."""
    secret = bytes.fromhex(key)
    return [hmac.digest(secret, f"{kind}:{text}".encode(), "sha256").hex() for text in texts]


def label_digests(key: str, labels: Iterable[Label]) -> list[str | None]:
    """Digests of [name (NFC), external_id] as JSON; None for an empty label."""
    known = [(name and nfc(name), external_id) for name, external_id in labels]
    said = [label for label in known if any(label)]
    by_label = dict(zip(said, keyed_digests(key, LABEL, map(_as_json, said)), strict=True))
    return [by_label.get(label) for label in known]


def labels_of_media(key: str, media: pa.Table) -> pa.Table:
    """media_id, label: digests of media with a name or external id."""
    named = media.filter(pc.or_(media["name"].is_valid(), media["external_id"].is_valid()))
    labels = zip(named["name"].to_pylist(), named["external_id"].to_pylist(), strict=True)
    return pa.table({"media_id": named["media_id"], "label": pa.array(label_digests(key, labels), pa.string())})
