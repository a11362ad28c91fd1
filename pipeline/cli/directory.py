"""`facepipe directory`."""

from __future__ import annotations

from pathlib import Path

import click

from pipeline.cli.flags import account_option, store_option
from pipeline.cli.output import emit, identities, output_options


@click.group()
def directory() -> None:
    """Manage the directories of a store's accounts.

    A directory exists while it holds an identity: the first one makes it.
    """


@directory.command("list")
@store_option
@click.option("--account", metavar="USERID", help="Only the directories of this account.")
@output_options
def list_(store: Path, account: str | None, as_json: bool) -> None:
    """List directories, and how many identities each holds.

    \b
    Examples:
      facepipe directory list --store ~/people
      facepipe directory list --store ~/people --account alice --json
    """
    from pipeline.jobs.accounts import list_directories
    from pipeline.store.connect import open_store

    with open_store(store, command="directory list") as opened:
        rows = list_directories(opened, account)
    report = [{"account": row.user_id, "directory": row.name, "identities": row.identities} for row in rows]
    lines = [f"{row.user_id}  {row.name}  {identities(row.identities)}" for row in rows]
    emit({"directories": report}, lines or ["no directories"], as_json)


@directory.command()
@click.argument("name")
@store_option
@account_option
@click.option("--yes", is_flag=True, help="Don't ask.")
@output_options
def delete(name: str, store: Path, account: str | None, yes: bool, as_json: bool) -> None:
    """Delete the directory NAME with all its identities, their images and their embeddings.

    The photos they came from are not touched. This cannot be undone.

    \b
    Examples:
      facepipe directory delete visitors --store ~/people
      facepipe directory delete visitors --store ~/people --account alice --yes --json
    """
    from pipeline.jobs.accounts import delete_directory, find_directory
    from pipeline.store.connect import open_store

    with open_store(store, command="directory delete") as opened:
        row = find_directory(opened, account, name)
    if not yes:  # others can use the store meanwhile
        question = f"Delete {name} of {row.user_id} with its {identities(row.identities)}?"
        click.confirm(question, abort=True, err=True)
    with open_store(store, command="directory delete") as opened:
        delete_directory(opened, row.account_id, name)
    report = {"account": row.user_id, "directory": name, "identities": row.identities}
    emit(report, [f"deleted {name} of {row.user_id}, {identities(row.identities)}"], as_json)
