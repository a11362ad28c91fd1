"""What runs must not import again, as keyed digests that reveal no path, hash or face. The kinds: see FORMAT.md."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Final

from pipeline.store.catalog.connection import Catalog
from pipeline.store.keyed_digests import keyed_digests
from pipeline.types import utc_now

PATH: Final = "path"
BYTES: Final = "sha256"
FACE: Final = "face"
PHOTOS: Final = frozenset({PATH, BYTES})


def face_text(sha256: str, ordinal: int) -> str:
    """The text of a photo's face; ordinals count from the largest."""
    return f"{sha256}:{ordinal}"


def in_directory(directory: str, text: str) -> str:
    """The text of a path or hash that only runs into this directory must not import: JSON, unlike any path or hash."""
    return json.dumps([directory, text], ensure_ascii=False)


def photo_texts(directory: str, path: str, sha256: str | None) -> set[str]:
    """The texts of a photo, of which one is enough to forget it."""
    texts = [path, *([] if sha256 is None else [sha256])]
    return {*texts, *(in_directory(directory, text) for text in texts)}


def digests(catalog: Catalog, kind: str, texts: Sequence[str]) -> list[str]:
    """The texts' keyed digests."""
    return keyed_digests(catalog.one("SELECT fact_key FROM core.store"), kind, texts)


def remember(catalog: Catalog, account_id: int, kind: str, texts: Iterable[str]) -> None:
    """Inside a transaction: adds texts that the account's runs skip from now on."""
    catalog.execute(
        "INSERT INTO core.forgotten SELECT $1, $2, digest, $4 FROM (SELECT unnest($3::VARCHAR[]) AS digest)"
        " WHERE digest NOT IN (SELECT digest FROM core.forgotten WHERE account_id = $1 AND kind = $2)",
        [account_id, kind, digests(catalog, kind, sorted(set(texts))), utc_now()],
    )


def forgotten_faces(catalog: Catalog, account_id: int, faces: Sequence[tuple[str, int]]) -> set[tuple[str, int]]:
    """The forgotten ones of these faces (photo's SHA-256, ordinal)."""
    texts = {face_text(*face): face for face in faces}
    return {texts[text] for text in forgotten(catalog, account_id, FACE, list(texts))}


def forgotten_photos(
    catalog: Catalog, account_id: int, directories: Iterable[str], paths: Sequence[str], hashes: Sequence[str]
) -> set[str]:
    """Those of these paths and SHA-256 hashes, and of their `photo_texts` in these directories, that belong to
    forgotten photos."""
    found = set[str]()
    names = [*directories]
    for kind, texts in ((PATH, paths), (BYTES, hashes)):
        in_all = [in_directory(name, text) for name in names for text in texts]
        found |= forgotten(catalog, account_id, kind, [*texts, *in_all])
    return found


def forgotten(catalog: Catalog, account_id: int, kind: str, texts: Sequence[str]) -> set[str]:
    """The forgotten ones of these texts."""
    by_digest = dict(zip(digests(catalog, kind, texts), texts, strict=True))
    found = catalog.column(
        "SELECT digest FROM core.forgotten WHERE account_id = ? AND kind = ?"
        " AND digest IN (SELECT unnest(?::VARCHAR[]))",
        [account_id, kind, list(by_digest)],
    )
    return {by_digest[digest] for digest in found}
