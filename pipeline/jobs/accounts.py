"""The account and the directory that a command works in."""

from __future__ import annotations

import contextlib

from pipeline.errors import AccountUnknown, DirectoryUnknown, UsageError
from pipeline.jobs.store import Store
from pipeline.store import AccountSummary, DirectoryRow
from pipeline.texts import directory_name

DEFAULT_ACCOUNT = "default"


def settle_account(store: Store, account: str | None) -> AccountSummary:
    """The account to work in: the one named, or the only one there is.

    In a store without accounts it is made, without a password: `facepipe account password` gives it one.
    Raises AccountUnknown, and UsageError where there are several and none was named.
    """
    if not store.accounts():
        store.create_account(account or DEFAULT_ACCOUNT, None)
    return find_account(store, account)


def find_account(store: Store, account: str | None) -> AccountSummary:
    """The account named, or the only one there is.

    Raises AccountUnknown, and UsageError where there are several and none was named.
    """
    accounts = {row.account: row for row in store.accounts()}
    if account is None and len(accounts) > 1:
        raise UsageError(message=f"The store has several accounts ({', '.join(accounts)}): name one with --account.")
    name = account or next(iter(accounts), DEFAULT_ACCOUNT)
    if name not in accounts:
        raise AccountUnknown(account=name, known=", ".join(accounts) or "none yet", path=store.path)
    return accounts[name]


def find_directory(store: Store, account: str | None, name: str) -> DirectoryRow:
    """A directory of the account, or of the only one. Raises AccountUnknown, UsageError, DirectoryUnknown."""
    owner = find_account(store, account)
    directories = {row.name: row for row in owner.directories}
    if name not in directories:  # an earlier version checked no names, so one is taken as it stands first
        with contextlib.suppress(ValueError):
            name = directory_name(name)
    if name not in directories:
        raise DirectoryUnknown(account=owner.account, directory=name, known=", ".join(directories) or "none")
    return directories[name]
