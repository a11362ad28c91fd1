"""`facepipe check`."""

from __future__ import annotations

from pathlib import Path

import click

from pipeline.cli.options import store_option
from pipeline.cli.output import emit, end_with, output_options
from pipeline.cli.progress import LongWork
from pipeline.errors import StoreDamaged


@click.command()
@store_option
@click.option("--repair", is_flag=True, help="Mend what can be mended without loss, then check again.")
@output_options
def check(store: Path, repair: bool, as_json: bool) -> None:
    """Read a whole store and verify it.

    Every file is hashed and opened, every reference between tables followed. Ends with exit code 43 when something
    is wrong. --repair removes leftovers of interrupted work and rebuilds derived files; it never touches a photo,
    a face or a person.

    \b
    Examples:
      facepipe check --store ~/people
      facepipe check --store ~/people --repair --json
    """
    from pipeline.store.check import check_store, repair_store
    from pipeline.store.client import StoreClient

    with StoreClient.open(store, command="check") as client, LongWork() as long:
        if repair:
            for line in repair_store(client):
                long.progress.note(line)
        report = check_store(client, long.progress)
    if not report.problems:
        return emit(report.as_dict(), report.lines(), as_json)
    cure = "See the cures above" if repair else f"`facepipe check --store {store} --repair` mends what can be mended"
    error = StoreDamaged(path=store, detail=f"{len(report.problems)} problems", cure=f"{cure}.")
    end_with(error, report.as_dict(), report.lines(), as_json)
