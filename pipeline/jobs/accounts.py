"""The account and the directory of a command."""

from __future__ import annotations

import contextlib

from pipeline.errors import AccountUnknown, DirectoryUnknown, UsageError
from pipeline.jobs.store import Store
from pipeline.store import AccountSummary, DirectoryRow
from pipeline.texts import directory_name

DEFAULT_ACCOUNT = "default"


def resolve_account(store: Store, account: str | None) -> AccountSummary:
    """As `find_account`, but creates the account in a store without any. It has no password: `facepipe account
    password` sets it."""
    if not store.accounts():
        store.create_account(account or DEFAULT_ACCOUNT, None)
    return find_account(store, account)


def find_account(store: Store, account: str | None) -> AccountSummary:
    """Returns the named account, or the only one there is.

    Raises AccountUnknown, and UsageError if there are several and none was named.
    """
    accounts = {row.account: row for row in store.accounts()}
    if account is None and len(accounts) > 1:
        raise UsageError(message=f"The store has several accounts ({', '.join(accounts)}): name one with --account.")
    name = account or next(iter(accounts), DEFAULT_ACCOUNT)
    if name not in accounts:
        raise AccountUnknown(account=name, known=", ".join(accounts) or "none yet", path=store.path)
    return accounts[name]


def find_directory(store: Store, account: str | None, name: str) -> DirectoryRow:
    """Returns a directory of the account, or of the only one. Raises AccountUnknown, UsageError, DirectoryUnknown."""
    owner = find_account(store, account)
    directories = {row.name: row for row in owner.directories}
    if name not in directories:  # an earlier version checked no names, so the exact name is tried first
        with contextlib.suppress(ValueError):
            name = directory_name(name)
    if name not in directories:
        raise DirectoryUnknown(account=owner.account, directory=name, known=", ".join(directories) or "none")
    return directories[name]
