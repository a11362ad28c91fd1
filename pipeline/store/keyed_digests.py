"""Digests under the key of a store: by them equal texts are found, and nothing can be read from them."""

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
ERASED: Final = ""  # in place of the digest of a label that named somebody who was deleted
_as_json: Final = json.JSONEncoder(ensure_ascii=False).encode


def keyed_digests(key: str, kind: str, texts: Iterable[str]) -> list[str]:
    """The HMAC-SHA256 of each `<kind>:<text>`, in hexadecimal as the key is."""
    secret = bytes.fromhex(key)
    return [hmac.digest(secret, f"{kind}:{text}".encode(), "sha256").hex() for text in texts]


def label_digests(key: str, labels: Iterable[Label]) -> list[str | None]:
    """That of each label, whose text is [name, external_id] in JSON, the name in NFC; None of one that says nothing."""
    known = [(name and nfc(name), external_id) for name, external_id in labels]
    said = [label for label in known if any(label)]
    by_label = dict(zip(said, keyed_digests(key, LABEL, map(_as_json, said)), strict=True))
    return [by_label.get(label) for label in known]


def labels_of_media(key: str, media: pa.Table) -> pa.Table:
    """media_id, label: the digests of the media with a name or an external id."""
    named = media.filter(pc.or_(media["name"].is_valid(), media["external_id"].is_valid()))
    labels = zip(named["name"].to_pylist(), named["external_id"].to_pylist(), strict=True)
    return pa.table({"media_id": named["media_id"], "label": pa.array(label_digests(key, labels), pa.string())})
