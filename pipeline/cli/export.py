"""`facepipe export`."""

from __future__ import annotations

from pathlib import Path

import click

from pipeline.cli.flags import PATH, store_option
from pipeline.cli.output import emit, output_options


@click.command()
@store_option
@click.option("--to", type=PATH, required=True, metavar="DIR", help="A new or empty folder.")
@output_options
def export(store: Path, to: Path, as_json: bool) -> None:
    """Write a store's tables as Parquet files.

    media.parquet, faces.parquet, persons.parquet and embeddings.parquet, with the columns that FORMAT.md promises.

    \b
    Example:
      facepipe export --store ~/people --to ~/people-parquet
    """
    from pipeline.store.connect import open_store

    with open_store(store, command="export") as opened:
        rows = opened.export(to)
    lines = [f"{name + '.parquet':<20}{count} rows" for name, count in rows.items()]
    emit({"to": str(to), "rows": rows}, [*lines, f"in {to}"], as_json)
