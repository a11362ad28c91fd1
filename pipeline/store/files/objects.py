"""Stored images: one file per guid, encrypted in an encrypted store.

Sizes and hashes in the catalog are the file's, so `check` needs no key.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import Any, Final

from pipeline.errors import StoreDamaged, StoreError
from pipeline.store.files.durable import Folder
from pipeline.store.files.encryption import decrypt_image, encrypt_image

Row = dict[str, Any]  # core.objects
FOLDER_DIGITS: Final = 4  # of a guid, for its folder
_GUID = re.compile(r"[0-9a-f]{4}[0-9a-f-]{4,60}")


def is_guid(text: str) -> bool:
    """Whether it can name an object."""
    return _GUID.fullmatch(text) is not None


def object_file(guid: str) -> str:
    """An object's relative path. Raises StoreError unless it is a guid."""
    if not is_guid(guid):
        raise StoreError(message=f'"{guid}" cannot name an object: use lower-case hexadecimal digits and "-".')
    return f"objects/{guid[:2]}/{guid[2:4]}/{guid}"


def write_objects(folder: Folder, objects: Sequence[tuple[str, bytes, str]], key: bytes | None) -> dict[str, Row]:
    """Durably writes each (guid, bytes, media type), encrypted if there is a key.

    Returns rows of core.objects by guid. Raises StoreFull, StoreUnwritable.
    """
    at_rest = [data if key is None else encrypt_image(key, data) for _, data, _ in objects]
    folder.write_all([(object_file(guid), data) for (guid, _, _), data in zip(objects, at_rest, strict=True)], "object")
    return {
        guid: {
            "image_guid": guid,
            "bytes": len(data),
            "sha256": hashlib.sha256(data).hexdigest(),
            "media_type": media_type,
            "encrypted": key is not None,
        }
        for (guid, _, media_type), data in zip(objects, at_rest, strict=True)
    }


def read_object(folder: Folder, guid: str) -> bytes:
    """An object's bytes at rest. Raises StoreDamaged if unreadable."""
    try:
        return folder.path(object_file(guid)).read_bytes()
    except OSError as exc:
        raise _damaged(folder, guid, f"cannot be read: {exc.strerror}") from exc


def open_image(folder: Folder, guid: str, data: bytes, sha256: str, key: bytes | None) -> bytes:
    """The image from an object's bytes. Raises StoreDamaged if they changed, or the key is wrong."""
    if hashlib.sha256(data).hexdigest() != sha256:
        raise _damaged(folder, guid, "was changed: its SHA-256 is not the recorded one")
    if key is None:
        return data
    try:
        return decrypt_image(key, data)
    except ValueError as exc:
        raise _damaged(folder, guid, "cannot be decrypted with its account's key") from exc


def _damaged(folder: Folder, guid: str, detail: str) -> StoreDamaged:
    cure = f"`facepipe check --store {folder.root}` lists all damaged images; restore them from a backup."
    return StoreDamaged(path=folder.root, detail=f"the image {guid} {detail}", cure=cure)
