"""`facepipe account` and `facepipe directory`: who may use a store, and what identities each has."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pipeline.cli.flags import ACCOUNT_FLAGS, account_option, settings_options, store_option
from pipeline.cli.groups import CommandGroup
from pipeline.cli.output import confirm, emit, output_options
from pipeline.config import Settings
from pipeline.errors import UsageError
from pipeline.texts import counted

if TYPE_CHECKING:
    from pipeline.store import AccountSummary, Remembered

password_option = click.option(
    "--password-stdin", is_flag=True, help="Take the password from the first line of standard input."
)


yes_option = click.option("--yes", is_flag=True, help="Don't ask.")


@click.group(cls=CommandGroup, former={"rotate": "password"})
def account() -> None:
    """Manage the accounts of a store."""


@account.command()
@click.argument("userid")
@store_option
@password_option
@settings_options(ACCOUNT_FLAGS)
@output_options
def create(userid: str, store: Path, password_stdin: bool, as_json: bool, settings: Settings) -> None:
    """Create the account USERID in a store.

    The store is created if it does not exist; with --encrypt its images are encrypted, under a master key that is
    created on first use. Without --password-stdin a password is generated and shown once; the store only keeps its
    hash.

    \b
    Examples:
      facepipe account create alice --store ~/people
      facepipe account create alice --store ~/people --encrypt
      facepipe account create alice --store ~/people --password-stdin < password.txt
    """
    password = _new_password(password_stdin)
    from pipeline.jobs.expectation import calibration_warning
    from pipeline.jobs.store import open_or_create_store
    from pipeline.store import accounts

    # Before the store: a mistyped name must not leave an empty one behind.
    accounts.check_user_id(userid)
    with open_or_create_store(store, settings, "account create") as opened:
        opened.create_account(userid, accounts.hash_password(password))
        key, warning = opened.master_key, calibration_warning(opened.identity)
    result, lines = _password_shown(userid, store, None if password_stdin else password)
    if key is not None:
        result["master_key"] = key.source
        lines.append(key.notice)
    if warning is not None:
        result["warnings"] = [warning]
        click.echo(f"warning: {warning}", err=True)
    emit(result, lines, as_json)


@account.command("list")
@store_option
@output_options
def list_accounts(store: Path, as_json: bool) -> None:
    """List the accounts of a store: what each holds, and whether a password is set.

    \b
    Example:
      facepipe account list --store ~/people
    """
    from pipeline.jobs.store import open_store

    with open_store(store, command="account list", reading=True) as opened:
        accounts = opened.accounts()
    lines = [_line(row) for row in accounts] or ["no accounts"]
    emit({"accounts": [row.as_dict() for row in accounts]}, lines, as_json)


def _line(row: AccountSummary) -> str:
    password = "" if row.password_set else "  (no password: `facepipe account password` sets one)"
    return f"{row.account}  {_directories(len(row.directories))}, {_identities(row.identities)}{password}"


@account.command()
@click.argument("userid")
@store_option
@password_option
@output_options
def password(userid: str, store: Path, password_stdin: bool, as_json: bool) -> None:
    """Give the account USERID its first or a new password.

    An old one becomes invalid immediately, also in a running server. Without --password-stdin a password is generated
    and shown once. The account's image key stays as it is. `rotate` is the former name of this command.

    \b
    Examples:
      facepipe account password alice --store ~/people
      facepipe account password alice --store ~/people --password-stdin < password.txt
    """
    new = _new_password(password_stdin)
    from pipeline.jobs.store import open_store
    from pipeline.store import accounts

    with open_store(store, command="account password") as opened:
        opened.set_password(userid, accounts.hash_password(new))
    emit(*_password_shown(userid, store, None if password_stdin else new), as_json)


@account.command("delete")
@click.argument("userid")
@store_option
@yes_option
@output_options
def delete_account(userid: str, store: Path, yes: bool, as_json: bool) -> None:
    """Delete the account USERID with all its directories, people, runs and reports.

    Nothing is remembered of it but how much was deleted (`erase log`): later runs into another account import the
    photos again. The photo files stay. This cannot be undone, and is refused while a run is in progress.

    \b
    Examples:
      facepipe account delete alice --store ~/people
      facepipe account delete alice --store ~/people --yes --json
    """
    from pipeline.jobs.accounts import delete_account, find_account
    from pipeline.jobs.store import open_store

    with open_store(store, command="account delete") as opened:
        row = find_account(opened, userid)
        photos = opened.delete_all(row.account_id, dry_run=True).photos
    held = f"{_directories(len(row.directories))}, {_identities(row.identities)} and {counted(photos, 'photo')}"
    if not yes:
        confirm(f"Delete the account {row.account} with its {held}?")
    with open_store(store, command="account delete") as opened:
        deleted = delete_account(opened, row)
        opened.clean_up()
    emit(
        {"account": row.account, "directories": len(row.directories), "identities": row.identities}
        | {"photos": deleted.photos},
        [f"deleted the account {row.account}, {held}"],
        as_json,
    )


def _password_shown(userid: str, store: Path, password: str | None) -> tuple[dict[str, Any], list[str]]:
    """The result and its lines, with the password where it was generated."""
    result, lines = {"account": userid, "store": str(store)}, [f"account   {userid}", f"store     {store}"]
    if password is not None:
        result["password"] = password
        lines += [f"password  {password}", "It is shown only now: the store keeps its hash."]
    return result, lines


def _new_password(from_stdin: bool) -> str:
    """A generated password, or the first line of standard input: UTF-8, without its line end.

    Raises UsageError where the line cannot be a password.
    """
    from pipeline.store import accounts

    if not from_stdin:
        return accounts.generate_password()
    line = sys.stdin.buffer.readline().rstrip(b"\r\n")
    try:
        password = line.decode("utf-8")
    except UnicodeDecodeError as exc:
        raise UsageError(message="The password on standard input is not UTF-8.") from exc
    if not password:
        raise UsageError(
            message="The first line of standard input is empty, and --password-stdin takes it as password."
        )
    return accounts.check_password(password)


@click.group(cls=CommandGroup)
def directory() -> None:
    """Manage the directories of a store's accounts.

    A directory exists while it holds an identity: the first one creates it.
    """


@directory.command("list")
@store_option
@click.option("--account", metavar="USERID", help="Only the directories of this account.")
@output_options
def list_directories(store: Path, account: str | None, as_json: bool) -> None:
    """List directories with their number of identities, and the threshold and method that `regroup` set for them.

    A number that was set for another index, before `reindex swap`, has no effect until it is confirmed: the list says
    how.

    \b
    Examples:
      facepipe directory list --store ~/people
      facepipe directory list --store ~/people --account alice --json
    """
    from pipeline.jobs.accounts import find_account
    from pipeline.jobs.store import open_store

    with open_store(store, command="directory list", reading=True) as opened:
        accounts = opened.accounts() if account is None else [find_account(opened, account)]
        rows = [directory for each in accounts for directory in each.directories]
        notes = [opened.unconfirmed(row.name, row.remembered) for row in rows]
    report, lines = [], []
    for row, note in zip(rows, notes, strict=True):
        kept = {**vars(row.remembered), "unconfirmed": note}
        report.append({"account": row.user_id, "directory": row.name, "identities": row.identities, **kept})
        lines.append(f"{row.user_id}  {row.name}  {_identities(row.identities)}{_settings(row.remembered)}")
        lines += [f"  {note}"] * (note is not None)
    emit({"directories": report}, lines or ["no directories"], as_json)


@directory.command()
@click.argument("name")
@store_option
@account_option
@click.option("--no-trace", is_flag=True, help="Keep no digests: later runs may import the photos again.")
@yes_option
@output_options
def delete(name: str, store: Path, account: str | None, no_trace: bool, yes: bool, as_json: bool) -> None:
    """Delete the directory NAME with all people, faces, embeddings, and rows of photos.

    Keyed digests remain, so that later runs into the directory skip these photos. The photo files stay. This cannot be
    undone.

    \b
    Examples:
      facepipe directory delete visitors --store ~/people
      facepipe directory delete visitors --store ~/people --account alice --yes --json
    """
    from pipeline.jobs.accounts import find_directory
    from pipeline.jobs.store import open_store

    with open_store(store, command="directory delete") as opened:
        row = find_directory(opened, account, name, or_empty=True)
        photos = opened.delete_all(row.account_id, row.name, dry_run=True).photos
    held = f"{_identities(row.identities)} and {counted(photos, 'photo')}"
    if not yes:
        confirm(f"Delete {row.name} of {row.user_id} with its {held}?")
    with open_store(store, command="directory delete") as opened:
        deleted = opened.delete_all(row.account_id, row.name, no_trace=no_trace)
        opened.clean_up()  # the vectors out of the files, too
    report = {"account": row.user_id, "directory": row.name, "identities": row.identities, "photos": deleted.photos}
    emit(report, [f"deleted {row.name} of {row.user_id}, {held}"], as_json)


def _settings(remembered: Remembered) -> str:
    return f"  ({remembered})" if str(remembered) else ""


def _directories(count: int) -> str:
    return counted(count, "directory", "directories")


def _identities(count: int) -> str:
    return counted(count, "identity", "identities")
