"""What an open store has for its images: unlocking, the accounts' keys, reading."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TypeVar

from pipeline.errors import MasterKeyMissing, MasterKeyWrong, StoreDamaged
from pipeline.store.catalog import accounts
from pipeline.store.catalog.connection import Catalog
from pipeline.store.files.crypto import MasterKey
from pipeline.store.files.durable import Folder
from pipeline.store.files.objects import object_row, open_image, read_object
from pipeline.store.records import StoreIdentity

T = TypeVar("T")
_ENCRYPTED = "application/octet-stream"


class StoredImages(ABC):
    """The images of a store. Of an encrypted one they can be read and written once it is unlocked; everything else
    needs no key."""

    folder: Folder
    identity: StoreIdentity

    def __init__(self) -> None:
        self.master_key: MasterKey | None = None
        self._image_keys: dict[int, bytes] = {}

    @abstractmethod
    def submit(self, work: Callable[[Catalog], T]) -> T:
        """Does `work` with the catalog."""

    def unlock(self, master_key: MasterKey) -> None:
        """Takes the key of an encrypted store; for a store that is not encrypted does nothing.

        Raises MasterKeyWrong.
        """
        if not self.identity.encrypted:
            return
        if master_key.key_id != self.identity.master_key_id:
            detail = f" (its id is {master_key.key_id}, the store's {self.identity.master_key_id})"
            raise MasterKeyWrong(source=master_key.source, path=self.folder.root, detail=detail)
        self.master_key = master_key

    def require_master_key(self) -> MasterKey | None:
        """None for a store that is not encrypted. Raises MasterKeyMissing while an encrypted one is locked."""
        if self.identity.encrypted and self.master_key is None:
            raise MasterKeyMissing(path=self.folder.root, detail="the store was opened without one")
        return self.master_key

    def image_key(self, account_id: int) -> bytes | None:
        """The 32 byte AES key of an account's images; None in a store that is not encrypted.

        Raises MasterKeyMissing, and StoreDamaged where the key does not open.
        """
        master_key = self.require_master_key()
        if master_key is None:
            return None
        if account_id not in self._image_keys:
            key = self.submit(lambda catalog: accounts.image_key(catalog, account_id, master_key))
            self._image_keys[account_id] = key
        return self._image_keys[account_id]

    def read_object(self, guid: str) -> bytes:
        """The bytes of a stored image as they are at rest."""
        return read_object(self.folder, guid)

    def read_image(self, account_id: int, guid: str, *, at_rest: bool = False) -> tuple[bytes, str]:
        """A stored image of the account, decrypted unless it is wanted as it is at rest; and its media type, which
        is "application/octet-stream" of what is encrypted.

        Raises ObjectUnknown, StoreDamaged, and MasterKeyMissing.
        """
        key = None if at_rest else self.image_key(account_id)
        sha256, media_type = self.submit(lambda catalog: object_row(catalog, guid))
        try:
            data = read_object(self.folder, guid)
        except StoreDamaged:
            self.submit(lambda catalog: object_row(catalog, guid))  # ObjectUnknown: deleted since
            raise
        if at_rest and self.identity.encrypted:
            media_type = _ENCRYPTED
        return open_image(self.folder, guid, data, sha256, key), media_type
