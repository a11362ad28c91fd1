"""Stored images: one file per guid under objects/ab/cd/, where ab and cd are the guid's first characters.

In an encrypted store a file is the result of `encrypt_image`; sizes and hashes in the catalog are those of the file, so
`check` needs no key.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import Any, Final

from pipeline.errors import StoreDamaged, StoreError
from pipeline.store.files.crypto import decrypt_image, encrypt_image
from pipeline.store.files.durable import Folder

Row = dict[str, Any]  # of core.objects
FOLDER_DIGITS: Final = 4  # of a guid, which name the folder of its object
_GUID = re.compile(r"[0-9a-f]{4}[0-9a-f-]{4,60}")


def is_guid(text: str) -> bool:
    """Whether it can name an object."""
    return _GUID.fullmatch(text) is not None


def object_file(guid: str) -> str:
    """The relative path of an object. Raises StoreError for a text that is not a guid."""
    if not is_guid(guid):
        raise StoreError(message=f'"{guid}" cannot name an object: use lower-case hexadecimal digits and "-".')
    return f"objects/{guid[:2]}/{guid[2:4]}/{guid}"


def write_objects(folder: Folder, objects: Sequence[tuple[str, bytes, str]], key: bytes | None) -> dict[str, Row]:
    """Writes (guid, bytes, media type) each to its file, durably, encrypted if there is a key.

    Returns their rows for core.objects by guid. Raises StoreFull, StoreUnwritable.
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
    """The bytes of an object as they are at rest. Raises StoreDamaged where the file is missing."""
    try:
        return folder.path(object_file(guid)).read_bytes()
    except OSError as exc:
        raise _damaged(folder, guid, f"cannot be read: {exc.strerror}") from exc


def open_image(folder: Folder, guid: str, data: bytes, sha256: str, key: bytes | None) -> bytes:
    """The image in an object's bytes. Raises StoreDamaged where they were changed, or the key is not the image's."""
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
