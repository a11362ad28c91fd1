"""The directories of a store, as the command line lists and deletes them."""

from __future__ import annotations

from pipeline.errors import DirectoryUnknown
from pipeline.jobs.stores import find_account
from pipeline.store.operations import Store
from pipeline.store.records import DirectoryRow


def list_directories(store: Store, account: str | None) -> list[DirectoryRow]:
    """The directories that hold an identity, of an account (None: of all). Raises AccountUnknown."""
    account_id = None if account is None else store.account_id(account)
    return [directory for directory in store.directories() if account_id in (None, directory.account_id)]


def delete_directory(store: Store, account_id: int, name: str) -> None:
    """Deletes all identities of a directory, their vectors out of the files too. Raises DirectoryUnknown."""
    store.delete_directory(account_id, name)
    store.fold()


def find_directory(store: Store, account: str | None, name: str) -> DirectoryRow:
    """A directory of the account, or of the only one. Raises AccountUnknown, UsageError, DirectoryUnknown."""
    user_id, account_id = find_account(store, account)
    held = [directory for directory in store.directories() if directory.account_id == account_id]
    for directory in held:
        if directory.name == name:
            return directory
    known = ", ".join(directory.name for directory in held) or "none"
    raise DirectoryUnknown(account=user_id, directory=name, known=known)
