"""Accounts and directories of a store, as the command line lists them: in this process, or through the server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.errors import DirectoryUnknown
from pipeline.jobs.stores import find_account
from pipeline.store.client import StoreClient
from pipeline.store.connect import Store
from pipeline.store.records import DirectoryRow


@dataclass(frozen=True)
class AccountSummary:
    """An account, and how much it holds."""

    account: str
    password_set: bool  # without one nobody gets in by the server
    directories: int
    identities: int


def list_accounts(store: Store) -> list[AccountSummary]:
    """All accounts, the oldest first."""
    rows = store.read(
        "SELECT account_id, user_id, password_hash IS NOT NULL AS password_set FROM core.accounts ORDER BY account_id"
    ).to_pylist()
    held = store.directories()
    return [
        _summary(row["user_id"], row["password_set"], [d for d in held if d.account_id == row["account_id"]])
        for row in rows
    ]


def _summary(account: str, password_set: bool, held: Sequence[DirectoryRow]) -> AccountSummary:
    return AccountSummary(account, password_set, len(held), sum(directory.identities for directory in held))


def list_directories(store: Store, account: str | None) -> list[DirectoryRow]:
    """The directories that hold an identity, of an account (None: of all). Raises AccountUnknown."""
    wanted = None if account is None else store.account_id(account)
    return [directory for directory in store.directories() if wanted in (None, directory.account_id)]


def delete_directory(store: Store, account_id: int, name: str) -> None:
    """All identities of a directory go, their vectors out of the files too. Raises DirectoryUnknown."""
    store.delete_directory(account_id, name)
    if isinstance(store, StoreClient):
        store.fold()  # a server does it by itself, when it has little to do


def find_directory(store: Store, account: str | None, name: str) -> DirectoryRow:
    """A directory of the account, or of the only one. Raises AccountUnknown, UsageError, DirectoryUnknown."""
    user_id, account_id = find_account(store, account)
    held = [directory for directory in store.directories() if directory.account_id == account_id]
    for directory in held:
        if directory.name == name:
            return directory
    known = ", ".join(directory.name for directory in held) or "none"
    raise DirectoryUnknown(account=user_id, directory=name, known=known)
