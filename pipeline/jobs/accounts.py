"""The account and the directory of a command."""

from __future__ import annotations

import contextlib

from pipeline.errors import AccountUnknown, DirectoryUnknown, UsageError
from pipeline.jobs.store import Store
from pipeline.store import AccountSummary, Deleted, DirectoryRow
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


def delete_account(store: Store, account: AccountSummary) -> Deleted:
    """Deletes an account with all directories, runs and digests; its password is refused at once, also by a running
    server. Raises StoreLocked during a run."""
    with store.lock_runs("account delete"):
        store.set_password(account.account, None)
        return store.delete_all(account.account_id)


def find_directory(store: Store, account: str | None, name: str, *, or_empty: bool = False) -> DirectoryRow:
    """Returns a directory of the account, or of the only one. `or_empty`: also one that may have photos, but no person.
    Raises AccountUnknown, UsageError, DirectoryUnknown."""
    owner = find_account(store, account)
    directories = {row.name: row for row in owner.directories}
    if name not in directories:  # an earlier version checked no names, so the exact name is tried first
        with contextlib.suppress(ValueError):
            name = directory_name(name)
    if name not in directories and or_empty:
        return DirectoryRow(owner.account_id, owner.account, name, 0, 0)
    if name not in directories:
        raise DirectoryUnknown(account=owner.account, directory=name, known=", ".join(directories) or "none")
    return directories[name]
