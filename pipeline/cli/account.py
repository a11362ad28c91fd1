"""`facepipe account`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from pipeline.cli.flags import ACCOUNT_FLAGS, settings_from, settings_options
from pipeline.cli.options import store_option
from pipeline.cli.output import emit, output_options
from pipeline.errors import UsageError


@click.group()
def account() -> None:
    """Manage the accounts of a store."""


@account.command()
@click.argument("userid")
@store_option
@click.option("--password-stdin", is_flag=True, help="Take the password from the first line of standard input.")
@settings_options(ACCOUNT_FLAGS)
@output_options
def create(userid: str, store: Path, password_stdin: bool, as_json: bool, **options: Any) -> None:
    """Make the account USERID in a store.

    The store is made when there is none. Without --password-stdin a password is generated and shown once; the
    store keeps only its hash.

    \b
    Examples:
      facepipe account create alice --store ~/people
      facepipe account create alice --store ~/people --password-stdin < password.txt
    """
    settings = settings_from(options)
    given = _password_from_stdin() if password_stdin else None
    from pipeline.assembly import open_or_create_store
    from pipeline.store.accounts import check_user_id, generate_password, hash_password

    # Before the store: a mistyped name must not leave an empty one behind.
    check_user_id(userid)
    password = given or generate_password()
    with open_or_create_store(store, settings, "account create") as client:
        client.create_account(userid, hash_password(password))
    shown = {} if given else {"password": password}
    lines = [f"account   {userid}", f"store     {store}"]
    if not given:
        lines += [f"password  {password}", "It is shown only now: the store keeps its hash."]
    emit({"account": userid, "store": str(store), **shown}, lines, as_json)


def _password_from_stdin() -> str:
    """The first line, without its line end. Raises UsageError where it is empty."""
    password = sys.stdin.readline().rstrip("\r\n")
    if not password:
        raise UsageError(
            message="The first line of standard input is empty, and --password-stdin takes it as password."
        )
    return password
