"""What an open store has for its images: unlocking, the accounts' keys, reading."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pipeline.errors import MasterKeyWrong, ObjectUnknown, StoreDamaged
from pipeline.store.catalog import accounts
from pipeline.store.catalog.connection import Catalog
from pipeline.store.catalog_thread import CatalogThread
from pipeline.store.files.crypto import MasterKey
from pipeline.store.files.objects import open_image, read_object
from pipeline.store.records import StoreIdentity

_ENCRYPTED = "application/octet-stream"


class StoredImages(CatalogThread):
    """The images of a store. Of an encrypted one they can be read and written once it is unlocked; everything else
    needs no key."""

    def __init__(self, root: Path, make_identity: Callable[[], StoreIdentity] | None, command: str) -> None:
        super().__init__(root, make_identity, command)
        self.master_key: MasterKey | None = None
        self._image_keys: dict[int, bytes | None] = {}

    @property
    def locked(self) -> bool:
        """Whether the images cannot be read or written yet."""
        return self.identity.encrypted and self.master_key is None

    def unlock(self, master_key: MasterKey) -> None:
        """Takes the key of an encrypted store; for a store that is not encrypted does nothing.

        Raises MasterKeyWrong.
        """
        if not self.identity.encrypted:
            return
        if master_key.key_id != self.identity.master_key_id:
            detail = f" (its id is {master_key.key_id}, the store's {self.identity.master_key_id})"
            raise MasterKeyWrong(source=master_key.source, path=self.folder.root, detail=detail)
        self.master_key = self._catalog.master_key = master_key

    def image_key(self, account_id: int) -> bytes | None:
        """The 32 byte AES key of an account's images; None in a store that is not encrypted.

        Raises MasterKeyMissing, and StoreDamaged where the key does not open.
        """
        if not self.identity.encrypted:
            return None
        if account_id not in self._image_keys:
            self._image_keys[account_id] = self.submit(lambda catalog: accounts.image_key(catalog, account_id))
        return self._image_keys[account_id]

    def read_object(self, guid: str) -> bytes:
        """The bytes of a stored image as they are at rest."""
        return read_object(self.folder, guid)

    def read_image(self, account_id: int, guid: str, *, at_rest: bool = False) -> tuple[bytes, str]:
        """A stored image of the account, decrypted unless `at_rest`; and its media type, which is
        "application/octet-stream" of what is encrypted.

        Raises ObjectUnknown, StoreDamaged, and MasterKeyMissing.
        """
        key = None if at_rest else self.image_key(account_id)
        sha256, media_type = self.submit(lambda catalog: _object_row(catalog, guid))
        try:
            data = read_object(self.folder, guid)
        except StoreDamaged:
            self.submit(lambda catalog: _object_row(catalog, guid))  # ObjectUnknown: deleted since
            raise
        if at_rest and self.identity.encrypted:
            media_type = _ENCRYPTED
        return open_image(self.folder, guid, data, sha256, key), media_type


def _object_row(catalog: Catalog, guid: str) -> tuple[str, str]:
    """SHA-256 at rest and media type. Raises ObjectUnknown."""
    rows = catalog.rows("SELECT sha256, media_type FROM core.objects WHERE image_guid = ?", [guid])
    if not rows:
        raise ObjectUnknown
    return str(rows[0][0]), str(rows[0][1])
